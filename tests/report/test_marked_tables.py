"""A marked table is filled from the records, and nothing else of the page changes."""

from codecl.report.marked_tables import fill
from tests.report.cases import record

PAGE = """Before.

<!-- table: split-cifar100, protocol -->
| what stood here before |
<!-- end -->

Between.

<!-- table: split-cifar100, fast -->
<!-- end -->

After.
"""
HEAD = "| method | seeds | ACC % | BWT % | FWT over GPM % | the paper's ACC % |\n|---|---|---|---|---|---|\n"


def test_each_schedule_has_its_table_the_best_first(tmp_path):
    record(tmp_path, 0, 71.0, -0.25, method="gpm")
    record(tmp_path, 0, 76.0, -1.0)
    record(tmp_path, 1, 78.0, -2.0)
    filled = fill(PAGE, tmp_path)
    before, between, after = (part.split("<!-- end -->")[-1] for part in [*filled.split("<!-- table")[:2], filled])
    assert (before, between, after) == ("Before.\n\n", "\n\nBetween.\n\n", "\n\nAfter.\n")
    protocol, fast = (part.split(" -->\n")[1].split("<!--")[0] for part in filled.split("<!-- table")[1:])
    code, gpm = protocol.removeprefix(HEAD).splitlines()
    assert code.startswith("| code-cl | 2 | 77.00 ± 1.41 | −1.50 | ")
    assert code.endswith(" | 77.21 |")
    assert gpm == "| gpm | 1 | 71.00 | −0.25 | – | 72.06 |"
    assert fast == HEAD


def test_a_filled_page_stays_as_it_is(tmp_path):
    record(tmp_path, 0, 76.0, -1.0)
    filled = fill(PAGE, tmp_path)
    assert fill(filled, tmp_path) == filled != PAGE


def test_a_run_that_was_cut_short_has_no_row(tmp_path):
    record(tmp_path, 0, 76.0, -1.0, tasks=5)
    record(tmp_path, 1, 76.0, -1.0, changes={"aperture": 2.0})
    assert "code-cl" not in fill(PAGE, tmp_path)
