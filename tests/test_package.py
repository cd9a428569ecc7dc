"""The built package: a wheel with all it needs, which installs by itself and runs."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import codecl

pytest.importorskip("hatchling")

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built as ``python -m build --wheel --no-isolation`` builds it: by the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("dist")
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["build-backend"]
    code = f"import {backend} as backend, sys; print(backend.build_wheel(sys.argv[1]))"
    built = run(sys.executable, "-c", code, str(folder), cwd=ROOT)
    return folder / built.stdout.split()[-1]


def run(*command, **settings):
    result = subprocess.run(command, capture_output=True, text=True, **settings)
    assert result.returncode == 0, result.stderr
    return result


def test_the_wheel_holds_every_file_of_the_package(wheel):
    assert wheel.name == f"codecl-{codecl.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("codecl/")}
    there = {p.relative_to(SOURCE).as_posix() for p in (SOURCE / "codecl").rglob("*") if p.is_file()}
    assert held == {name for name in there if "__pycache__" not in name}
    assert {"codecl/py.typed", "codecl/benchmarks/recipes/split-cifar100.toml"} <= held


@pytest.mark.slow
def test_it_installs_in_a_fresh_environment_and_runs(wheel, tmp_path):
    """Without its dependencies, which are those of this environment: torch is large."""
    python = tmp_path / "venv/bin/python" if os.name != "nt" else tmp_path / "venv/Scripts/python.exe"
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    run(sys.executable, "-m", "pip", "-q", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (purelib,) = (tmp_path / "venv").glob("[Ll]ib/**/site-packages")
    (purelib / "torch.pth").write_text(sysconfig.get_path("purelib"))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    where = run(str(python), "-c", "import codecl; print(codecl.__file__)", cwd=tmp_path, env=environment).stdout
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert "compare" in run(str(python.with_name("codecl")), "--help", cwd=tmp_path, env=environment).stdout
