"""The files of a report and the command that writes them: four formats from one table, figures, and what is refused."""

import csv
import io
import re
import shutil
import subprocess
import sys

import pytest

from codecl.report.names import braces
from codecl.report.render import csv_text, latex, markdown, text
from codecl.report.table import Cell, Column, Row, Section, make_table
from codecl.report.write import write_report
from tests.report.cases import FIRST, SECOND, epoch, task, write_run
from tests.runs.running import codecl, contents

LATEX = shutil.which("pdflatex")
WHOLE = "split-cifar100-paper-2-tasks-whole"
NASTY = "a_b & 50% | <i>*x*</i> \\ {y} #~^$\n"
TABLE = make_table(
    "numbers",
    "Numbers",
    [Column("method"), Column("ACC %", best="highest"), Column("nothing"), Column("paper", lambda v: f"{v:g}")],
    [
        Section(
            "first, 50 %",
            (
                Row((Cell("gpm"), Cell(80.125, 1.5, 2), Cell(), Cell(72.06, 0.29)), ("r/gpm-0", "r/gpm-1")),
                Row((Cell(NASTY), Cell(-0.001, None, 2), Cell(), Cell()), ("r/x|y",)),
                Row((Cell("sgp"), Cell(-7.5, None, 2), Cell(), Cell()), ("r/sgp",)),
            ),
            {"benchmark": "b", "tasks": "2"},
        ),
        Section("second", (Row((Cell("gpm"), Cell(1.0, None, 1), Cell(), Cell()), ("s/gpm",)),), {"benchmark": "c"}),
    ],
    ["A note."],
)


def test_text():
    assert text(TABLE).splitlines()[2:6] == [
        "first, 50 %",
        "method                                     ACC %           paper  runs",
        "----------------------------------  --------------  ------------  ----",
        "gpm                                 80.12 ± 1.50 *  72.06 ± 0.29  r/gpm-{0,1}",
    ]
    assert text(TABLE).endswith("\n* best, + second best\nA note.\n")


def test_markdown():
    lines = markdown(TABLE).splitlines()
    assert lines[4:7] == [
        "| method | ACC % | paper | runs |",
        "|---|---|---|---|",
        "| gpm | **80.12 ± 1.50** | 72.06 ± 0.29 | `r/gpm-{0,1}` |",
    ]
    assert lines[7] == (
        "| a_b & 50% \\| &lt;i>\\*x\\*&lt;/i> \\\\ {y} #~^$? | <u>0.00</u> | – | `r/x\\|y` |"
    )  # and no −0.00
    assert "| gpm | 1.00 | – | `s/gpm` |" in lines  # the only one of its section is not the best


def test_latex():
    lines = latex(TABLE).splitlines()
    assert lines[2:5] == [r"\begin{tabular}{lrr}", r"\toprule", r"method & ACC \% & paper \\"]
    assert lines[6:8] == [
        r"\multicolumn{3}{l}{\emph{first, 50 \%}} \\",
        r"gpm & \textbf{80.12 $\pm$ 1.50} & 72.06 $\pm$ 0.29 \\ % r/gpm-{0,1}",
    ]
    name, number, *_ = lines[8].split(" & ")
    plain = name.replace("$|$", "|").replace("$<$", "<").replace("$>$", ">")  # in text they are other characters
    assert plain == r"a\_b \& 50\% | <i>*x*</i> \textbackslash{} \{y\} \#\textasciitilde{}\textasciicircum{}\$?"
    assert re.findall(r"(?<!\$)[|<>](?!\$)", name) == []
    assert number == r"\underline{0.00}"
    assert lines[9] == r"sgp & $-$7.50 & -- \\ % r/sgp"


