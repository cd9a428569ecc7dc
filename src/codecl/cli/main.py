"""The command ``codecl``."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence

import codecl
from codecl.cli import benchmarks, compare, data, inspect, memory, methods, report, run, sweep
from codecl.cli.options import Parser, say
from codecl.errors import FAILED, STOPPED, USAGE, UsageError
from codecl.training.schedule import Diverged

COMMANDS = (run, compare, sweep, report, inspect, data, memory, methods, benchmarks)
"""The order in which ``codecl --help`` has them."""
FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
    except (UsageError, ModuleNotFoundError) as error:
        say(f"codecl: {error}")
        return USAGE
    except Diverged as error:
        say(f"codecl: {error}")
        return FAILED
    except KeyboardInterrupt:
        say("codecl: stopped. What was computed is kept; the same command again goes on.")
        return STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        full = " Free some space; the same command again goes on." if error.errno in FULL else ""
        say(f"codecl: {error}.{full}")
        return FAILED


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="codecl", description="Continual learning by gradient projection.")
    parser.add_argument("--version", action="version", version=f"codecl {codecl.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
