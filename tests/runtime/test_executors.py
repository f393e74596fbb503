"""Draining, resumption and failures with both executors."""

import signal
from pathlib import Path

import pytest

from robust201.core.records import Receipt
from robust201.runtime.executors import make_executor
from robust201.runtime.executors.base import Event
from robust201.runtime.progress import RunProgress
from robust201.runtime.sweep import run_sweep
from robust201.weights.store import CheckpointStore
from tests.conftest import TINY_KEYS, MakeSweep

KEYS = {key: TINY_KEYS[key] for key in ("clean", "fgsm", "brightness")}
N_EVALUATIONS = 2 * 5  # two networks with five evaluations each


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
def execution(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return the section `execution` of the sweep YAML, for each executor."""
    if request.param == "inline":
        return {"executor": "inline"}
    return {"executor": "ray", "workers": 2, "ray_address": request.getfixturevalue("ray_address")}


def test_drained_sweep_is_resumed(make_sweep: MakeSweep, execution: dict[str, object]) -> None:
    config = make_sweep(keys=KEYS, execution=execution | {"workers": 1})
    interrupted_receipts: list[Receipt] = []

    def interrupt(_progress: RunProgress, event: Event) -> None:
        if isinstance(event, Receipt) and not interrupted_receipts:
            interrupted_receipts.append(event)
            signal.raise_signal(signal.SIGTERM)

    drained_tally = run_sweep(config, make_executor, on_progress=interrupt)
    assert drained_tally.drained
    assert 0 < drained_tally.results < N_EVALUATIONS
    resumed_tally = run_sweep(make_sweep(keys=KEYS), make_executor)  # with the inline executor
    assert resumed_tally.complete
    assert drained_tally.results + resumed_tally.results == N_EVALUATIONS


def test_error_in_worker_fails_only_its_parts(
    make_sweep: MakeSweep, execution: dict[str, object], tmp_path: Path, tiny_weights: Path
) -> None:
    import shutil

    weights = tmp_path / "weights"
    shutil.copytree(tiny_weights, weights)
    config = make_sweep(keys=KEYS, execution=execution | {"workers": 1}, checkpoints={"path": str(weights)})

    def damage_weights_and_start(plan):
        # The file is damaged between the driver's check and the worker's check.
        store = CheckpointStore(weights)
        (weights / store.find(21, "digits").file).write_bytes(b"no tensors")
        return make_executor(plan)

    tally = run_sweep(config, damage_weights_and_start)
    assert {failure.part.unit.architecture for failure in tally.failures} == {21}
    assert {failure.kind for failure in tally.failures} == {"application"}
    assert tally.results == N_EVALUATIONS // 2
    assert not tally.complete
