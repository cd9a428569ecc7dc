"""Checks of what every method promises, for the methods here and for a user's own.

    from codecl import check_method

    check_method(MyMethod)  # or check_method(lambda model: MyMethod(model, strength=2.0))

Each check takes a function that makes the method, and raises an ``AssertionError`` that says which promise failed.
"""

from __future__ import annotations

from collections.abc import Callable

from codecl.method.method import Method
from codecl.training.check import hardships, loops, promises
from codecl.training.check.setting import PLAN, Make, Memory, Network, Stop, network, same_weights, small_stream

__all__ = [
    "CHECKS", "PLAN", "Make", "Memory", "Network", "Stop", "check_method", "network", "same_weights", "small_stream",
]  # fmt: skip

CHECKS: tuple[Callable[[Make], None], ...] = tuple(
    check
    for module in (promises, hardships, loops)
    for name, check in vars(module).items()
    if name.startswith("check_")
)


def check_method(make: Make) -> list[str]:
    """Run every check on a method.

    Args:
        make: A function that attaches the method to a model: its class, or a ``lambda model: …`` with settings.

    Returns:
        The names of the checks; all of them passed, or an ``AssertionError`` says in one line which promise failed and
        on what.
    """
    made = make(network()) if callable(make) else make
    if not isinstance(made, Method):
        got = f"one that gives a {type(made).__name__}" if callable(make) else f"{make!r:.80}"
        raise TypeError(
            f"check_method takes a function of a model that gives a codecl.Method: its class, or lambda model: "
            f"MyMethod(model, strength=2.0); got {got}."
        )
    name = made.name
    for check in CHECKS:
        promise = " ".join((check.__doc__ or "").partition("\n\n")[0].split())
        try:
            check(make)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            what = " ".join(str(error).split())
            raise AssertionError(f"{name} breaks a promise, {check.__name__}: {promise} {kind}{what}") from error
    return [check.__name__ for check in CHECKS]
