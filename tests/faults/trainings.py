"""Faults that kill a worker or the driver of training runs; the resulting weights must have the same bytes."""

from pathlib import Path
from typing import Any

import yaml

from robust201.cli.console import format_count
from tests.faults.processes import kill
from tests.faults.trial import INLINE, Command, Trial, stray_files
from tests.faults.verdict import make_old
from tests.support.tiny_trainings import hash_weight_files

_STEP_SECONDS = 0.2
"""Delay of each training step in seconds, so that processes can be killed in the middle of a training run."""

_EPOCHS, _SEEDS = 3, (0, 1)
_N_SNAPSHOTS = len(_SEEDS) * (_EPOCHS + 1)


def training_fields(store: Path) -> dict[str, Any]:
    """Return the fields of the training YAML: a narrow LeNet-5 on digits, twelve steps and four snapshots per seed."""
    recipe = {
        "epochs": _EPOCHS,
        "batch_size": 16,
        "learning_rate": 0.05,
        "weight_decay": 5e-4,
        "schedule": {"cosine": {}},
        "augmentation": {"crop_padding": 1},
        "snapshots": {"every_epochs": 1, "iterations": [2]},
    }
    return {
        "name": "faults",
        "store": str(store),
        "space": "zoo",
        "architectures": ["lenet5-w4"],
        "datasets": {"digits": {}},
        "images": {"count": 64},
        "recipes": {"plain": recipe},
        "seeds": list(_SEEDS),
        "execution": {"executor": "ray", "workers": 2, "device": "cpu", "threads": 1},
    }


def _store_folder(trial: Trial) -> Path:
    return trial.folder / "store"


def _start(trial: Trial, *options: str) -> Command:
    return trial.start("run", str(trial.folder / "trainings.yaml"), *options)


def _prepare(trial: Trial) -> None:
    """Write the YAML, train without faults into another store, and delay the steps of later runs."""
    (trial.folder / "trainings.yaml").write_text(
        yaml.safe_dump(training_fields(_store_folder(trial))), encoding="utf-8"
    )
    trial.finish(_start(trial, *INLINE, "--out", str(trial.folder / "undisturbed")), {0})
    trial.set_faults(training_step_seconds=_STEP_SECONDS)


def _run_to_middle(trial: Trial, *options: str) -> Command:
    """Start the run, and wait until one to three new snapshots exist."""
    n_expected = len(hash_weight_files(_store_folder(trial))) + trial.rng.randint(1, 3)
    command = _start(trial, *options)
    trial.wait_until(
        lambda: len(hash_weight_files(_store_folder(trial))) >= n_expected, command, f"{n_expected} snapshots"
    )
    assert n_expected < _N_SNAPSHOTS, "the run is already complete"
    return command


def kill_worker(trial: Trial) -> None:
    """Kill one worker at a time in the middle of a training run; the other workers continue."""
    _prepare(trial)
    command = _run_to_middle(trial)
    for _ in range(trial.repeats):
        n_snapshots = len(hash_weight_files(_store_folder(trial)))
        trial.injection_counts["workers killed"] += kill(trial.workers()[:1])
        if n_snapshots + 3 >= _N_SNAPSHOTS:  # too little work remains for another kill
            break
        trial.wait_until(
            lambda: len(hash_weight_files(_store_folder(trial))) > n_snapshots,  # noqa: B023
            command,
            "another snapshot",
        )
    trial.finish(command, {0})
    command.expect_output(f"{format_count(trial.injection_counts['workers killed'], 'worker')} died")


def kill_driver(trial: Trial, *options: str) -> None:
    """Kill the driver in the middle of a training run; its workers end, and the same command completes the run."""
    _prepare(trial)
    for _ in range(trial.repeats):
        trial.kill_driver(_run_to_middle(trial, *options))
    trial.set_faults()
    trial.finish(_start(trial, *options), {0})


def kill_driver_inline(trial: Trial) -> None:
    """Kill a driver that trains in its own process."""
    kill_driver(trial, *INLINE)


def check_trainings(trial: Trial) -> None:
    """Check that weights equal those of an undisturbed run, and that no process and no stray file remains."""
    trial.wait_for_end()
    store, expected_hashes = _store_folder(trial), hash_weight_files(trial.folder / "undisturbed")
    assert len(expected_hashes) == _N_SNAPSHOTS
    assert hash_weight_files(store) == expected_hashes
    # Temporary files of killed processes may remain for a day. After that, the next run must remove them.
    make_old(stray_files(store))
    rerun = _start(trial, *INLINE)
    trial.finish(rerun, {0})
    rerun.expect_output(f": {len(_SEEDS) * _EPOCHS} done, 0 missing")
    folder = store / "training"
    paths = [
        folder / "lock.json",
        *(folder / "states").glob("*"),
        *stray_files(store),
    ]
    assert not [path for path in paths if path.exists()]
