"""The reproduction table says what the records say, and what is missing."""

from pathlib import Path

from codecl.report.experiments import find_experiments
from codecl.report.names import slug
from codecl.report.records import find_runs
from codecl.report.render import FORMATS
from codecl.report.reproduction import make_page
from codecl.report.tables import analyse
from tests.report.cases import write_run


def record(folder: Path, seed: int, acc: float, bwt: float, method="code-cl", tasks=10, **other):
    """A run with these numbers: all tasks end at ``acc``, all but the last with ``bwt`` since they were learned."""
    learned = [acc - bwt] * (tasks - 1) + [acc]
    A = [[learned[i] if i == j else acc if j < i else None for j in range(tasks)] for i in range(tasks)]
    write_run(folder / f"{len(list(folder.iterdir()))}", method, A, seed=seed, **other)


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
    record(tmp_path, 0, 65.0, 0.4, tasks=5, quick=True)
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


def test_the_readme_has_the_numbers_of_the_records():
    root = Path(__file__).parents[2]
    rows = [line.split(" | ") for line in (root / "README.md").read_text().replace("−", "-").splitlines()]
    shown = [[row[0].removeprefix("| "), *row[1:4]] for row in rows if len(row) == 5 and "±" in row[1]]
    records = find_runs([root / "results/permuted-digits/fast"], root).runs
    assert all(len(e.runs) == 3 for e in find_experiments(records))
    (table,) = [table for table in analyse(records, "gpm").tables if table.name == "results"]
    columns = [column.name for column in table.columns]
    expected = []
    for row in table.rows:  # the best first
        cells = dict(zip(columns, row.cells, strict=True))
        over = cells["ACC over gpm"]
        apart = "–" if over.interval is None else "{:+.2f} ({:+.2f} to {:+.2f})".format(over.value, *over.interval)
        texts = [table.columns[columns.index(name)].text(cells[name]) for name in ("method", "ACC %", "BWT %")]
        expected.append([texts[0], texts[1], apart, texts[2]])
    assert shown == expected
    assert len(shown) == 17
