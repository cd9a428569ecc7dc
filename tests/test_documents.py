"""What README, CONTRIBUTING and docs tell a reader to type works as printed, and what they name is there.

Every block is of a known kind, and each kind is tried:

    python     runs, in a namespace of its own; on a page of ``CHAINED``, in one namespace for the page
    text       is what the block above printed, if that is Python; numbers may differ a little on another machine
    console    runs in a temporary directory: commands of codecl on the embedded benchmark under a tiny budget, on
               others as far as the complete recipe; targets of make, extras of pip and files of python are there
    toml, json parse
    bash       has no fault of syntax
    {name}     is a directive, which ``make docs`` runs
"""

import importlib
import json
import math
import re
import shlex
import subprocess
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import codecl
from codecl.benchmarks.registry import EMBEDDED
from codecl.cli import compare as compare_command
from codecl.cli import sweep as sweep_command
from codecl.cli.main import build_parser, main
from codecl.layers import base as kinds
from codecl.runs.run import run
from codecl.runs.run_many import Children
from codecl.runs.rundir import RunDirectory
from tests.integrations import torchvision_operators

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
CHAINED = ("docs/tutorial.md", "docs/algebra.md", "docs/howto/add-a-benchmark.md", "docs/howto/serve.md")
NEEDS = {"docs/integrations/avalanche.md": "avalanche", "docs/integrations/timm.md": "timm"}
"""Pages with a package that the dev extra leaves out."""
DIRECTIVES = {"{toctree}", "{include}", "{command}", "{eval-rst}"}
LAST_DIGITS = 15
"""How many units of its last digit a printed number may be away, where training on another machine rounds otherwise."""
BUDGET = ("--tasks", "2", "--epochs", "1", "--set", "batch_size=200", "--quiet")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Block:
    """A block of code: its kind, which is empty if it is indented, and where it stands."""

    kind: str
    text: str
    place: str


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def blocks_of(path):
    tokens = [t for t in MarkdownIt().parse(path.read_text()) if t.type in ("fence", "code_block")]
    return [Block(t.info.split(" ")[0], t.content, f"{name_of(path)}:{t.map[0] + 1}") for t in tokens]


BLOCKS = {name_of(path): blocks_of(path) for path in DOCUMENTS}
PROGRAMS = {
    block.place: [block] for name, blocks in BLOCKS.items() for block in blocks
    if block.kind == "python" and name not in CHAINED
}  # fmt: skip
PROGRAMS |= {name: [block for block in BLOCKS[name] if block.kind == "python"] for name in CHAINED}


def lines_of(block):
    """The commands of a console block, or of an indented one, which has no prompts."""
    prompt = "$ " if block.kind == "console" else ""
    lines = block.text.splitlines()
    assert all(line.startswith(prompt) for line in lines), f"{block.place}: what is printed goes into a block of text"
    return [line.removeprefix(prompt) for line in lines]


SESSIONS = {
    name: lines for name, blocks in BLOCKS.items()
    if (lines := [line for block in blocks if block.kind in ("console", "") for line in lines_of(block)])
}  # fmt: skip


@pytest.fixture
def in_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))  # what a block registers ends with it
    return tmp_path


@pytest.mark.parametrize("place", PROGRAMS)
def test_python_runs_and_prints_what_the_page_says(place, in_a_directory, capsys):
    if place.startswith("docs/integrations/"):
        warnings.simplefilter("ignore")  # other trainers have much advice
    if package := NEEDS.get(place.rpartition(":")[0]):
        torchvision_operators.declare()
        pytest.importorskip(package)
    namespace = {"__name__": "document"}
    for block in PROGRAMS[place]:
        exec(compile(block.text, block.place, "exec"), namespace)
        printed = capsys.readouterr().out
        if (shown := text_below(block)) is not None:
            assert_alike(printed, shown.text, shown.place)


def text_below(block):
    """The block of text that comes next on the page."""
    blocks = BLOCKS[block.place.rpartition(":")[0]]
    after = blocks[blocks.index(block) + 1 :][:1]
    return after[0] if after and after[0].kind == "text" else None


def assert_alike(printed, shown, place):
    number = re.compile(r"[-+]?\d+(?:\.(\d+))?")
    words = [" ".join(number.sub("#", text).split()) for text in (printed, shown)]
    assert words[0] == words[1], f"{place} shows something else than is printed:\n{printed}"
    for ours, theirs in zip(number.finditer(printed), number.finditer(shown), strict=True):
        slack = LAST_DIGITS * 10.0 ** -len(ours[1]) if ours[1] else 0
        assert math.isclose(float(ours[0]), float(theirs[0]), abs_tol=slack), f"{place}: {theirs[0]}, now {ours[0]}"


@pytest.mark.parametrize("name", SESSIONS)
def test_commands_run(name, in_a_directory, monkeypatch, capsys):
    monkeypatch.setattr(Children, "run", run_here)
    my_method_of_contributing(in_a_directory, monkeypatch)
    for line in SESSIONS[name]:
        for words, target in split(line):
            {"codecl": try_codecl, "make": try_make, "pip": try_pip, "python": try_python}[words[0]](
                words[1:], monkeypatch
            )
            printed = capsys.readouterr().out
            if target:
                Path(target).write_text(printed)


