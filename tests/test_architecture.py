"""Imports point one way, and importing the package costs and changes nothing."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import codecl

PACKAGE = Path(codecl.__file__).parent
ORDER = (
    "algebra",
    "layers",
    "attach",
    "method",
    "methods",
    "integrations",
    "networks",
    "training",
    "benchmarks",
    "runs",
    "report",
    "cli",
)
"""Each folder may import from those before it, and from the modules at the top, which import from nothing."""
AFTER_IMPORT = """
import random, sys, torch
before, state, threads = set(sys.modules), torch.get_rng_state(), torch.get_num_threads()
python = random.getstate()
import codecl
assert torch.equal(state, torch.get_rng_state()) and torch.get_num_threads() == threads
assert random.getstate() == python
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(new - set(sys.stdlib_module_names) - {"torch"})))
"""


def imported_parts(path: Path) -> set[str]:
    """The sub-packages of codecl that a file imports from."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module or "")
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("codecl.")}


def test_every_part_has_a_place_in_the_order():
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ORDER)


def test_imports_point_one_way():
    top = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    for i, part in enumerate(ORDER):
        for path in (PACKAGE / part).rglob("*.py"):
            assert imported_parts(path) <= {*ORDER[: i + 1], *top}, path
    for name in top:
        assert not imported_parts(PACKAGE / f"{name}.py"), f"{name} stands below all folders"


def test_the_core_imports_torch_alone_and_changes_nothing():
    result = subprocess.run([sys.executable, "-c", AFTER_IMPORT], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["codecl"]


def test_the_readme_leads_to_files_that_exist_in_every_folder():
    readme = (PACKAGE.parent.parent / "README.md").read_text()
    section = readme.split("## Find your way")[1].split("\n\n`import codecl`")[0]
    named = [name for row in section.splitlines() if row.startswith("| ") for name in re.findall(r"`([\w./-]+)`", row)]
    assert [name for name in named if not (PACKAGE / name).is_file()] == []
    assert {name.split("/")[0] for name in named if "/" in name} == set(ORDER)
    firsts = [name.split("/")[0] for name in named if "/" in name]
    assert list(dict.fromkeys(firsts)) == list(ORDER)  # in the order in which they import
