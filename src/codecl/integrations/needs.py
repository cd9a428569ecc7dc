"""Packages that only an integration needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from codecl.text import installing


@contextmanager
def needs(*packages: str, extra: str) -> Iterator[None]:
    """Around imports of ``packages``: where one is missing, say how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise ModuleNotFoundError(
            f"this integration needs {' and '.join(packages)}; missing is {error.name}. "
            f"Install it: {installing(extra)}.",
            name=error.name,
        ) from None
