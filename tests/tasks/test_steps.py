"""Steps at which images are fooled: comparison with attacks of fewer steps, merging, and unsupported attacks."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError
from robust201.tasks import TASKS
from robust201.tasks.columns import NEVER_FOOLED, steps_of
from robust201.tasks.evaluate import evaluate_part
from robust201.tasks.measurements import merge_values
from tests.support.tiny_networks import (
    UnroundedNetwork,
    part_of,
    small_parameters,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

CLASSIFIER = tiny_classifier(UnroundedNetwork())
IMAGES = tiny_images(classifier=CLASSIFIER)
RECORDING = [key for key, row in TASKS.items() if row.records_steps]


def evaluated(key, measurements=("predictions", "steps"), start=0, stop=None, engine="fused", **changes):
    """Return a key's columns by strength."""
    row = TASKS[key]
    context = dataclasses.replace(tiny_context(key, CLASSIFIER), engine=engine)
    parameters = small_parameters(row, **changes)
    part = part_of(row, parameters, IMAGES, start, stop)
    results = evaluate_part(context, row, parameters, part, IMAGES, measurements, provenance={})
    return {result.strength: result.values for result in results}


def is_wrong(values):
    return values["predictions"] != IMAGES.labels


def clean_wrong():
    (values,) = evaluated("clean", ("predictions",)).values()
    return is_wrong(values)


SEARCHES = [("aa_square", {}), ("aa_square_l2", {}), ("aa_square_l1", {})]
DESCENTS = [
    ("pgd", {}),
    ("pgd", {"random_start": False}),
    ("pgd_linf7", {"random_start": True, "iterate": "best"}),
    ("pgd_linf7", {"label": "predicted"}),
    ("pgd_l2", {"iterate": "best"}),
    ("pgd_l2", {"random_start": True}),
]


@pytest.mark.parametrize(("key", "changes"), SEARCHES)
def test_steps_of_square_match_attacks_with_fewer_queries(key, changes):
    n_queries = 24
    for strength, values in evaluated(key, queries=n_queries, **changes).items():
        steps = steps_of(values["steps"])
        np.testing.assert_array_equal(steps == 0, clean_wrong())
        for queries in (1, 2, 3, 7, 12, 23, n_queries):
            fewer = evaluated(key, ("predictions",), queries=queries, **changes)[strength]
            np.testing.assert_array_equal(steps <= queries, is_wrong(fewer))


@pytest.mark.parametrize(("key", "changes"), DESCENTS)
def test_steps_of_pgd_match_attacks_with_fewer_steps(key, changes):
    n_steps, changes = 6, {"epsilons_255": (16.0, 64.0)} | changes
    whole = evaluated(key, steps=n_steps, **changes)
    fewer = {steps: evaluated(key, ("predictions",), steps=steps, **changes) for steps in range(1, n_steps + 1)}
    all_steps = set()
    for strength, values in whole.items():
        expected = np.full(len(IMAGES), np.inf)
        for steps in reversed(fewer):
            expected[is_wrong(fewer[steps][strength])] = steps
        expected[clean_wrong()] = 0
        np.testing.assert_array_equal(steps_of(values["steps"]), expected)
        all_steps |= set(expected)
    assert len(all_steps) > 2  # some clean images, some at later steps, some never


class TracingModel:
    """A model that records, for every gradient, whether each sample is misclassified there."""

    def __init__(self):
        self.wrong = []

    def logits(self, pixels):
        return CLASSIFIER.logits(pixels)

    def loss_and_gradient(self, pixels, labels):
        logits, loss, gradient = CLASSIFIER.loss_and_gradient(pixels, labels)
        self.wrong.append(logits.argmax(dim=1) != labels)
        return logits, loss, gradient


def test_steps_of_apgd_match_traced_iterates():
    row = TASKS["aa_apgd-ce"]
    parameters = row.parameters(epsilons_255=(8.0,), steps=9)
    model = TracingModel()
    context = dataclasses.replace(tiny_context(row.key, CLASSIFIER), engine="fused", model=model, model_batch=100)
    part = part_of(row, parameters, IMAGES)
    (result,) = evaluate_part(context, row, parameters, part, IMAGES, ("steps", "predictions"), provenance={})
    traced = torch.stack(model.wrong).numpy()  # starting point and iterates of images that are correct when clean
    assert len(traced) == 10
    expected = np.where(traced.any(axis=0), np.maximum(traced.argmax(axis=0), 1), np.inf)
    steps = steps_of(result.values["steps"])
    np.testing.assert_array_equal(steps[~clean_wrong()], expected)
    assert (steps[clean_wrong()] == 0).all()
    assert len(np.unique(expected)) > 2


@pytest.mark.parametrize("key", RECORDING)
def test_recording_steps_does_not_change_other_columns(key):
    plain = evaluated(key, ("confidence", "predictions"))
    for strength, values in evaluated(key, ("confidence", "predictions", "steps")).items():
        others = {name: array.tobytes() for name, array in values.items() if name != "steps"}
        assert others == {name: array.tobytes() for name, array in plain[strength].items()}
        parts = [evaluated(key, ("steps",), *piece)[strength] for piece in ((0, 8), (8, 21))]
        assert merge_values(parts)["steps"].tobytes() == values["steps"].tobytes()


@pytest.mark.parametrize("key", [key for key in RECORDING if not key.startswith("pgd")])
def test_steps_match_outcomes_of_attacks_that_return_any_misclassified_image(key):
    for values in evaluated(key).values():
        np.testing.assert_array_equal(values["steps"] != NEVER_FOOLED, is_wrong(values))
        assert (values["steps"][clean_wrong()] == 0).all()


@pytest.mark.parametrize("key", ["fmn", "fmn_l2", "fmn_l1", "fmn_l0"])
def test_image_is_fooled_no_later_in_larger_ball(key):
    steps = [steps_of(values["steps"]) for _, values in sorted(evaluated(key, steps=40).items())]
    assert all((smaller >= larger).all() for smaller, larger in itertools.pairwise(steps))
    assert len(np.unique(np.concatenate(steps))) > 3


def test_steps_of_restarts_and_targets_are_counted_on():
    single = evaluated("aa_square", queries=3)
    three = evaluated("aa_square", queries=3, restarts=3)
    targeted = evaluated("aa_apgd-t", steps=4, targets=3)
    for strength, values in three.items():
        steps, first = steps_of(values["steps"]), steps_of(single[strength]["steps"])
        np.testing.assert_array_equal(steps[np.isfinite(first)], first[np.isfinite(first)])
        later = steps[np.isinf(first) & np.isfinite(steps)]
        assert ((later > 3) & (later <= 9)).all()
    finite = np.concatenate([steps_of(values["steps"]) for values in targeted.values()])
    assert finite[np.isfinite(finite)].max() <= 12


def test_steps_without_attack_are_0_or_never():
    for key in ("clean", "fog"):
        for values in evaluated(key).values():
            np.testing.assert_array_equal(values["steps"], np.where(is_wrong(values), 0, NEVER_FOOLED))


@pytest.mark.parametrize(
    ("key", "engine", "message"),
    [
        ("pgd", "reference", "pgd does not record `steps` with engine reference"),
        ("aa_standard", "fused", "aa_standard does not record `steps` with any engine"),
        ("aa_fab", "fused", "aa_fab does not record"),
        ("rot10", "fused", "rot10 does not record"),
    ],
)
def test_unsupported_attacks_reject_steps(key, engine, message):
    with pytest.raises(ConfigError, match=message):
        evaluated(key, engine=engine)
