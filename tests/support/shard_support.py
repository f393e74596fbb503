"""Plausible results for tests of the store; every image has different random logits."""

import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from robust201.core import noise
from robust201.core.records import EvaluationResult, Part, Unit, unit_id
from robust201.shards import ShardStore
from robust201.tasks.measurements import Accumulator

REPOSITORY = Path(__file__).resolve().parents[2]
HOUR = 3600.0
CLOCK_TWO_HOURS_AHEAD = lambda: time.time() + 2 * HOUR  # noqa: E731 - a function that stands for a clock
ALL_MEASUREMENTS = ("accuracy", "confidence", "cm", "predictions")
DEFAULT_MEASUREMENTS = ("accuracy", "confidence", "cm")
"""Measurements of the fabricated results, by default."""


def make_unit(architecture=21, dataset="digits", key="pgd", strengths=(1.0, 4.0), n_images=30, checkpoint="c" * 64):
    protocol = f"{dataset}-{key}".ljust(32, "0")
    identifier = unit_id("nasbench201", architecture, checkpoint, protocol)
    return Unit(identifier, architecture, dataset, key, tuple(strengths), n_images, protocol, checkpoint)


def make_results(unit, strengths=None, start=0, stop=None, measurements=DEFAULT_MEASUREMENTS, n_classes=3, seed=0):
    strengths = unit.strengths if strengths is None else tuple(strengths)
    stop = unit.n_images if stop is None else stop
    part = Part(unit, strengths, start, stop)
    return [
        EvaluationResult(part, s, make_values(unit, s, start, stop, measurements, n_classes, seed), 0.5, {"host": "h"})
        for s in strengths
    ]


def make_values(unit, strength, start, stop, measurements=DEFAULT_MEASUREMENTS, n_classes=3, seed=0):
    rng = noise.generator(seed, unit.id, strength)
    logits = torch.from_numpy(rng.normal(size=(unit.n_images, n_classes)).astype(np.float32))[start:stop]
    labels = (torch.arange(unit.n_images) % n_classes)[start:stop]  # all results of a dataset are for the same images
    accumulator = Accumulator(measurements, n_classes, "cpu", stop - start)
    accumulator.update(torch.arange(stop - start), logits, labels)
    return accumulator.finalise()


def assert_equal_values(values, expected):
    assert values.keys() == expected.keys()
    for name in values:
        assert values[name].dtype == expected[name].dtype
        assert values[name].shape == expected[name].shape
        assert values[name].tobytes() == expected[name].tobytes(), name


def whole_part(unit):
    return Part(unit, unit.strengths, 0, unit.n_images)


def inventory_state(inventory):
    """Return the complete state of an inventory as objects that can be compared."""
    columns = ("unit", "strength", "start", "stop", "seconds", "shard", "position")
    row_columns = {name: inventory.row_column(name) for name in columns}
    return (
        inventory.shards,
        inventory.units,
        {name: (column.dtype, column.tolist()) for name, column in row_columns.items()},
        [inventory.shard_columns(shard_index) for shard_index in range(len(inventory.shards))],
        inventory.damage,
    )


def state_without_index(store):
    """Return the state of an inventory that is built from the shards without the index, then restore the index."""
    moved_index = store.root / "index-aside"
    if store.folder.index.exists():
        store.folder.index.rename(moved_index)
    state = inventory_state(store.inventory(on_damage="report"))
    shutil.rmtree(store.folder.index, ignore_errors=True)
    if moved_index.exists():
        moved_index.rename(store.folder.index)
    return state


def flip_middle_bit(store, shard, *, keep_time):
    """Flip a bit in the middle of a shard; with `keep_time`, restore its modification time."""
    path = store.folder.shards.joinpath(shard)
    file_status = path.stat()
    flip(path)
    if keep_time:
        os.utime(path, ns=(file_status.st_atime_ns, file_status.st_mtime_ns))


def flip(path, bit=None):
    """Flip a bit of a file, by default in the middle."""
    content = bytearray(path.read_bytes())
    bit = 8 * (len(content) // 2) if bit is None else bit
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def assert_complete_store(store, units, measurements=DEFAULT_MEASUREMENTS):
    inventory = store.inventory(verify="all")
    assert inventory.n_evaluations == sum(len(unit.strengths) for unit in units)
    for unit in units:
        assert inventory.find_missing_parts(unit, measurements) == ()
        for strength in unit.strengths:
            expected = make_values(unit, strength, 0, unit.n_images, measurements)
            assert_equal_values(store.values(unit, strength, inventory, measurements), expected)
    assert store.verify() == []
    return inventory


def compact_while_committing(store, units, clock):
    """Commit results in another thread while compacting repeatedly; raise the thread's exceptions."""
    results = [make_results(unit) for unit in units]

    def commit():
        writer = ShardStore.open(store.root)
        for result in results:
            writer.commit(result)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(commit)
        while True:
            # A real run has a grace period, so this is stricter. The shards that the compaction reads cannot disappear,
            # because there is only one compaction at a time.
            store.compact(grace_seconds=0, clock=clock, target_bytes=40_000)
            if future.done():
                break
    future.result()


PROGRAM = """
import os, pickle, sys
from pathlib import Path
from robust201.shards import ShardStore

def die_at(step):
    if step == sys.argv[2]:
        os._exit(9)

store = ShardStore(Path(sys.argv[1]), on_step=die_at)
results = pickle.load(sys.stdin.buffer)
store.commit(results) if results else store.compact()
"""


def start_and_die_at(step, store, results=()):
    """Start a process that commits results to a store, or compacts the store if there are none, and dies at a step.

    The results are computed here and passed to the process, because importing torch would take most of its time.
    """
    command = [sys.executable, "-c", PROGRAM, str(store.root), step]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as stream:
        pickle.dump(results, stream)
    return process
