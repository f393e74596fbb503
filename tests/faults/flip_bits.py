"""Flip random bits anywhere in shards, footers included; verification must name the shard of every one.

Long form:  python -m tests.faults.flip_bits --flips 1000
The test suite runs the short form (tests/export/test_verifying.py).
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from robust201.shards import ShardStore
from tests.support.shard_support import make_results, make_unit


def make_store(root: Path) -> ShardStore:
    """A results folder with small shards, some of them compacted."""
    store = ShardStore.create(root)
    for architecture in (0, 2, 10):
        store.commit(make_results(make_unit(architecture)))
    store.compact(grace_seconds=0)
    store.compact(grace_seconds=0)
    for architecture in (21, 309):
        store.commit(make_results(make_unit(architecture, key="fgsm")))
    return store


def flip_bits(store: ShardStore, flips: int, seed: int = 0) -> list[str]:
    """Flip bits one by one, each in a sound store, half of them in the last 2 kB of a shard.

    Returns:
        What went unnoticed: the shard and the bit.
    """
    draws = np.random.default_rng(seed)
    shards = [entry.name for entry in store.folder.backend.entries()]
    unnoticed = []
    for number in range(flips):
        shard = shards[int(draws.integers(len(shards)))]
        path = store.folder.shards / shard
        sound = path.read_bytes()
        first = max(0, len(sound) - 2048) if number % 2 else 0
        bit = int(draws.integers(8 * first, 8 * len(sound)))
        content = bytearray(sound)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        if [(found.kind, found.shard) for found in store.verify() if found.shard == shard] != [("damaged", shard)]:
            unnoticed.append(f"{shard} bit {bit}")
        path.write_bytes(sound)
    return unnoticed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        unnoticed = flip_bits(make_store(Path(folder)), options.flips, options.seed)
    print(f"{options.flips} bits flipped, {len(unnoticed)} unnoticed", *unnoticed, sep="\n")
    raise SystemExit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
