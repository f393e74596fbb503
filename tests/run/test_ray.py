"""A run on a local Ray; `tests/faults` kills its processes."""

import signal

import pytest

from tests.support.runs import read_state, run_inline
from tests.support.trials import Trial, wait_for_parts


@pytest.mark.ray
def test_first_signal_drains(tmp_path):
    trial = Trial(tmp_path)
    process = trial.start()
    wait_for_parts(trial, process)
    process.send_signal(signal.SIGINT)
    assert (trial.end(process), "Stopping" in trial.log.read_text()) == (3, True)
    n_missing = read_state(trial.results).n_missing_parts
    tally = run_inline(trial.config)
    assert (tally.n_parts, tally.failures) == (n_missing, [])
