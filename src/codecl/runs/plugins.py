"""Methods and benchmarks by name: those of the library, and a user's own as ``package.module:Name``."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping

from codecl.benchmarks.registry import BENCHMARKS, Benchmark
from codecl.errors import UsageError
from codecl.methods import METHODS, Method
from codecl.text import unknown_name


def is_plugin(name: str) -> bool:
    """Whether ``name`` is a user's own, which must be imported."""
    return ":" in name


def find_method(name: str) -> type[Method]:
    """The method of this name.

    >>> find_method("gpm").__name__
    'GPM'
    """
    found = _find("method", name, METHODS)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UsageError(f"{name!r} is not a subclass of codecl.Method.")
    return found


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of this name."""
    found = _find("benchmark", name, BENCHMARKS)
    if not isinstance(found, Benchmark):
        raise UsageError(f"{name!r} is not a Benchmark of codecl.benchmarks.registry.")
    return found


def title(name: str) -> str:
    """What tables call a method: its name, and what its label adds."""
    label = METHODS[name].label if name in METHODS else ""
    return f"{name} ({label})" if label else name


def own_name(method: type[Method]) -> str:
    """What a method of the user's own calls itself; the name of its class, if it has not chosen one."""
    return method.name if method.name not in METHODS else method.__name__


def _find(what: str, name: str, known: Mapping[str, object]) -> object:
    """What ``name`` names, also in the current directory: looked at last, where it cannot hide anything installed."""
    if not is_plugin(name):
        if name not in known:
            raise UsageError(unknown_name(what, name, known))
        return known[name]
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a module of the user's raises
        raise UsageError(f"the {what} {name!r} cannot be imported: {type(error).__name__}: {error}.") from error
