"""Steps at which images fall: what the attack with fewer steps gives, what it leaves alone, and who cannot tell."""

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
    """Columns of a key by strength."""
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
def test_square_with_fewer_queries_fools_the_images_that_fall_by_then(key, changes):
    n_queries = 24
    for strength, values in evaluated(key, queries=n_queries, **changes).items():
        steps = steps_of(values["steps"])
        np.testing.assert_array_equal(steps == 0, clean_wrong())
        for queries in (1, 2, 3, 7, 12, 23, n_queries):
            fewer = evaluated(key, ("predictions",), queries=queries, **changes)[strength]
            np.testing.assert_array_equal(steps <= queries, is_wrong(fewer))


@pytest.mark.parametrize(("key", "changes"), DESCENTS)
def test_pgd_fools_an_image_first_with_the_steps_at_which_it_falls(key, changes):
    n_steps, changes = 6, {"epsilons_255": (16.0, 64.0)} | changes
    whole = evaluated(key, steps=n_steps, **changes)
    fewer = {steps: evaluated(key, ("predictions",), steps=steps, **changes) for steps in range(1, n_steps + 1)}
    seen = set()
    for strength, values in whole.items():
        expected = np.full(len(IMAGES), np.inf)
        for steps in reversed(fewer):
            expected[is_wrong(fewer[steps][strength])] = steps
        expected[clean_wrong()] = 0
        np.testing.assert_array_equal(steps_of(values["steps"]), expected)
        seen |= set(expected)
    assert len(seen) > 2  # some when clean, some on the way, some never


class Tracing:
    """A model that keeps, for every gradient, whether each sample is misclassified there."""

    def __init__(self):
        self.wrong = []

    def logits(self, pixels):
        return CLASSIFIER.logits(pixels)

    def loss_and_gradient(self, pixels, labels):
        logits, loss, gradient = CLASSIFIER.loss_and_gradient(pixels, labels)
        self.wrong.append(logits.argmax(dim=1) != labels)
        return logits, loss, gradient


def test_apgd_counts_its_iterates_and_its_start_as_the_first():
    row = TASKS["aa_apgd-ce"]
    parameters = row.parameters(epsilons_255=(8.0,), steps=9)
    model = Tracing()
    context = dataclasses.replace(tiny_context(row.key, CLASSIFIER), engine="fused", model=model, model_batch=100)
    part = part_of(row, parameters, IMAGES)
    (result,) = evaluate_part(context, row, parameters, part, IMAGES, ("steps", "predictions"), provenance={})
    traced = torch.stack(model.wrong).numpy()  # start and iterates of the images that are right when clean
    assert len(traced) == 10
    expected = np.where(traced.any(axis=0), np.maximum(traced.argmax(axis=0), 1), np.inf)
    steps = steps_of(result.values["steps"])
    np.testing.assert_array_equal(steps[~clean_wrong()], expected)
    assert (steps[clean_wrong()] == 0).all()
    assert len(np.unique(expected)) > 2


@pytest.mark.parametrize("key", RECORDING)
def test_recording_changes_nothing_else_and_merges_to_the_byte(key):
    plain = evaluated(key, ("confidence", "predictions"))
    for strength, values in evaluated(key, ("confidence", "predictions", "steps")).items():
        others = {name: array.tobytes() for name, array in values.items() if name != "steps"}
        assert others == {name: array.tobytes() for name, array in plain[strength].items()}
        parts = [evaluated(key, ("steps",), *piece)[strength] for piece in ((0, 8), (8, 21))]
        assert merge_values(parts)["steps"].tobytes() == values["steps"].tobytes()


@pytest.mark.parametrize("key", [key for key in RECORDING if not key.startswith("pgd")])
def test_attacks_that_return_what_they_find_fool_exactly_the_images_that_fall(key):
    for values in evaluated(key).values():
        np.testing.assert_array_equal(values["steps"] != NEVER_FOOLED, is_wrong(values))
        assert (values["steps"][clean_wrong()] == 0).all()


@pytest.mark.parametrize("key", ["fmn", "fmn_l2", "fmn_l1", "fmn_l0"])
def test_an_image_falls_no_later_in_a_larger_ball(key):
    steps = [steps_of(values["steps"]) for _, values in sorted(evaluated(key, steps=40).items())]
    assert all((smaller >= larger).all() for smaller, larger in itertools.pairwise(steps))
    assert len(np.unique(np.concatenate(steps))) > 3


def test_restarts_and_targets_are_counted_one_after_another():
    one = evaluated("aa_square", queries=3)
    three = evaluated("aa_square", queries=3, restarts=3)
    targeted = evaluated("aa_apgd-t", steps=4, targets=3)
    for strength, values in three.items():
        steps, first = steps_of(values["steps"]), steps_of(one[strength]["steps"])
        np.testing.assert_array_equal(steps[np.isfinite(first)], first[np.isfinite(first)])
        later = steps[np.isinf(first) & np.isfinite(steps)]
        assert ((later > 3) & (later <= 9)).all()
    finite = np.concatenate([steps_of(values["steps"]) for values in targeted.values()])
    assert finite[np.isfinite(finite)].max() <= 12


def test_without_an_attack_images_fall_at_step_0_or_never():
    for key in ("clean", "fog"):
        for values in evaluated(key).values():
            np.testing.assert_array_equal(values["steps"], np.where(is_wrong(values), 0, NEVER_FOOLED))


@pytest.mark.parametrize(
    ("key", "engine", "words"),
    [
        ("pgd", "reference", "pgd does not record `steps` with engine reference"),
        ("aa_standard", "fused", "aa_standard does not record `steps` with any engine"),
        ("aa_fab", "fused", "aa_fab does not record"),
        ("rot10", "fused", "rot10 does not record"),
    ],
)
def test_attacks_that_cannot_tell_say_so(key, engine, words):
    with pytest.raises(ConfigError, match=words):
        evaluated(key, engine=engine)
