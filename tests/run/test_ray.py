"""Runs in separate processes, on a local Ray and inline; the tests in `tests/faults` kill such processes."""

import os
import signal

import pytest

from tests.conftest import read_tree
from tests.support.runs import read_state, run_inline
from tests.support.trials import Trial, wait_for_parts


@pytest.mark.parametrize("executor", [pytest.param("ray", marks=pytest.mark.ray), "inline"])
def test_first_signal_drains(tmp_path, executor):
    """Terminals and batch systems signal the whole process group, so Ray's processes must not belong to it."""
    trial = Trial(tmp_path, executor=executor)
    process = trial.start()
    wait_for_parts(trial, process)
    os.killpg(process.pid, signal.SIGINT)
    assert trial.wait_for_end(process) == 3
    log = trial.log.read_text()
    assert ("Stopped on request." in log, "Traceback" in log) == (True, False)
    assert not [name for name in read_tree(trial.results) if name.endswith((".tmp", "lock.json"))]
    n_missing = read_state(trial.results).n_missing_parts
    tally = run_inline(trial.config)
    assert (tally.n_parts, tally.failures) == (n_missing, [])
