"""Steps at which attacks first succeed: comparison with attacks of fewer steps, merging, and keys without steps."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError
from robust201.tasks import TASKS
from robust201.tasks.columns import NOT_FOOLED_STEP, steps_of
from robust201.tasks.evaluate import evaluate_part
from robust201.tasks.measurements import merge_values
from tests.support.tiny_networks import (
    Float64Network,
    part_of,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

CLASSIFIER = tiny_classifier(Float64Network())
IMAGES = tiny_images(classifier=CLASSIFIER)
RECORDING_KEYS = [key for key, task in TASKS.items() if task.records_steps]


def evaluate_key(key, measurements=("predictions", "steps"), start=0, stop=None, engine="fused", **changes):
    """Return a key's columns by strength."""
    task = TASKS[key]
    context = dataclasses.replace(tiny_context(key, CLASSIFIER), engine=engine)
    parameters = small_parameters(task, **changes)
    part = part_of(task, parameters, IMAGES, start, stop)
    results = evaluate_part(context, task, parameters, part, IMAGES, measurements, provenance={})
    return {result.strength: result.values for result in results}


def is_misclassified(values):
    return values["predictions"] != IMAGES.labels


def is_misclassified_without_attack():
    (values,) = evaluate_key("clean", ("predictions",)).values()
    return is_misclassified(values)


SQUARE_CASES = [("aa_square", {}), ("aa_square_l2", {}), ("aa_square_l1", {})]
PGD_CASES = [
    ("pgd", {}),
    ("pgd", {"random_start": False}),
    ("pgd_linf7", {"random_start": True, "iterate": "best"}),
    ("pgd_linf7", {"label": "predicted"}),
    ("pgd_l2", {"iterate": "best"}),
    ("pgd_l2", {"random_start": True}),
]


@pytest.mark.parametrize(("key", "changes"), SQUARE_CASES)
def test_steps_of_square_match_attacks_with_fewer_queries(key, changes):
    n_queries = 24
    for strength, values in evaluate_key(key, queries=n_queries, **changes).items():
        steps = steps_of(values["steps"])
        np.testing.assert_array_equal(steps == 0, is_misclassified_without_attack())
        for queries in (1, 2, 3, 7, 12, 23, n_queries):
            values_of_fewer_queries = evaluate_key(key, ("predictions",), queries=queries, **changes)[strength]
            np.testing.assert_array_equal(steps <= queries, is_misclassified(values_of_fewer_queries))


@pytest.mark.parametrize(("key", "changes"), PGD_CASES)
def test_steps_of_pgd_match_attacks_with_fewer_steps(key, changes):
    n_steps, changes = 6, {"epsilons_255": (16.0, 64.0)} | changes
    recorded_values = evaluate_key(key, steps=n_steps, **changes)
    values_by_n_steps = {
        steps: evaluate_key(key, ("predictions",), steps=steps, **changes) for steps in range(1, n_steps + 1)
    }
    all_steps = set()
    for strength, values in recorded_values.items():
        expected = np.full(len(IMAGES), np.inf)
        for steps in reversed(values_by_n_steps):
            expected[is_misclassified(values_by_n_steps[steps][strength])] = steps
        expected[is_misclassified_without_attack()] = 0
        np.testing.assert_array_equal(steps_of(values["steps"]), expected)
        all_steps |= set(expected)
    assert len(all_steps) > 2  # some before the attack, some at later steps, and some never


class TracingModel:
    """A model that records, whenever it computes gradients, which samples are misclassified."""

    def __init__(self):
        self.is_misclassified = []

    def logits(self, pixels):
        return CLASSIFIER.logits(pixels)

    def loss_and_gradient(self, pixels, labels):
        logits, loss, gradient = CLASSIFIER.loss_and_gradient(pixels, labels)
        self.is_misclassified.append(logits.argmax(dim=1) != labels)
        return logits, loss, gradient


