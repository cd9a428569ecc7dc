"""The command ``codecl``."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import codecl
from codecl.cli import benchmarks, compare, data, export, inspect, memory, methods, repeat, report, run, sweep, watch
from codecl.cli.options import Parser, warn
from codecl.errors import FAILED, STOPPED, USAGE, UsageError
from codecl.files import FULL, NotRegular
from codecl.runs.processes import ProcessLost
from codecl.training.schedule import Diverged

COMMANDS = (run, compare, sweep, repeat, watch, report, inspect, export, data, memory, methods, benchmarks)
"""The order in which ``codecl --help`` has them."""
NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""A path that the user gave leads nowhere."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        stop_when_terminated()
        code: int = options.command(options)
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
    except ProcessLost as error:
        warn(str(error))
        sys.stdout.flush()
        os._exit(USAGE)
    except (UsageError, ModuleNotFoundError) as error:
        warn(str(error))
        return USAGE
    except Diverged as error:
        warn(str(error))
        return FAILED
    except KeyboardInterrupt:
        warn("stopped. What was computed is kept; the same command again goes on.")
        return STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        odd = isinstance(error, NotRegular | IsADirectoryError)
        advice = " Free some space; the same command again goes on." if error.errno in FULL else ""
        advice = " Move it away; the same command again goes on." if odd else advice
        where = f"{error.filename}: " if error.filename is not None else ""
        warn(f"{where}{error.strerror or error}.{advice}")
        return USAGE if odd or error.errno in NO_PLACE else FAILED


def stop_when_terminated() -> None:
    """Let SIGTERM stop the command as Ctrl-C does: schedulers send it before they take a machine away."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="codecl", description="Continual learning by gradient projection.")
    parser.add_argument("--version", action="version", version=f"codecl {codecl.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
