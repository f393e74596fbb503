"""When a process looks for garbage.

Imports make some 200,000 objects that the collector tracks, all of which stay: looking for garbage among them, while
they are made and when the process ends, was a quarter of a short run.
"""

import gc
from typing import Final

_USUAL: Final = gc.get_threshold()
_RARE: Final = (20_000, *_USUAL[1:])
"""Thresholds of Python's three generations: new objects before a look at the youngest, then looks before one at older
objects."""


def collect_rarely() -> None:
    """Look for garbage only after 20,000 new objects: in processes of robust201's own, until they compute."""
    gc.set_threshold(*_RARE)


def collect_as_usual() -> None:
    """End `collect_rarely`, if it was called: what a process that computes or reads shards drops may hold much memory.

    What was made before is never looked at again.
    """
    if gc.get_threshold() == _RARE:
        gc.freeze()
        gc.set_threshold(*_USUAL)
