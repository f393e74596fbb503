"""How a command ends: whatever it raises becomes one line on stderr, beginning ``error:``, and an exit code."""

import sys
from typing import Any

import typer

from pipeline import console
from pipeline.errors import EvaluationError, InputError, RobustError, StorageError
from pipeline.interrupts import ending_signals_as_interrupt

# Public in click only, which newer versions of Typer carry inside under another name.
_UsageError: Any = typer.BadParameter.__base__
_INTERRUPTED = 130
"""What Typer makes of a KeyboardInterrupt."""


def run_to_exit_code(app: typer.Typer) -> int:
    """Run the command that ``sys.argv`` names.

    Args:
        app: the commands.

    Returns:
        Exit code: 0 complete; 2 bad input; 3 incomplete, interrupted or failed units; 4 storage.
    """
    try:
        with ending_signals_as_interrupt():
            code = app(sys.argv[1:] or ["--help"], prog_name="robust201", standalone_mode=False) or 0
        if code != _INTERRUPTED:
            return int(code)
    except RobustError as error:
        return _fail(str(error), error.exit_code)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "robust201"
        what = error.format_message().rstrip(".")
        message = f"Reading the command line failed for {command}: {what}. See: {command} --help"
        return _fail(message, InputError.exit_code)
    except OSError as error:
        message = (
            f"Reading or writing failed for {error.filename or 'the output'}: expected it to work, got "
            f"{error.strerror or error}. Check the path, its permissions and the free space, and run the same command "
            "again."
        )
        return _fail(message, StorageError.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        pass
    console.say("Interrupted. Finished work is kept; run the same command again to go on.")
    return EvaluationError.exit_code


def _fail(message: str, code: int) -> int:
    console.say("error: " + " ".join(message.splitlines()))
    return code
