"""How a command ends: whatever it raises becomes one line on stderr, beginning ``error:``, and an exit code."""

import errno
import reprlib
import sys
import warnings
from typing import Any

import typer

from robust201.cli import console
from robust201.cli.help_texts import KEEP_FINISHED_WORK
from robust201.core.errors import (
    EvaluationError,
    InputError,
    RobustError,
    RobustWarning,
    StorageError,
    one_line,
    shorten,
)
from robust201.core.interrupts import ending_signals_as_interrupt

# Public in click only, which newer versions of Typer carry inside under another name.
_UsageError: Any = typer.BadParameter.__base__
_INTERRUPTED = 130
"""What Typer makes of a KeyboardInterrupt."""
_BAD_NAMES = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
"""What the system says of a path that cannot be what it was named for."""


def run_to_exit_code(app: typer.Typer) -> int:
    """Run the command that ``sys.argv`` names; give 0 complete, 2 bad input, 3 incomplete or interrupted, 4 storage."""
    show = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *arguments: Any, **named: Any) -> None:
        if issubclass(category, RobustWarning):
            console.say(shorten(f"warning: {str(message).rstrip('.')}."))
        else:
            show(message, category, *arguments, **named)

    try:
        with warnings.catch_warnings(), ending_signals_as_interrupt():
            warnings.showwarning = tell
            warnings.simplefilter("always", RobustWarning)
            code = app(sys.argv[1:] or ["--help"], prog_name="robust201", standalone_mode=False) or 0
        if code != _INTERRUPTED:
            return int(code)
    except (RobustError, _UsageError, ImportError, OSError, MemoryError) as error:
        message, code = _describe(error)
        console.say(shorten("error: " + " ".join(message.splitlines())))
        return code
    except (KeyboardInterrupt, typer.Abort):
        pass
    resumes = sys.argv[1:2] and sys.argv[1] in KEEP_FINISHED_WORK
    kept = " Finished work is kept; run the same command again to resume." if resumes else ""
    console.say(f"Interrupted.{kept}")
    return EvaluationError.exit_code


def _describe(error: Exception) -> tuple[str, int]:
    if isinstance(error, RobustError):
        return str(error), error.exit_code
    if isinstance(error, ImportError):
        return (
            f"Starting failed for robust201 {' '.join(sys.argv[1:2])}: expected the packages that this needs, got none "
            f"({error}). Reinstall robust201 with -c constraints.txt; robust201 doctor shows what is missing."
        ), InputError.exit_code
    if isinstance(error, MemoryError):
        return (
            f"Allocating memory failed for robust201 {' '.join(sys.argv[1:2])}: it needs more than this process may use"
            f"{f' ({one_line(error)})' if str(error) else ''}. Raise the limit (ulimit -v), or use a machine with more "
            "memory."
        ), EvaluationError.exit_code
    if isinstance(error, OSError) and error.errno in _BAD_NAMES:
        return (
            f"Opening failed for {reprlib.repr(error.filename)}: expected a valid path, got an impossible one "
            f"({error.strerror}). Name another."
        ), InputError.exit_code
    if isinstance(error, OSError):
        return (
            f"Reading or writing failed for {error.filename or 'the output'}: expected it to work, got "
            f"{error.strerror or error}. Check the path, its permissions and the free space, and try again."
        ), StorageError.exit_code
    usage: Any = error  # what click says of a command line
    command = usage.ctx.command_path if usage.ctx else "robust201"
    what = usage.format_message().rstrip(".")
    stop = "" if what.endswith("?") else "."  # a question of click's is a sentence already
    return f"Reading the command line failed for {command}: {what}{stop} See: {command} --help", InputError.exit_code
