"""What a user asked for that cannot be, and the exit codes of the command."""

from collections.abc import Iterator
from contextlib import contextmanager

FAILED, USAGE, STOPPED = 1, 2, 130


class UsageError(ValueError):
    """The command line prints it in one line and exits with ``USAGE``."""


@contextmanager
def refusing(what: str, *others: type[Exception], advice: str = "") -> Iterator[None]:
    """A ``ValueError``, or one of ``others``, becomes a ``UsageError`` about ``what``.

    >>> with refusing("seed: "):
    ...     int("x")
    Traceback (most recent call last):
    codecl.errors.UsageError: seed: invalid literal for int() with base 10: 'x'
    """
    kinds: tuple[type[Exception], ...] = (ValueError, *others)
    try:
        yield
    except UsageError:
        raise
    except kinds as error:
        raise UsageError(f"{what}{error}{advice}") from error