@pytest.mark.skipif(LATEX is None, reason="no pdflatex is installed")
def test_latex_takes_it(tmp_path):
    (tmp_path / "numbers.tex").write_text(latex(TABLE), encoding="utf-8")
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{numbers}\end{document}"
    (tmp_path / "page.tex").write_text(document)
    command = [LATEX, "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert said.returncode == 0, said.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "page.log").read_text(errors="replace")


def test_csv_has_every_number_in_full():
    rows = list(csv.DictReader(io.StringIO(csv_text(TABLE))))
    assert rows[0] == {
        "benchmark": "b", "tasks": "2", "method": "gpm", "ACC %": "80.125", "ACC % std": "1.5", "ACC % runs": "2",
        "ACC % rank": "1", "paper": "72.06", "paper std": "0.29", "runs": "r/gpm-0 r/gpm-1",
    }  # fmt: skip
    assert rows[1]["method"] == NASTY
    assert rows[3]["ACC % rank"] == rows[3]["tasks"] == ""


def test_a_name_is_no_formula_no_link_and_steers_no_terminal():
    name = "=HYPERLINK(1) ![x](http://a.b) www.a.b @you\x1b[31m\0\u202e"
    table = make_table(
        "t", "t", [Column(name), Column("x")], [Section(name, (Row((Cell(name), Cell(-1.5)), (name,)),))]
    )
    (row,) = csv.DictReader(io.StringIO(csv_text(table)))
    assert row == {f"'{name}": f"'{name}", "x": "-1.5", "runs": f"'{name}"}
    for form in (text, markdown, latex):
        assert not set("\x1b\0\u202e") & set(form(table))
    escaped = r"=HYPERLINK(1) \!\[x\](http&#58;//a.b) www&#46;a.b &#64;you?\[31m??"
    assert markdown(table).splitlines()[2] == f"## {escaped}"
    assert f"| {escaped} | -1.50 | `" in markdown(table)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a/x-seed0"], "a/x-seed0"),
        (["a/x-seed0", "a/x-seed1", "a/x-seed12"], "a/x-seed{0,1,12}"),
        (["a=4/seed0", "a=4/seed1"], "a=4/seed{0,1}"),
        (["p/1/run", "q/1/run"], "{p,q}/1/run"),
        (["seed1", "seed10"], "seed{1,10}"),
    ],
)
def test_runs_in_short(names, short):
    assert braces(names) == short


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Runs of three methods and a sweep, and the report on them."""
    folder = tmp_path_factory.mktemp("report")
    log = [epoch(0, 1, 2.0), epoch(0, 2), task(0, 0.25), epoch(1, 1), task(1, 0.75)]
    write_run(folder / "runs/gpm", "gpm", FIRST)
    write_run(folder / "runs/code-cl", "code-cl", SECOND, log=log)
    write_run(folder / "runs/all", "multitask", [[95.0, 97.5]], log=[{**epoch(1, 1), "together": 2}])
    write_run(folder / "sweep/aperture=4/seed0", "code-cl", FIRST, changes={"aperture": 4})
    report = write_report([folder / "runs", folder / "sweep"], folder / "out")
    return folder, report


def test_the_files_of_a_report(reported):
    folder, report = reported
    drawn = [
        f"seen-{WHOLE}", f"tradeoff-{WHOLE}", f"tasks-{WHOLE}",
        "ablation-aperture-code-cl-split-cifar100", "matrix-runs-gpm", "matrix-runs-code-cl", "curves-runs-code-cl",
        "fullness-runs-code-cl", "spectra-runs-code-cl", "matrix-runs-all", "curves-runs-all",
        "matrix-sweep-aperture=4-seed0",
    ]  # fmt: skip
    names = ("results", "measures", "ablation-aperture", "memory", "time")
    expected = {f"figures/{figure}.{end}" for figure in drawn for end in ("svg", "png")}
    expected |= {f"tables/{name}.{end}" for name in names for end in ("txt", "md", "tex", "csv")}
    assert set(contents(folder / "out")) == set(report.files) == expected | {"report.html"}


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes_and_nothing_else_is_touched(tmp_path):
    write_run(tmp_path / "a", "gpm", log=[epoch(0, 1)])
    write_run(tmp_path / "b", "gpm", changes={"threshold": 0.5})
    out = tmp_path / "out"
    (out / "tables").mkdir(parents=True)
    (out / "tables/mine.md").write_text("mine")
    write_report([tmp_path], out)
    first = {name: data for name, (data, _) in contents(out).items()}
    write_report([tmp_path], out)
    assert {name: data for name, (data, _) in contents(out).items()} == first
    write_report([tmp_path / "a"], out, figures=False)  # what the earlier one had and this one has not is gone
    left = {
        f"tables/{name}.{end}"
        for name in ("results", "measures", "memory", "time")
        for end in ("txt", "md", "tex", "csv")
    }
    assert set(contents(out)) == left | {"report.html", "tables/mine.md"}


def test_the_command_prints_the_main_tables_and_where_the_rest_is(tmp_path, capsys):
    write_run(tmp_path / "runs/a", "gpm", FIRST)
    write_run(tmp_path / "runs/b", "code-cl", SECOND)
    write_run(tmp_path / "runs/c", "sgp", recipe_only=True)
    write_run(tmp_path / "runs/d", "gpm", FIRST)
    code, out, err = codecl(capsys, "report", tmp_path / "runs", "--out", tmp_path / "out", "--no-figures")
    assert (code, err) == (0, "")
    runs = f"{tmp_path}/runs"
    assert (tmp_path / "out/tables/results.txt").read_text().replace("../runs", runs) in out
    assert "Memory" not in out
    assert (
        "  code-cl is ahead with ACC 88.00 %: +8.00 over gpm, the next and the baseline (one seed, may be noise).\n"
        in out
    )
    assert "../runs" not in out  # what is printed can be pasted
    assert f"{runs}/c: not finished: no task learned yet\n" in out
    assert f"{runs}/d: repeats seed 0 of {runs}/a; not counted\n" in out
    assert f"{tmp_path / 'out' / 'tables'}: 4 tables as" in out
    assert f"{tmp_path / 'out' / 'report.html'}: the page" in out


def test_a_damaged_record_is_named_and_the_rest_reported(tmp_path, capsys):
    write_run(tmp_path / "runs/a", "gpm")
    write_run(tmp_path / "runs/b", "gpm", seed=1)
    (tmp_path / "runs/b/result.json").write_text("{")
    code, out, err = codecl(capsys, "report", tmp_path / "runs", "--out", tmp_path / "out", "--no-figures")
    assert code == 2
    assert "80.00" in out
    assert err.startswith(f"codecl: left out as damaged: {tmp_path}/runs/b/result.json is damaged: ")
    assert err.count("\n") == 1
    assert "../runs/b" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no directory nowhere"),
        (["empty"], "no finished run in empty"),
        (["unfinished"], "no finished run in unfinished; unfinished is not finished: no task learned yet."),
        (["broken"], "no finished run in broken; broken/result.json is damaged: it must be a table; got []."),
        (["runs", "--baseline", "gmp"], "there is no run of the baseline 'gmp'. Did you mean 'gpm'?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_nothing_is_written(tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "unfinished", "gpm", recipe_only=True)
    write_run(tmp_path / "runs", "gpm")
    write_run(tmp_path / "broken", "gpm")
    (tmp_path / "broken/result.json").write_text("[]")
    code, out, err = codecl(capsys, "report", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "report").exists()


def test_without_matplotlib_a_report_says_what_to_do_and_does_without(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_run(tmp_path / "runs", "gpm")
    code, _, err = codecl(capsys, "report", tmp_path / "runs", "--out", tmp_path / "out")
    assert (code, (tmp_path / "out").exists()) == (2, False)
    advice = (
        "pip install 'codecl[report]' (in a checkout: pip install '.[report]'), or leave them out with --no-figures."
    )
    assert err == f"codecl: figures need matplotlib: {advice}\n"
    assert codecl(capsys, "report", tmp_path / "runs", "--out", tmp_path / "out", "--no-figures")[0] == 0


def test_a_summary_has_no_figures_of_single_runs(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for name, accuracy in {"gpm": FIRST, "code-cl": SECOND}.items():
        write_run(tmp_path / "runs" / name, name, accuracy, log=[epoch(0, 1), task(0, 0.5)])
    code, out, _ = codecl(capsys, "report", tmp_path / "runs", "--out", tmp_path / "out", "--summary")
    assert code == 0
    assert "Figures of single runs were left out." in out
    drawn = sorted(file.stem for file in (tmp_path / "out" / "figures").glob("*.svg"))
    assert drawn == [f"seen-{WHOLE}", f"tasks-{WHOLE}", f"tradeoff-{WHOLE}"]
