"""Runs that the tests of run directories share: one that ended, and one that was stopped."""

import shutil

import pytest

from codecl.runs.run import run
from codecl.runs.rundir import RunDirectory
from tests.runs.directories import RECIPE, Stop, stop_at


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    run(RECIPE, RunDirectory(path))
    return path


@pytest.fixture(scope="session")
def stopped_once(tmp_path_factory):
    """A run that was stopped in its second task, when the third epoch was logged but not saved."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        run(RECIPE, RunDirectory(path), (stop_at("epoch", 1, 3),))
    return path


@pytest.fixture
def stopped(stopped_once, tmp_path):
    return shutil.copytree(stopped_once, tmp_path / "run")
