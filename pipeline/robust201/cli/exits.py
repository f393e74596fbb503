"""Exit codes of commands: an exception becomes an exit code and a line on stderr that begins with ``error:``."""

import errno
import reprlib
import sys
import warnings
from typing import Any

import typer

from robust201.cli import console
from robust201.cli.help_texts import RESUMABLE_COMMANDS
from robust201.core.errors import (
    EvaluationError,
    InputError,
    RobustError,
    RobustWarning,
    StorageError,
    one_line,
    shorten,
)
from robust201.core.interrupts import interrupt_on_stop_signals

# Typer does not export this class, and newer versions bundle click under another name.
_UsageError: Any = typer.BadParameter.__base__
_INTERRUPT_EXIT_CODE = 130
"""Typer's exit code after a KeyboardInterrupt."""
_INVALID_PATH_ERRNOS = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
"""Error numbers of paths that cannot be opened because the path itself is invalid."""


def run_to_exit_code(app: typer.Typer) -> int:
    """Run the command in ``sys.argv``, and return the exit code (see `help_texts.EPILOG`)."""
    original_showwarning = warnings.showwarning
    console.printed_warnings.clear()

    def show_warning(message: Warning | str, category: type[Warning], *arguments: Any, **options: Any) -> None:
        if issubclass(category, RobustWarning):
            console.printed_warnings.append(f"{str(message).rstrip('.')}.")
            console.say(shorten(f"warning: {console.printed_warnings[-1]}"))
        else:
            original_showwarning(message, category, *arguments, **options)

    try:
        with warnings.catch_warnings(), interrupt_on_stop_signals():
            warnings.showwarning = show_warning
            warnings.simplefilter("always", RobustWarning)
            code = app(sys.argv[1:] or ["--help"], prog_name="robust201", standalone_mode=False) or 0
        if code != _INTERRUPT_EXIT_CODE:
            return int(code)
    except (RobustError, _UsageError, ImportError, OSError, MemoryError) as error:
        message, code = _message_and_exit_code(error)
        console.say(shorten("error: " + " ".join(message.splitlines())))
        return code
    except (KeyboardInterrupt, typer.Abort):
        pass
    command, is_saved = sys.argv[1:2], any(argument.split("=")[0] == "--save" for argument in sys.argv)
    is_resumable = (command == ["evaluate"] and is_saved) or bool({*command} & {*RESUMABLE_COMMANDS})
    note = " Finished work is kept; run the same command again to resume." if is_resumable else ""
    console.say(f"Interrupted.{note}")
    return EvaluationError.exit_code


def _message_and_exit_code(error: Exception) -> tuple[str, int]:
    if isinstance(error, RobustError):
        return str(error), error.exit_code
    if isinstance(error, ImportError):
        return (
            f"Starting failed for robust201 {' '.join(sys.argv[1:2])}: a package that it needs is not installed "
            f"({error}). Reinstall robust201 with -c constraints.txt; robust201 doctor shows what is missing."
        ), InputError.exit_code
    if isinstance(error, MemoryError):
        return (
            f"Allocating memory failed for robust201 {' '.join(sys.argv[1:2])}: it needs more memory than is available"
            f"{f' ({one_line(error)})' if str(error) else ''}. Raise the limit (ulimit -v), or use a machine with more "
            "memory."
        ), EvaluationError.exit_code
    if isinstance(error, OSError) and error.errno in _INVALID_PATH_ERRNOS:
        return (
            f"Opening failed for {reprlib.repr(error.filename)}: this is not a valid path ({error.strerror}). "
            "Use a different path."
        ), InputError.exit_code
    if isinstance(error, OSError):
        return (
            f"Reading or writing failed for {error.filename or 'the output'}: "
            f"{error.strerror or error}. Check the path, its permissions and the free space, and try again."
        ), StorageError.exit_code
    usage_error: Any = error  # an exception of click
    command = usage_error.ctx.command_path if usage_error.ctx else "robust201"
    fault = usage_error.format_message().rstrip(".")
    full_stop = "" if fault.endswith("?") else "."  # click may end its message with a question
    return (
        f"Reading the command line failed for {command}: {fault}{full_stop} See: {command} --help",
        InputError.exit_code,
    )
