"""Settings for every test: reproducible draws, one thread for each worker, what comes first and what is left out."""

import os
import re

import pytest
import torch
from hypothesis import HealthCheck, settings

# A drawn case builds tensors, and its first call may load a library: time is not a sign of a bad test.
settings.register_profile(
    "usual", derandomize=True, deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("usual"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("usual"), derandomize=False, max_examples=1000)

SLOW_FILE = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)

torch.set_num_threads(1)


def is_quick(config):
    """Whether this is ``make quick``."""
    return config.option.markexpr == "not slow"


@pytest.hookimpl(tryfirst=True)  # --hypothesis-profile comes after it, and wins
def pytest_configure(config):
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick" if is_quick(config) else "usual"))


def pytest_ignore_collect(collection_path, config):
    """Files that are slow as a whole are not imported where they are left out: some import large libraries."""
    is_slow = is_quick(config) and collection_path.suffix == ".py" and SLOW_FILE.search(collection_path.read_text())
    return True if is_slow else None


def pytest_collection_modifyitems(items):
    """Files with slow tests come first: of two workers none is left alone with a long file at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
