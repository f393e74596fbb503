"""A worker killed on a GPU leaves none of its memory taken: `pytest -m gpu` on a machine that has one."""

import random
from pathlib import Path

import pytest
import torch

from tests.faults.processes import kill, remaining
from tests.faults.trial import Trial
from tests.faults.verdict import GRACE_SECONDS

_MARGIN_BYTES = 128 * 2**20
"""Less than what CUDA alone takes for a process, more than what the desktop of a workstation adds meanwhile."""


@pytest.mark.gpu
@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_a_worker_killed_on_a_gpu_leaves_no_memory_taken(tmp_path: Path) -> None:
    torch.cuda.init()  # what this process takes itself is taken from here on
    free_before = torch.cuda.mem_get_info()[0]
    trial = Trial("worker-killed-on-gpu", tmp_path, {}, random.Random(0))
    trial.write_sweep(device="cuda", workers=1)
    trial.order(pace=1.0)
    try:
        command = trial.start_run()
        trial.wait_for_shards(2, command)
        assert free_before - torch.cuda.mem_get_info()[0] > _MARGIN_BYTES, (
            "the worker holds nothing that it could leave"
        )
        assert kill(trial.workers()) == 1
        trial.wait_for_shards(trial.count_shards() + 2, command)
        trial.finish(command, {0})
        problems = remaining(trial.mark, GRACE_SECONDS, trial.watch)
    finally:
        trial.end()
    assert trial.problems + problems == []
    assert free_before - torch.cuda.mem_get_info()[0] < _MARGIN_BYTES
