"""Checks before evaluations: overflows, wrongly compiled networks and unavailable devices."""

import pytest
import torch

from robust201.networks.nb201.compiled import InferenceNetwork
from robust201.weights.store import CheckpointStore
from tests.conftest import add_network, random_state, read_tree
from tests.support.runs import run_sweep

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255"]}}


@pytest.mark.parametrize("engine", ["fused", "reference"])
def test_units_of_an_overflowing_network_fail(make_sweep, tmp_path, engine):
    """The weights are finite, but feature maps overflow."""
    state = {name: value * 1e25 if value.is_floating_point() else value for name, value in random_state(21).items()}
    with CheckpointStore(tmp_path / "store") as store:
        add_network(store, 21, state)
    checkpoints = {"path": str(tmp_path / "store")}
    tally = run_sweep(make_sweep(architectures=[21], keys=KEYS, engine=engine, checkpoints=checkpoints))
    assert {failure.label.split()[2] for failure in tally.failures} == set(KEYS)
    assert all("contain NaN or infinity" in failure.failure for failure in tally.failures)


def test_units_of_a_wrongly_compiled_network_fail(make_sweep, monkeypatch):
    compute = InferenceNetwork.logits
    monkeypatch.setattr(InferenceNetwork, "logits", lambda self, pixels: compute(self, pixels) + 0.01)
    tally = run_sweep(make_sweep(architectures=[21], keys=KEYS))
    assert len(tally.failures) == len(KEYS)
    assert all("which is more than rounding" in failure.failure for failure in tally.failures)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("changed_fields", [{"execution": {"device": "cuda"}}, {"precision": "tf32"}])
def test_run_with_unavailable_device_does_not_replace_the_plan(robust201, write_sweep, tmp_path, changed_fields):
    assert robust201("run", write_sweep(keys={"clean": {}})).code == 0
    previous_files = read_tree(tmp_path / "results")
    robust201("run", write_sweep(keys={"clean": {}}, seed=1, **changed_fields)).error_line(exit_code=2)
    assert read_tree(tmp_path / "results") == previous_files


def test_check_that_runs_out_of_memory_is_repeated(make_sweep, monkeypatch):
    raised_errors = []
    compute = InferenceNetwork._forward

    def fail_once(self: InferenceNetwork, *arguments: object) -> torch.Tensor:
        if not raised_errors:
            raised_errors.append(torch.OutOfMemoryError("out of memory"))
            raise raised_errors[0]
        return compute(self, *arguments)

    monkeypatch.setattr(InferenceNetwork, "_forward", fail_once)
    tally = run_sweep(make_sweep(architectures=[21], keys=KEYS))
    assert raised_errors
    assert not tally.failures
