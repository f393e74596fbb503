"""Properties of every measure: declared columns, independence from batches and global state, no side effects."""

import dataclasses

import numpy as np
import pytest
import torch

from robust201.evaluation.evaluate import evaluate_part
from robust201.tasks import ENGINES, TASKS
from tests.support.tiny_networks import TinyNetwork, part_of, tiny_classifier, tiny_context, tiny_images

MEASURES = [key for key, task in TASKS.items() if task.kind == "measure"]


def values_of(key, *, engine="fused", batch_size=8, classifier=None):
    """Return the columns of every strength, evaluated as in a sweep."""
    images = tiny_images()
    task = TASKS[key]
    parameters = task.parameters()
    part = part_of(task, parameters, images)
    context = tiny_context(key, classifier or tiny_classifier(), batch_size=batch_size)
    context = dataclasses.replace(context, engine=engine)
    results = evaluate_part(context, task, parameters, part, images, ("accuracy",), provenance={})
    return {result.strength: result.values for result in results}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("key", MEASURES)
def test_measure_returns_declared_columns_per_strength(key, engine):
    values = values_of(key, engine=engine)
    assert tuple(values) == TASKS[key].parameters().strengths
    for columns in values.values():
        assert tuple(columns) == TASKS[key].columns
        assert all(np.isfinite(value).all() and value.dtype == np.float64 for value in columns.values())


@pytest.mark.parametrize("key", MEASURES)
def test_batches_affect_only_rounding(key):
    expected, small_batch_values = values_of(key, batch_size=32), values_of(key, batch_size=4)
    for strength, columns in expected.items():
        for name, value in columns.items():
            np.testing.assert_allclose(small_batch_values[strength][name], value, rtol=1e-5)


@pytest.mark.parametrize("key", MEASURES)
def test_measure_does_not_depend_on_or_change_global_state(key):
    classifier = tiny_classifier(TinyNetwork())
    state_before = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
    first_values = values_of(key, classifier=classifier)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002 - the global state that a library might use
    state = torch.get_rng_state()
    second_values = values_of(key, classifier=classifier)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(classifier.state_dict()[name], tensor) for name, tensor in state_before.items())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in classifier.parameters())
    assert first_values.keys() == second_values.keys()
    for strength, columns in first_values.items():
        assert all(np.array_equal(columns[name], second_values[strength][name]) for name in columns)
