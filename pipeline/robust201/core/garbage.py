"""When a process looks for garbage.

Imports make half a million objects, all of which stay: looking for garbage among them, while they are made and when the
process ends, was a third of a short run.
"""

import gc
from typing import Final

_USUAL: Final = gc.get_threshold()
_RARE: Final = (20_000, *_USUAL[1:])
"""How many new objects there are before Python looks among them, and what stands before a longer look."""


def collect_rarely() -> None:
    """Look for garbage after tens of thousands of new objects: while a process of robust201's own starts."""
    gc.set_threshold(*_RARE)


def collect_as_usual() -> None:
    """End `collect_rarely`, if it was called: what a worker drops may hold a GPU's memory."""
    if gc.get_threshold() == _RARE:
        gc.freeze()
        gc.set_threshold(*_USUAL)


def end_without_collecting() -> None:
    """Let the process end without a last look."""
    gc.freeze()
