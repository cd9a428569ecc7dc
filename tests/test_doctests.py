"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import codecl

EXTRAS = {"codecl.integrations.avalanche": "avalanche"}
"""Modules that a package outside the development extras is needed for."""
FOUND = [module.name for module in pkgutil.walk_packages(codecl.__path__, "codecl.") if "__main__" not in module.name]
MODULES = [name for name in FOUND if name not in EXTRAS or importlib.util.find_spec(EXTRAS[name])]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = {name: [test for test in finder.find(importlib.import_module(name)) if test.examples] for name in MODULES}
    assert len([name for name, tests in found.items() if tests]) >= 5
