"""What the tests of checkpoints share."""

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all draws of a test."""
    return tmp_path_factory.mktemp("checkpoints")
