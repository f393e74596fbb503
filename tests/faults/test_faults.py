"""Runs with injected faults. `pytest` injects the two short faults, and `pytest -n 0 -m faults` the others."""

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.faults import disk, interruptions, kills, machines, trainings
from tests.faults.processes import kill
from tests.faults.trial import INLINE, Trial
from tests.faults.verdict import check_sweep, export

SEED = int(os.environ.get("FAULT_SEED", "1"))
"""Seed for the random times of faults."""

_MARGIN_BYTES = 128 * 2**20
"""Threshold for changes of free GPU memory: less than CUDA needs per process, but more than other programs cause."""


class Fault(NamedTuple):
    """A fault, with the functions that inject it and check the results.

    Attributes:
        name: ID of the test case.
        inject: function that injects the fault.
        repeats: number of times to inject the fault.
        check: function that checks the results.
        is_short: whether the default test run includes the fault.
    """

    name: str
    inject: Callable[[Trial], None]
    repeats: int = 1
    check: Callable[[Trial], None] = check_sweep
    is_short: bool = False


FAULTS = (
    Fault("worker-killed", kills.kill_worker, repeats=4),
    Fault("driver-killed", kills.kill_driver, repeats=2),
    Fault("raylet-killed", kills.kill_raylet),
    Fault("head-killed", kills.kill_all_of_ray),
    Fault("ray-killed-starting", kills.kill_while_starting, repeats=12),
    Fault("node-lost", machines.kill_node),
    Fault("network-cut", machines.disconnect_host, check=partial(check_sweep, allows_duplicate_rows=True)),
    Fault("commit-killed", kills.kill_while_committing, repeats=4),
    Fault(
        "memory-exhausted",
        interruptions.run_out_of_memory,
        1,
        partial(check_sweep, allows_small_differences=True),
        is_short=True,
    ),
    Fault("unit-poisonous", interruptions.poison_unit),
    Fault("disk-full", disk.fill_disk, is_short=True),
    Fault("disk-full-for-workers", disk.fill_disk_in_run_with_worker_processes, repeats=2),
    Fault("shards-damaged", disk.damage_shards),
    Fault("drain-too-slow", interruptions.drain_past_deadline),
    Fault("drain-too-slow-inline", interruptions.drain_past_deadline_inline),
    Fault("interrupted-twice", interruptions.interrupt_twice),
    Fault("clock-jumps", interruptions.jump_clock, repeats=3),
    Fault("second-driver", interruptions.start_second_driver),
    Fault("second-driver-elsewhere", interruptions.start_second_driver_elsewhere),
    Fault(
        "stopped-driver-elsewhere",
        interruptions.suspend_driver_until_takeover,
        check=partial(check_sweep, allows_duplicate_rows=True),
    ),
    Fault("chaos", kills.kill_at_random, repeats=5),
    Fault("trainer-killed", trainings.kill_worker, 2, trainings.check_trainings),
    Fault("training-killed", trainings.kill_driver, 1, trainings.check_trainings),
    Fault("training-killed-inline", trainings.kill_driver_inline, 2, trainings.check_trainings),
)


@pytest.fixture(scope="module")
def expected_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the export of a sweep without faults, which is computed in one process."""
    trial = Trial(tmp_path_factory.mktemp("undisturbed"), {}, random.Random(0))
    trial.write_sweep()
    trial.run(*INLINE)
    return export(trial.results, trial.folder / "json")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, id=fault.name, marks=[] if fault.is_short else [pytest.mark.faults]) for fault in FAULTS],
)
def test_disturbed_run_gives_same_results_as_undisturbed_run(
    fault: Fault, expected_files: dict[str, bytes], tmp_path: Path
) -> None:
    repeats = int(os.environ.get("FAULT_REPEATS", fault.repeats))
    trial = Trial(tmp_path, expected_files, random.Random(f"{SEED} {fault.name}"), repeats)
    try:
        fault.inject(trial)
        fault.check(trial)
    finally:
        trial.kill_remaining()
        print(dict(trial.injection_counts))
    assert trial.injection_counts.total()


@pytest.mark.gpu
@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_worker_killed_on_gpu_frees_its_memory(tmp_path: Path) -> None:
    torch.cuda.init()  # CUDA must allocate the memory of this process before the first measurement
    free_before = torch.cuda.mem_get_info()[0]
    trial = Trial(tmp_path, {}, random.Random(0))
    trial.write_sweep(device="cuda", workers=1)
    trial.set_faults(seconds_per_part=1.0)
    try:
        command = trial.start_run()
        trial.wait_for_shards(2, command)
        assert free_before - torch.cuda.mem_get_info()[0] > _MARGIN_BYTES  # the worker uses memory
        assert kill(trial.workers()) == 1
        trial.wait_for_shards(trial.count_shards() + 2, command)
        trial.finish(command, {0})
        trial.wait_for_end()
    finally:
        trial.kill_remaining()
    assert free_before - torch.cuda.mem_get_info()[0] < _MARGIN_BYTES
