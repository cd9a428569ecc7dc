"""``python -m codecl`` is the command ``codecl``."""

import sys


def main() -> int:
    """Run the command; stopping it while it still loads is no reason for a traceback."""
    try:
        from codecl.cli.main import main as command
    except KeyboardInterrupt:
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
