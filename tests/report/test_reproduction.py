"""The reproduction table says what the records say, and what is missing."""

from pathlib import Path

from codecl.cli.main import main
from codecl.report.marked_tables import fill
from codecl.report.names import slug
from codecl.report.records import find_runs
from codecl.report.render import FORMATS
from codecl.report.reproduction import make_page
from codecl.report.tables import analyse
from tests.report.cases import record


def test_seeds_of_one_experiment_are_one_row_beside_the_papers_numbers(tmp_path):
    record(tmp_path, 0, 76.0, -1.0)
    record(tmp_path, 1, 78.0, -2.0)
    (row,) = [line for line in make_page(tmp_path).splitlines() if line.startswith("| split-cifar100 | code-cl")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[2:] == [
        "paper",
        "10/10 tasks, 200 epochs, lr 0.01",
        "official",
        "0, 1",
        "77.00 ± 1.41",
        "-1.50 ± 0.71",
        "77.21 ± 0.32",
        "-1.1 ± 0.28",
    ]
    missing = make_page(tmp_path).split("## Not run yet")[1]
    assert "code-cl" not in next(line for line in missing.splitlines() if "split-cifar100" in line)


def test_another_budget_is_another_row_and_does_not_count_as_run(tmp_path):
    record(tmp_path, 0, 65.0, 0.4, tasks=5, epochs=15)
    record(tmp_path, 0, 66.0, 0.4, tasks=5)
    rows = [line for line in make_page(tmp_path).splitlines() if line.startswith("| split-cifar100")]
    assert (
        sum("5/10 tasks, 15 epochs" in row for row in rows) == sum("5/10 tasks, 200 epochs" in row for row in rows) == 1
    )
    missing = make_page(tmp_path).split("## Not run yet")[1]
    assert "code-cl" in next(line for line in missing.splitlines() if "split-cifar100" in line)


def test_the_committed_page_is_what_the_committed_records_give():
    root = Path(__file__).parents[2]
    assert (root / "REPRODUCTION.md").read_text() == make_page(root / "results")


def test_a_changed_setting_is_named(tmp_path):
    record(tmp_path, 0, 60.0, 0.0, changes={"aperture": 2.0})
    assert "| split-cifar100 | code-cl, aperture = 2.0 | paper |" in make_page(tmp_path)


def test_a_schedule_cut_by_hand_is_not_the_protocol_of_the_paper(tmp_path):
    record(tmp_path, 0, 60.0, 0.0, epochs=6)
    (line,) = [line for line in make_page(tmp_path).splitlines() if line.startswith("- **split-cifar100**")]
    assert line.split(": ")[1].split(", ")[-1] == "code-cl"


def test_notes_are_taken_over(tmp_path):
    (tmp_path / "notes.md").write_text("## Notes\n\nSomething was found out.\n")
    assert "\n## Notes\n\nSomething was found out.\n\n## Not run yet" in make_page(tmp_path)


def test_sd_style_results_say_so(tmp_path):
    record(tmp_path, 0, 60.0, 0.0, method="trgp-sd")
    assert "| trgp-sd (SD-style) |" in make_page(tmp_path)


def test_the_committed_report_is_what_the_committed_records_give():
    root = Path(__file__).parents[2]
    made = analyse(find_runs([root / "results"], root / "results/report").runs, "gpm").tables
    for table in made:
        for ending, form in FORMATS.items():
            assert (root / f"results/report/tables/{slug(table.name)}.{ending}").read_text() == form(table), table.name
    assert len(list((root / "results/report/tables").iterdir())) == len(made) * len(FORMATS)


def of_the_readme(head):
    """The cells of the table under this head, and the text of the page; a minus is a hyphen in both."""
    page = (Path(__file__).parents[2] / "README.md").read_text().replace("−", "-")
    (table,) = [block for block in page.split("\n\n") if block.startswith(head)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]], page


def of_the_records(folder):
    """A row for each method in the table of results and in that of memory, by column: the cell and its text."""
    root = Path(__file__).parents[2]
    records = find_runs([root / "results" / folder], root).runs
    tables = [table for table in analyse(records, "gpm").tables if table.name in ("results", "memory")]
    rows = []
    for pair in zip(*(table.rows for table in tables), strict=True):  # the best first in both
        rows.append({})
        for table, row in zip(tables, pair, strict=True):
            rows[-1] |= {c.name: (cell, c.text(cell)) for c, cell in zip(table.columns, row.cells, strict=True)}
    return rows


def test_the_readme_has_the_numbers_of_the_records():
    shown, _ = of_the_readme("| method | ACC % | over GPM, 95 % interval | BWT % | memory |")
    expected = []
    for row in of_the_records("permuted-digits/fast"):
        over = row["ACC over gpm"][0]
        apart = "–" if over.interval is None else "{:+.2f} ({:+.2f} to {:+.2f})".format(over.value, *over.interval)
        memory = row["memory"][1].partition(" ±")[0]
        assert row["seeds"][1] == "3"
        expected.append([row["method"][1], row["ACC %"][1], apart, row["BWT %"][1], memory])
    assert shown == expected
    assert len(shown) == 17


def test_the_readme_has_the_numbers_of_split_cifar100():
    root = Path(__file__).parents[2]
    page = (root / "README.md").read_text()
    assert page == fill(page, root / "results")
    acc = {row["method"][1]: row["ACC %"][0].number for row in of_the_records("split-cifar100/fast")}
    ahead = [acc["code-cl (own)"] - acc[other] for other in ("gpm", "code-cl")]
    sentence = "{:.1f} points ahead of GPM and {:.1f} ahead of the paper's reading".format(*ahead)
    assert sentence in " ".join(page.split())


def test_the_readme_has_the_distance_under_the_protocol():
    (gpm,), (code,) = (of_the_records(f"split-cifar100/{run}") for run in ("paper/gpm-seed0", "official"))
    here = code["ACC %"][0].number - gpm["ACC %"][0].number
    page = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    assert f"{here:.1f} points here" in page


def test_the_recipes_of_all_records_can_be_run_again(capsys):
    """One command remakes a number: no setting that a record names has gone."""
    for recipe in sorted((Path(__file__).parents[2] / "results").rglob("recipe.toml")):
        assert main(["run", str(recipe), "--dry-run"]) == 0, (recipe, capsys.readouterr().err)