def split(line):
    """The commands of a line, each as words and the file that its output goes to."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";>")
    lexer.whitespace_split = True
    commands, words = [], []
    for word in [*lexer, ";"]:
        if word == ";":
            into = words.index(">") if ">" in words else len(words)
            commands.append((words[:into], "".join(words[into + 1 :])))
            words = []
        else:
            words.append(word)
    return commands


def try_codecl(words, monkeypatch):
    options = build_parser().parse_args(words)
    if words[:2] == ["data", "get"]:
        return  # only the network is missing
    several, extra = words[0] in ("compare", "sweep"), []
    with monkeypatch.context() as patched:
        if several or (words[0] == "run" and options.resume is None):
            extra = [*BUDGET, *(("--seeds", "0", "--jobs", "1", "--on", "local") if several else ())]
            extra += ["--trials", "1"] if getattr(options, "search", ()) else []
            if options.benchmark not in (None, EMBEDDED):
                extra = [] if several else ["--dry-run"]
                for module in (compare_command, sweep_command):  # recipes are made, and not run
                    patched.setattr(module, "run_and_show", lambda *_: 0)
        extra += ["--no-figures"] if words[0] == "report" else []
        assert main([*words, *extra]) == 0, " ".join(words)


def run_here(children, path, threads, on_event):
    """A run of ``compare`` in this process: another one would spend seconds on importing torch."""
    directory = RunDirectory(path, trust=True)
    run(directory.recipe(), directory, (on_event,), children.root)
    return ""


def my_method_of_contributing(folder, monkeypatch):
    """``mypackage.mymodule:MyMethod``, which the documents compare."""
    (block,) = [block for block in BLOCKS["CONTRIBUTING.md"] if "class MyMethod" in block.text]
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "mymodule.py").write_text(block.text)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()


def try_make(words, _):
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, assigned, _ = word.partition("=")
        pattern = rf"^{name} \?=" if assigned else rf"^{name}:.*##"
        assert re.search(pattern, makefile, re.MULTILINE), f"make has no {word}"


def try_pip(words, _):
    assert words[0] == "install"
    for word in words[1:]:
        what, extras = re.fullmatch(r"([\w.-]+)(?:\[([\w,]+)\])?", word).groups()
        assert what in (".", "-e", "codecl"), f"pip installs {word}"
        assert set(extras.split(",") if extras else ()) <= PROJECT["optional-dependencies"].keys(), word


def try_python(words, _):
    assert (ROOT / words[0]).is_file(), f"there is no {words[0]}"


def test_every_block_is_of_a_known_kind():
    tried = {"python", "console", "text", "toml", "json", "bash", ""} | DIRECTIVES
    for blocks in BLOCKS.values():
        for block, above in zip(blocks, [None, *blocks], strict=False):
            assert block.kind in tried, f"{block.place}: a block of {block.kind!r} is not tried by any test"
            if block.kind == "text":
                assert above is not None, block.place
                assert above.kind in ("python", "console"), f"{block.place}: nothing above prints this"
            if parse := {"toml": tomllib.loads, "json": json.loads, "bash": check_bash}.get(block.kind):
                parse(block.text)


def check_bash(text):
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_links_between_documents_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", path.read_text()):
            assert target.startswith("https://") or (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_map_leads_to_symbols_that_exist():
    for path in DOCUMENTS:
        for file, symbol in re.findall(r"`([\w/]+\.py):([\w.]+)`", path.read_text()):
            found = importlib.import_module("codecl." + file.removesuffix(".py").replace("/", "."))
            for part in symbol.split("."):
                assert hasattr(found, part), f"{name_of(path)}: {file} has no {symbol}"
                found = getattr(found, part)


def test_the_map_leaves_out_no_equation_and_no_line():
    text = (DOCS / "notation.md").read_text()
    assert re.findall(r"^\| equation (\d+) \|", text, re.MULTILINE) == [str(i) for i in range(1, 11)]
    for heading, numbers in {"Algorithm 1": {*range(1, 28)} - {9}, "Algorithm 2": {*range(1, 10)}}.items():
        section = text.partition(f"## {heading}")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (\d+)(?:–(\d+))? \|", section, re.MULTILINE)
        covered = [i for first, last in rows for i in range(int(first), int(last or first) + 1)]
        assert covered == sorted(numbers), heading


def test_every_command_has_its_place():
    (commands,) = [action.choices for action in build_parser()._actions if action.choices]
    text = (DOCS / "commands.md").read_text()
    described = re.findall(r"^## codecl (\w+)\n\n```\{command\} (\w+)\n```$", text, re.MULTILINE)
    assert described == [(name, name) for name, _ in described]
    assert sorted(name for name, _ in described) == sorted(commands)


def test_every_public_name_is_described_once():
    pages = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    described = re.findall(r"\.\. auto(?:class|function|exception):: codecl\.(\w+)$", pages, re.MULTILINE)
    assert sorted(described) == sorted(set(codecl.__all__) - {"__version__"})
    listed = re.findall(r"^   codecl\.(\w+)$", (DOCS / "api" / "index.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(described)


def test_every_page_is_in_the_tree():
    listed = {DOCS / "index.md"}
    for path in PAGES:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL):
            listed |= {path.parent / f"{line}.md" for line in tree.splitlines() if line and not line.startswith(":")}
    assert listed == set(PAGES)


def test_formulas_are_understood_without_a_network():
    """Every formula becomes MathML, in which no command of LaTeX is left over."""
    convert = pytest.importorskip("latex2mathml.converter").convert
    parser = MarkdownIt().use(pytest.importorskip("mdit_py_plugins.dollarmath").dollarmath_plugin)
    formulas = []
    for page in PAGES:
        for token in parser.parse(page.read_text()):
            formulas += [inner.content for inner in [token, *(token.children or [])] if inner.type.startswith("math_")]
    assert len(formulas) > 50
    for formula in formulas:
        assert "\\" not in re.sub(r"<[^>]*>", "", convert(formula)), formula
