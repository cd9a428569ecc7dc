"""What a user asked for that cannot be, and the exit codes of the command."""

FAILED, USAGE, STOPPED = 1, 2, 130


class UsageError(ValueError):
    """The command line prints it in one line and exits with ``USAGE``."""
