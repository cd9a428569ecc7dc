"""What a user asked for that cannot be."""


class UsageError(ValueError):
    """The command line prints it in one line and exits with 2."""
