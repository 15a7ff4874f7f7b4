"""`formerlab <command>`, or `python -m formerlab <command>`: create a project, run it and read its results."""

import argparse
import errno
import os
import signal
import sys
import textwrap
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType

from formerlab.commands import demo, huggingface, listing, plan, reproduce, results, stages, tools
from formerlab.errors import EXIT_FAILED, EXIT_STOPPED_EARLY, EXIT_USER_ERROR, StoppedEarly, UserError, missing_package
from formerlab.files import DiskFull, is_disk_full

GROUPS = {
    "projects": ("init", "demo", "plan", "status", "ui"),
    "results": ("report", "headline", "claims", "runs", "figures", "export", "readme", "reproduce"),
    "models": ("list", "generate", "answer-tasks"),
    "other formats": ("export-huggingface", "import-tokenformer"),
}
"""The commands for users, by topic, without the commands that only Snakemake calls."""

REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Missing permission, or a read-only disk."""
MISPLACED = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST)
"""A folder at the path of a file, or a file at the path of a folder."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all commands."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="formerlab", usage="%(prog)s <command> ...", description=__doc__, formatter_class=layout
    )
    commands = parser.add_subparsers(prog="formerlab", required=True, metavar="<command>", help=argparse.SUPPRESS)
    for module in (plan, stages, results, demo, tools, listing, huggingface, reproduce):
        module.add_parsers(commands)
    listed = {name for names in GROUPS.values() for name in names}
    lines = []
    for title, names in GROUPS.items():
        lines += [f"\n{title}:", *(f"  {name:<20}{commands.choices[name].description}" for name in names)]
    stages_of_dag = textwrap.fill(" ".join(name for name in commands.choices if name not in listed), 100)
    parser.epilog = "\n".join(
        [*lines, f"\ncalled by Snakemake (`formerlab plan --shell` prints the calls):\n{stages_of_dag}"]
    )
    return parser


def main(command: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 failed, 2 user error, 75 stopped early (run it again)."""
    let_signals_interrupt()
    os.environ["MPLBACKEND"] = "agg"  # the environment of a notebook may name a missing backend
    arguments = build_parser().parse_args(command)
    try:
        arguments.function(arguments)
    except UserError as error:
        _print_message(f"error: {error}")
        return EXIT_USER_ERROR
    except StoppedEarly as reason:
        _print_message(str(reason))
        return EXIT_STOPPED_EARLY
    except KeyboardInterrupt:
        _print_message("interrupted; finished work is saved, run the same command again to continue")
        return EXIT_STOPPED_EARLY
    except BrokenPipeError:
        return EXIT_FAILED
    except Exception as error:
        if line := _user_error(error):
            _print_message(f"error: {line}")
            return EXIT_USER_ERROR
        traceback.print_exc()
        return EXIT_FAILED
    return 0


def let_signals_interrupt() -> None:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt; an ignored signal (nohup) stays ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)


def _user_error(error: Exception) -> str | None:
    """Return a message if an error of another library is a mistake of the user, otherwise None."""
    if is_disk_full(error):
        return str(DiskFull(Path(getattr(error, "filename", None) or "a file")))
    if isinstance(error, OSError) and error.errno in REFUSED and error.filename is not None:
        return f"{error.filename}: {error.strerror}; give this user access to it, or choose another folder"
    if isinstance(error, OSError) and error.errno in MISPLACED and error.filename is not None:
        return f"{error.filename2 or error.filename}: {error.strerror}; choose another file or folder"
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("formerlab"):
        return f"this {missing_package(error)}"
    return None


def _print_message(line: str) -> None:
    with suppress(OSError):  # keep the exit status if the log is on a full disk
        print(line, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
