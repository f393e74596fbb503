"""A command of the command line in this process, with a deadline, and what it took and said."""

import contextlib
import io
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from robust201.cli.app import main

DEADLINE_SECONDS = 180


class HungError(BaseException):
    """A command that did not end in time."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (None after an exception or a hang), what it printed, and its peak of memory."""

    code: int | None
    out: str
    err: str
    peak_bytes: int

    @property
    def said(self) -> str:
        return self.out + self.err


def run_command(*arguments: object) -> Ended:
    out, err = io.StringIO(), io.StringIO()
    code: int | None = None
    before = sys.argv
    sys.argv = ["robust201", *map(str, arguments)]
    held = _start_of_peak()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _deadline():
            main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except HungError:
        err.write(f"no end within {DEADLINE_SECONDS} s")
    except Exception:  # noqa: BLE001 - any exception that leaves a command is a finding
        err.write(traceback.format_exc())
    finally:
        sys.argv = before
    return Ended(code, out.getvalue(), err.getvalue(), _memory("VmHWM") - held)


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise HungError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(DEADLINE_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _start_of_peak() -> int:
    """Begin to measure the peak of memory anew, and tell what is held now, in bytes."""
    with contextlib.suppress(OSError):  # where that is not allowed, earlier peaks count too
        Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])
