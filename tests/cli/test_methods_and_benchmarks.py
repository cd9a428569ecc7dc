"""``codecl methods`` and ``codecl benchmarks``: what there is, and what each hyperparameter means."""

import inspect

import pytest

from codecl.benchmarks.registry import BENCHMARKS
from codecl.cli.methods import meanings_of
from codecl.methods import METHODS, Method
from tests.runs.running import codecl


def test_methods_are_listed_with_their_hyperparameters(capsys):
    code, out, _ = codecl(capsys, "methods")
    assert code == 0
    names = [line for line in out.splitlines() if not line.startswith(" ")]
    assert names == list(METHODS)
    assert "aperture=6.0, " in out
    assert "free_dims=80, overlap=0.5" in out


def test_benchmarks_are_listed(capsys):
    code, out, _ = codecl(capsys, "benchmarks")
    assert code == 0
    for name, benchmark in BENCHMARKS.items():
        assert name in out
        assert benchmark.summary in out


def test_a_page_on_a_method_says_what_each_hyperparameter_means(capsys):
    code, out, err = codecl(capsys, "methods", "code-cl")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    at = lines.index("  free_dims = 80")
    assert lines[at + 1 : at + 3] == [
        "      K: how many shared directions are freed",
        "      paper: 20 on permuted-digits",
    ]
    official = codecl(capsys, "methods", "code-cl", "--preset", "official")[1].splitlines()
    at = official.index("  replace = false")
    assert official[at + 2] == f"      official: true on {', '.join(BENCHMARKS)}"


@pytest.mark.parametrize("name", METHODS)
def test_every_hyperparameter_of_every_method_is_described(name, capsys):
    assert "not described" not in codecl(capsys, "methods", name)[1]


@pytest.mark.parametrize("name", METHODS)
def test_meanings_are_found_in_docstrings_with_and_without_their_indentation(name):
    """Python 3.13 takes it off when it compiles a class."""
    bare = inspect.cleandoc(METHODS[name].__doc__)
    ours, theirs = (
        meanings_of(type("Same", (Method,), {"__doc__": doc})) for doc in (bare, bare.replace("\n", "\n    "))
    )
    assert ours == theirs
