"""What a worker refuses before it measures anything: compiled networks that are wrong, devices that are not there."""

from pathlib import Path

import pytest
import torch

from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep
from robust201.spaces.nasbench201.cells import architecture
from robust201.spaces.nasbench201.compiled import InferenceNetwork
from robust201.spaces.nasbench201.network import build_network
from robust201.weights.store import CheckpointStore
from tests.conftest import MakeSweep, RunCommand, WriteSweep, add_network, read_tree

KEYS = {"clean": {}, "fgsm": {"epsilons_255": [1]}}


@pytest.fixture
def overflowing_weights(tmp_path: Path) -> Path:
    """Finite weights whose feature maps are not."""
    with CheckpointStore(tmp_path / "overflowing") as store:
        torch.manual_seed(0)
        spec = architecture(21).spec
        state = build_network(spec, channels=4, cells=1, n_classes=10).state_dict()
        scaled = {name: value * 1e25 if value.is_floating_point() else value for name, value in state.items()}
        add_network(store, 21, scaled)
    return tmp_path / "overflowing"


@pytest.mark.parametrize("engine", ["fused", "reference"])
def test_a_network_that_overflows_fails_its_units(
    make_sweep: MakeSweep, overflowing_weights: Path, engine: str
) -> None:
    checkpoints = {"path": str(overflowing_weights)}
    config = make_sweep(architectures=[21], keys=KEYS, engine=engine, checkpoints=checkpoints)
    tally = run_sweep(config, make_executor)
    assert {failure.part.unit.key for failure in tally.failures} == set(KEYS)
    assert all("finite logits" in failure.message for failure in tally.failures)


def test_a_compiled_network_that_answers_otherwise_fails_its_units(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = InferenceNetwork.logits
    monkeypatch.setattr(InferenceNetwork, "logits", lambda self, pixels: right(self, pixels) + 0.01)
    tally = run_sweep(make_sweep(architectures=[21], keys=KEYS), make_executor)
    assert len(tally.failures) == len(KEYS)
    assert all("published network's logits within rounding" in failure.message for failure in tally.failures)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("change", [{"execution": {"device": "cuda"}}, {"precision": "tf32"}])
def test_a_device_that_is_not_there_is_refused_before_the_plan_is_replaced(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, change: dict[str, object]
) -> None:
    assert robust201("run", write_sweep(keys={"clean": {}})).code == 0
    before = read_tree(tmp_path / "results")
    robust201("run", write_sweep(keys={"clean": {}}, seed=1, **change)).refusal(2)
    assert read_tree(tmp_path / "results") == before


def test_memory_that_runs_out_in_the_check_is_an_occasion_to_show_fewer(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []
    right = InferenceNetwork._forward

    def fail_once(self: InferenceNetwork, *arguments: object) -> torch.Tensor:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("no room")
        return right(self, *arguments)

    monkeypatch.setattr(InferenceNetwork, "_forward", fail_once)
    tally = run_sweep(make_sweep(architectures=[21], keys=KEYS), make_executor)
    assert failed
    # Eight images are the least that go through a compiled network, so there is no fewer: one part fails, by name.
    assert [failure.kind for failure in tally.failures] == ["memory"]