def test_steps_of_apgd_match_traced_iterates():
    task = TASKS["aa_apgd-ce"]
    parameters = task.parameters(epsilons_255=(8.0,), steps=9)
    model = TracingModel()
    context = dataclasses.replace(tiny_context(task.key, CLASSIFIER), engine="fused", model=model, model_batch=100)
    part = part_of(task, parameters, IMAGES)
    (result,) = evaluate_part(context, task, parameters, part, IMAGES, ("steps", "predictions"), provenance={})
    # The attack computes gradients at the start and at each iterate. It attacks only correctly classified images.
    is_misclassified_by_pass = torch.stack(model.is_misclassified).numpy()
    assert len(is_misclassified_by_pass) == 10
    expected = np.where(
        is_misclassified_by_pass.any(axis=0), np.maximum(is_misclassified_by_pass.argmax(axis=0), 1), np.inf
    )
    steps = steps_of(result.values["steps"])
    np.testing.assert_array_equal(steps[~is_misclassified_without_attack()], expected)
    assert (steps[is_misclassified_without_attack()] == 0).all()
    assert len(np.unique(expected)) > 2


@pytest.mark.parametrize("key", RECORDING_KEYS)
def test_recording_steps_does_not_change_other_columns(key):
    expected = evaluate_key(key, ("confidence", "predictions"))
    for strength, values in evaluate_key(key, ("confidence", "predictions", "steps")).items():
        other_columns = {name: array.tobytes() for name, array in values.items() if name != "steps"}
        assert other_columns == {name: array.tobytes() for name, array in expected[strength].items()}
        parts = [evaluate_key(key, ("steps",), *bounds)[strength] for bounds in ((0, 8), (8, 21))]
        assert merge_values(parts)["steps"].tobytes() == values["steps"].tobytes()


@pytest.mark.parametrize("key", [key for key in RECORDING_KEYS if not key.startswith("pgd")])
def test_image_has_a_step_if_and_only_if_it_is_misclassified(key):
    for values in evaluate_key(key).values():
        np.testing.assert_array_equal(values["steps"] != NOT_FOOLED_STEP, is_misclassified(values))
        assert (values["steps"][is_misclassified_without_attack()] == 0).all()


@pytest.mark.parametrize("key", ["fmn", "fmn_l2", "fmn_l1", "fmn_l0"])
def test_attack_succeeds_no_later_in_larger_ball(key):
    steps = [steps_of(values["steps"]) for _, values in sorted(evaluate_key(key, steps=40).items())]
    assert all((smaller >= larger).all() for smaller, larger in itertools.pairwise(steps))
    assert len(np.unique(np.concatenate(steps))) > 3


def test_step_numbers_continue_across_restarts_and_targets():
    values_of_one_run = evaluate_key("aa_square", queries=3)
    values_of_three_runs = evaluate_key("aa_square", queries=3, restarts=3)
    targeted_values = evaluate_key("aa_apgd-t", steps=4, targets=3)
    for strength, values in values_of_three_runs.items():
        steps, first_run_steps = steps_of(values["steps"]), steps_of(values_of_one_run[strength]["steps"])
        np.testing.assert_array_equal(
            steps[np.isfinite(first_run_steps)], first_run_steps[np.isfinite(first_run_steps)]
        )
        later_steps = steps[np.isinf(first_run_steps) & np.isfinite(steps)]
        assert ((later_steps > 3) & (later_steps <= 9)).all()
    targeted_steps = np.concatenate([steps_of(values["steps"]) for values in targeted_values.values()])
    assert targeted_steps[np.isfinite(targeted_steps)].max() <= 12


def test_keys_without_attack_have_step_zero_for_misclassified_images_only():
    for key in ("clean", "fog"):
        for values in evaluate_key(key).values():
            np.testing.assert_array_equal(values["steps"], np.where(is_misclassified(values), 0, NOT_FOOLED_STEP))


@pytest.mark.parametrize(
    ("key", "engine", "message"),
    [
        ("pgd", "reference", "pgd does not record `steps` with engine reference"),
        ("aa_standard", "fused", "aa_standard does not record `steps` with any engine"),
        ("aa_fab", "fused", "aa_fab does not record"),
        ("rot10", "fused", "rot10 does not record"),
    ],
)
def test_attacks_that_record_no_steps_reject_steps_as_measurement(key, engine, message):
    with pytest.raises(ConfigError, match=message):
        evaluate_key(key, engine=engine)
