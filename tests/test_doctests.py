"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import codecl

MODULES = [module.name for module in pkgutil.walk_packages(codecl.__path__, "codecl.") if "__main__" not in module.name]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = {name: [test for test in finder.find(importlib.import_module(name)) if test.examples] for name in MODULES}
    assert len([name for name, tests in found.items() if tests]) >= 5
