"""Counter-based random numbers in streams that are named after their purpose.

The numbers do not depend on the order of computation, the batch or the worker. A seed and a tuple of names (such as
a task's key, an iteration and an image index) define a stream: they are hashed to the 128-bit key of a Philox 4x64
counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

import hashlib

import numpy as np

from robust201.core.records import canonical_json


def _digest(seed: int, names: tuple[str | int | float, ...]) -> bytes:
    return hashlib.sha256(canonical_json([seed, *names]).encode()).digest()


def generator(seed: int, *names: str | int | float) -> np.random.Generator:
    """Return the generator of the stream named by `names`, such as ``("snow", 3, image_index)``.

    Equal arguments give equal streams on every platform.
    """
    philox_key = np.frombuffer(_digest(seed, names)[:16], dtype="<u8")
    return np.random.Generator(np.random.Philox(key=philox_key))


def derived_seed(seed: int, *names: str | int | float) -> int:
    """Derive a seed in [0, 2**31), which every library accepts, from another seed and names that state its purpose."""
    return int.from_bytes(_digest(seed, names)[:4], "little") >> 1
