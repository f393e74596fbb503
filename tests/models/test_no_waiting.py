"""Attacks never wait for the device inside their loops.

The `meta` device replaces a GPU. It computes shapes but no values, so an operation that needs a value on the host
raises an error. On the CPU, a dispatch mode rejects operations that would wait for a GPU.
"""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from robust201.models.buckets import BucketedModel
from robust201.models.capacity import Capacity
from robust201.spaces.nasbench201.cells import specs
from robust201.spaces.nasbench201.compiled import compile_network
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.batching import Batching
from robust201.tasks.attack_kit.random_numbers import CounterRandomNumbers
from robust201.tasks.perturbations import (
    apgd,
    apgd_targeted,
    fab,
    fmn,
    pgd,
    pgd_l2,
    pgd_linf7,
    square,
    square_lp,
)
from tests.spaces.test_inference import N_CLASSES, NORMALISATION, network_of
from tests.support.tiny_networks import TinyNetwork, tiny_classifier, tiny_images

WAITING_OPERATIONS = {
    "aten::_local_scalar_dense",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave.Tensor",
}
"""Operations for which values, or the shape of the result, must be transferred from the device to the host."""


def is_waiting_operation(name):
    return name in WAITING_OPERATIONS or name.split(".")[0] in WAITING_OPERATIONS


