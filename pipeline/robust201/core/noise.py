"""Random draws named by what they are for: counter-based, so they never depend on order, batch or worker.

A draw is named by a seed and a tuple of names (key, iteration, image index, …). The names are hashed to the 128-bit key
of a Philox 4x64 counter generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

import hashlib

import numpy as np

from robust201.core.records import canonical_json


def _digest(seed: int, names: tuple[str | int | float, ...]) -> bytes:
    return hashlib.sha256(canonical_json([seed, *names]).encode()).digest()


def generator(seed: int, *names: str | int | float) -> np.random.Generator:
    """Make the generator of the draws that `names`, such as ``("snow", 3, image_index)``, stand for.

    It is NumPy's over Philox; equal arguments give equal streams on every platform.
    """
    key = np.frombuffer(_digest(seed, names)[:16], dtype="<u8")
    return np.random.Generator(np.random.Philox(key=key))


def derived_seed(seed: int, *names: str | int | float) -> int:
    """Derive a seed in [0, 2**31), which every library at hand accepts, from a seed and what it is for."""
    return int.from_bytes(_digest(seed, names)[:4], "little") >> 1
