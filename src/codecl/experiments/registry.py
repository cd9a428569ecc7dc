"""The methods and benchmarks that a command can name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from codecl.methods import CodeCL, Method
from codecl.training.stream import Stream


class UsageError(ValueError):
    """Something a user asked for that cannot be: the command line prints it in one line and exits with 2."""


@dataclass(frozen=True)
class Benchmark:
    """A stream of tasks and the network it is learned with."""

    name: str
    summary: str
    stream: Callable[[], Stream]
    network: Callable[[Stream], nn.Module]


METHODS: dict[str, type[Method]] = {"code-cl": CodeCL, "finetune": Method}


def _digits() -> Benchmark:
    from codecl.experiments import digits

    return Benchmark("permuted-digits", "embedded: 5 tasks of shuffled 8×8 digits, MLP", digits.stream, digits.network)


BENCHMARKS: dict[str, Callable[[], Benchmark]] = {"permuted-digits": _digits}
EMBEDDED = "permuted-digits"


def find_method(name: str) -> type[Method]:
    """A method by name, or a user's own by ``package.module:Class``."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"the method {name!r} cannot be imported: {error}.") from error
        if not (isinstance(found, type) and issubclass(found, Method)):
            raise UsageError(f"{name!r} is not a subclass of codecl.Method.")
        return found
    if name not in METHODS:
        raise UsageError(_unknown("method", name, METHODS))
    return METHODS[name]


def find_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise UsageError(_unknown("benchmark", name, BENCHMARKS))
    return BENCHMARKS[name]()


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"there is no {what} {name!r}.{hint} Known: {', '.join(known)}."