class RejectWaitingMode(TorchDispatchMode):
    """Dispatch mode that rejects operations that would wait for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if is_waiting_operation(name):
            raise AssertionError(f"{name} waits for the device")
        if name.startswith("aten::index"):
            indices = [index for index in args[1] or () if index is not None] if name != "aten::index_select" else []
            if any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices):
                raise AssertionError(f"{name} with a boolean mask waits for the number of true elements")
        return func(*args, **(kwargs or {}))


def test_dispatch_mode_and_meta_device_reject_operations_that_wait():
    x = torch.arange(4.0)
    for wait in (
        lambda: bool((x > 0).any()),
        lambda: float(x.sum()),
        lambda: x[x > 1],
        (x > 1).nonzero,
        lambda: x.__setitem__(x > 1, torch.zeros(2)),
        lambda: torch.equal(x, x),
    ):
        with pytest.raises(AssertionError, match=r"device|mask"), RejectWaitingMode():
            wait()
    for wait_for_values in (
        lambda t: t.cpu(),
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: bool(t.any()),
        lambda t: t[t > 0].sum(),
    ):
        with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
            wait_for_values(torch.empty(4, device="meta"))


IMAGES = tiny_images(24)
SPEC = specs()[991]


def compiled_model(device):
    return compile_network(network_of(SPEC), SPEC, NORMALISATION, n_classes=N_CLASSES, device=device)


MODELS = {
    "reference": lambda device: tiny_classifier(TinyNetwork()).to(device),
    "compiled": compiled_model,
    "bucketed": lambda device: BucketedModel(compiled_model(device), Capacity(32, 16), device=device),
}


def make_job(device, key, model):
    return AttackJob(
        model=model,
        batching=Batching(20, 200),
        random_numbers=CounterRandomNumbers(0, key),
        images=torch.from_numpy(IMAGES.images).to(device),
        labels=torch.from_numpy(IMAGES.labels).to(device),
        indices=IMAGES.indices,
        epsilons=(1 / 255, 8 / 255),
    )


def make_samples(job):
    return job.samples(np.arange(2).repeat(len(IMAGES)), np.tile(np.arange(len(IMAGES)), 2))


def run_pgd(job, samples):
    parameters = TASKS["pgd"].parameters(steps=5, target="least_likely")
    return pgd._attack_samples(job, samples, parameters)


def run_pgd_linf7(job, samples):
    parameters = TASKS["pgd_linf7"].parameters(steps=5, random_start=True, iterate="best", label="predicted")
    return pgd_linf7._attack_samples(job, samples, parameters)


def run_pgd_l2(job, samples):
    parameters = TASKS["pgd_l2"].parameters(steps=5, random_start=True, iterate="best")
    return pgd_l2._attack_samples(job, samples, parameters)


def run_apgd(job, samples):
    return apgd.single_run(TASKS["aa_apgd-ce"].parameters(steps=6))(job, samples, 0)[0]


def run_apgd_t_l1(job, samples):
    return apgd_targeted.single_run(TASKS["aa_apgd-t_l1"].parameters(steps=3, larger_epsilons=False))(job, samples, 0)[
        0
    ]


def run_square(job, samples):
    margins = torch.ones(len(samples.strength_indices), device=job.images.device)
    state = square.SearchState(samples.clean.clone(), margins)
    windows = square._to_device(job.random_numbers.windows(0, 0, [3] * 6, job.shape), job.images.device)
    square._search(job, samples, state, torch.arange(len(margins), device=job.images.device), windows)
    return state.accepted_images


def run_square_lp(job, samples, ball):
    margins = torch.ones(len(samples.strength_indices), device=job.images.device)
    state = square.SearchState(samples.clean.clone(), margins)
    moves = job.random_numbers.window_moves(0, 0, samples.dataset_indices, [3] * 4, job.shape)
    rows = torch.arange(len(margins), device=job.images.device)
    all_rows = slice(0, len(margins))
    moves = [move.for_images(all_rows, job.images.device) for move in moves]
    square_lp._search(job, samples, state, rows, moves, ball)
    return state.accepted_images


def run_square_l2(job, samples):
    return run_square_lp(job, samples, square_lp._L2Ball(samples))


def run_square_l1(job, samples):
    return run_square_lp(job, samples, square_lp._L1Ball(job, samples))


def run_fab_t(job, samples, key):
    return fab.single_run(TASKS[key].parameters(steps=2))(job, samples, 0)[0]


def run_fmn(job, samples, key):
    return fmn.run_fmn(job, samples, TASKS[key].parameters(steps=4))


ATTACK_LOOPS = {
    **{key: partial(run_fmn, key=key) for key in ("fmn", "fmn_l2", "fmn_l1")},
    **{key: partial(run_fab_t, key=key) for key in ("aa_fab-t", "aa_fab-t_l2", "aa_fab-t_l1")},
    "pgd": run_pgd,
    "pgd_linf7": run_pgd_linf7,
    "pgd_l2": run_pgd_l2,
    "aa_apgd-ce": run_apgd,
    "aa_apgd-t_l1": run_apgd_t_l1,
    "aa_square": run_square,
    "aa_square_l2": run_square_l2,
    "aa_square_l1": run_square_l1,
}


def loop_cases():
    """Yield every attack loop with each model and device.

    By default, the tests run the reference model on the CPU. On the meta device, they run the reference and the
    compiled model, and for four attacks also the bucketed model. All other cases are slow tests.
    """
    for key, model_name, device in itertools.product(ATTACK_LOOPS, MODELS, ("cpu", "meta")):
        if device == "cpu":
            is_default = model_name == "reference"
        else:
            is_default = model_name != "bucketed" or key in ("pgd", "aa_apgd-t_l1", "aa_fab-t_l2", "aa_square")
        yield pytest.param(key, model_name, device, marks=() if is_default else pytest.mark.slow)


@pytest.mark.parametrize(("key", "model_name", "device"), list(loop_cases()))
def test_attack_loop_never_waits_for_the_device(key, model_name, device):
    job = make_job(device, key, MODELS[model_name](device))
    samples = make_samples(job)
    with torch.inference_mode(), RejectWaitingMode():
        adversarial = ATTACK_LOOPS[key](job, samples)
    assert adversarial.device.type == device
    assert adversarial.shape == samples.clean.shape


@pytest.mark.parametrize("queries", [1, 40, 130])
def test_square_waits_only_to_find_images_that_are_not_fooled(queries, monkeypatch):
    waiting_operations = []

    class RecordWaitingMode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if is_waiting_operation(func.name()):
                waiting_operations.append(func.name())
            return func(*args, **(kwargs or {}))

    checked_queries = []
    queries_per_check = Batching.queries_per_check
    monkeypatch.setattr(
        Batching,
        "queries_per_check",
        lambda self, query: checked_queries.append(query) or queries_per_check(self, query),
    )
    search = square._search

    def search_without_waiting(*arguments):
        with RejectWaitingMode():
            search(*arguments)

    monkeypatch.setattr(square, "_search", search_without_waiting)
    job = make_job("cpu", "aa_square", MODELS["reference"]("cpu"))
    with torch.inference_mode(), RecordWaitingMode():
        square._run_square(job, make_samples(job), 0, TASKS["aa_square"].parameters(queries=queries))
    # Square waits after each of the first 40 queries, and about fifty times during the next ninety.
    assert waiting_operations == ["aten::nonzero"] * len(checked_queries)
    assert len(checked_queries) == {1: 1, 40: 40, 130: 92}[queries]
