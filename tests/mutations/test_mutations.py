"""A short run of the mutations; `python -m tests.mutations --count 500` is the long one."""

from pathlib import Path

from tests.mutations.trials import run_trials


def test_no_damage_ends_in_a_traceback_or_another_number(tmp_path: Path) -> None:
    trials = run_trials(tmp_path, count=16, seed=2)
    assert [trial for trial in trials if trial.problem] == []
    assert len({trial.damage for trial in trials}) > 4
    assert {trial.code for trial in trials} >= {0, 2}
