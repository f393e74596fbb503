"""AutoAttack's standard version: parity with the library, order of its stages, and networks with few classes."""

import dataclasses

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError
from robust201.evaluation.evaluate import evaluate_part
from robust201.networks.classifier import Classifier
from robust201.tasks import TASKS
from tests.support.library_parity import compare
from tests.support.tiny_networks import (
    NORMALISATION,
    TinyNetwork,
    part_of,
    perturb_all,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

SEED = 5


def ten_class_classifier():
    """Return the tiny network with ten classes, which AutoAttack's nine targets need."""
    return Classifier(TinyNetwork(n_classes=10), NORMALISATION, 10)


@pytest.mark.parametrize(
    ("key", "strength_fields"),
    [
        ("aa_standard", {"epsilons": ("2/255", "6/255")}),
        pytest.param("aa_standard_l2", {"epsilons": (0.15, 0.4)}, marks=pytest.mark.slow),
        ("aa_standard_l1", {"epsilons": (0.8, 2.5)}),
    ],
)
def test_standard_matches_library_bitwise(key, strength_fields):
    classifier = ten_class_classifier()
    images = tiny_images(10, classifier=classifier)
    parameters = TASKS[key].parameters(**strength_fields, steps=6, queries=20)
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    differences = compare(key, classifier, pixels, labels, parameters, seed=SEED)
    n_differing_bits = {(difference.image_bits, difference.logit_bits) for difference in differences.values()}
    assert n_differing_bits == {(0, 0)}
    assert min(difference.n_changed for difference in differences.values()) > 0


STAGES = [(1, "aa_apgd-ce"), (2, "aa_apgd-t"), (3, "aa_fab-t"), (4, "aa_square")]


@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_stages_begin_in_order(engine):
    classifier = ten_class_classifier()
    images = dataclasses.replace(tiny_images(12, classifier=classifier), n_classes=classifier.n_classes)
    task = TASKS["aa_standard"]
    parameters = task.parameters(epsilons=("2/255", "4/255"), steps=3, queries=10)
    context = dataclasses.replace(tiny_context("", classifier, batch_size=len(images)), engine=engine)
    part, started_stages = part_of(task, parameters, images), []
    arguments = (context, task, parameters, part, images, ("accuracy",))
    list(evaluate_part(*arguments, provenance={}, on_stage=lambda *stage: started_stages.append(stage)))
    n_passes = 2 if engine == "reference" else 1
    assert [stage[:2] for stage in started_stages] == STAGES * n_passes


@pytest.mark.parametrize(("key", "n_classes"), [("aa_apgd-t", 3), ("aa_standard_l1", 3)])
def test_too_few_classes_are_rejected_with_reason(key, n_classes):
    classifier = Classifier(TinyNetwork(n_classes=n_classes), NORMALISATION, n_classes)
    images = tiny_images(2, labels=np.zeros(2), classifier=classifier)
    parameters = TASKS[key].parameters()
    for engine in ("reference", "fused"):
        context = dataclasses.replace(tiny_context(key, classifier), engine=engine)
        with pytest.raises(
            ConfigError, match=rf"{key}: expected {n_classes + 1} classes or more, since the .*DLR loss"
        ):
            perturb_all(TASKS[key], parameters, images, context)
    assert parameters.unsupported_classes_reason(n_classes + 1) is None


def test_targets_are_limited_to_other_classes():
    # Five classes allow four targets; AutoAttack would fail at the fifth.
    classifier = tiny_classifier()
    for key in ("aa_apgd-t", "aa_fab-t"):
        task = TASKS[key]
        images = []
        for engine in ("reference", "fused"):
            context = dataclasses.replace(tiny_context(key, classifier), engine=engine)
            images.append(
                perturb_all(task, task.parameters(epsilons=("1/255",), steps=2), tiny_images(4), context)[1.0]
            )
        assert all(torch.isfinite(pixels).all() for pixels in images)
