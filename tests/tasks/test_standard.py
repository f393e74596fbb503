"""AutoAttack's standard version: parity with the library, and comparison of its stages with separate attacks."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from torch import nn

from robust201.core.errors import ConfigError
from robust201.core.noise import derived_seed
from robust201.models.classifier import Classifier
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.context import to_float
from robust201.tasks.evaluate import evaluate_part
from tests.support.library_parity import compare
from tests.support.tiny_networks import (
    NORMALISATION,
    TinyNetwork,
    attack_parameters,
    part_of,
    perturb_all,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

SEED = 5


def ten_class_classifier():
    """Return the tiny network with ten classes, which AutoAttack's nine targets need."""
    network = TinyNetwork()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network.classifier = nn.Linear(24, 10)
        nn.init.normal_(network.classifier.weight, std=3.0)
    return Classifier(network, NORMALISATION, 10)


@pytest.mark.parametrize(
    ("key", "strength_fields"),
    [
        ("aa_standard", {"epsilons_255": (2.0, 6.0)}),
        pytest.param("aa_standard_l2", {"epsilons": (0.15, 0.4)}, marks=pytest.mark.slow),
        ("aa_standard_l1", {"epsilons": (0.8, 2.5)}),
    ],
)
def test_standard_matches_library_bitwise(key, strength_fields):
    classifier = ten_class_classifier()
    images = tiny_images(10, classifier=classifier)
    parameters = TASKS[key].parameters(**strength_fields, steps=6, queries=20)
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    differences = compare(key, classifier, pixels, labels, parameters, seed=SEED, separate_strengths=True)
    bits = {(difference.image_bits, difference.logit_bits) for difference in differences.values()}
    assert bits == {(0, 0)}
    assert min(difference.n_changed for difference in differences.values()) > 0


def is_correct_by_strength(key, *, images=None, **changes):
    """Return one array (N,) per strength: whether each image is classified correctly after the fused attack."""
    images = images or tiny_images()
    context = dataclasses.replace(tiny_context(key), engine="fused")
    perturbed = perturb_all(TASKS[key], attack_parameters(TASKS[key], (1.0, 3.0), **changes), images, context)
    labels = torch.from_numpy(images.labels)
    return [(context.classifier.logits(pixels).argmax(dim=1) == labels).numpy() for pixels in perturbed.values()]


def test_standard_is_at_least_as_strong_as_first_stage():
    for is_correct, is_correct_after_first_stage in zip(
        is_correct_by_strength("aa_standard", steps=5, queries=10),
        is_correct_by_strength("aa_apgd-ce", steps=5),
        strict=True,
    ):
        assert not (is_correct & ~is_correct_after_first_stage).any()
        assert is_correct.sum() <= is_correct_after_first_stage.sum()


STAGES = [(1, "aa_apgd-ce"), (2, "aa_apgd-t"), (3, "aa_fab-t"), (4, "aa_square")]


def stage_counts(engine, parameters, images, classifier):
    """Return the number of images with each outcome (see the column `stages`), by strength."""
    images = dataclasses.replace(images, n_classes=classifier.n_classes)
    task = TASKS["aa_standard"]
    context = dataclasses.replace(tiny_context("", classifier, batch_size=len(images)), engine=engine)
    part = part_of(task, parameters, images)
    started_stages = []
    results = evaluate_part(
        context,
        task,
        parameters,
        part,
        images,
        ("stages",),
        provenance={},
        on_stage=lambda *stage: started_stages.append(stage),
    )
    counts_by_strength = {result.strength: result.values["stages"].tolist() for result in results}
    assert started_stages == STAGES
    return counts_by_strength


def test_reference_stages_match_library():
    classifier = ten_class_classifier()
    images = tiny_images(8, classifier=classifier)
    parameters = TASKS["aa_standard"].parameters(epsilons_255=(4.0,), steps=3, queries=10)
    pixels, labels = torch.from_numpy(images.images) / 255, torch.from_numpy(images.labels)
    attack_names = ["apgd-ce", "apgd-t", "fab-t", "square"]
    n_resisting = [int((classifier.logits(pixels).argmax(dim=1) == labels).sum())]
    for n_stages in range(1, 5):
        with torch.random.fork_rng():
            seed = derived_seed(tiny_context("").seed, "aa_standard", 0)
            adversary = AutoAttack(
                classifier, attacks=attack_names[:n_stages], eps=4 / 255, seed=seed, version="custom"
            )
            common_arguments = {"n_iter": 3, "eps": 4 / 255, "seed": seed, "logger": adversary.logger}
            adversary.apgd = APGDAttack(classifier, **common_arguments)
            adversary.apgd_targeted = APGDAttack_targeted(classifier, **common_arguments)
            adversary.fab.n_iter = 3
            adversary.square.n_queries = 10
            perturbed, _ = adversary.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
        n_resisting.append(int((classifier.logits(perturbed).argmax(dim=1) == labels).sum()))
    n_fooled = [before - after for before, after in itertools.pairwise(n_resisting)]
    expected = [len(images) - n_resisting[0], *n_fooled, n_resisting[-1]]
    assert stage_counts("reference", parameters, images, classifier) == {4.0: expected}
    assert sum(1 for count in expected if count) >= 3


def test_fused_first_stage_matches_apgd():
    classifier = ten_class_classifier()
    images = tiny_images(12, classifier=classifier)
    parameters = TASKS["aa_standard"].parameters(epsilons_255=(2.0, 4.0), steps=3, queries=10)
    context = dataclasses.replace(tiny_context("aa_apgd-ce", classifier), engine="fused")
    apgd_parameters = TASKS["aa_apgd-ce"].parameters(epsilons_255=(2.0, 4.0), steps=3)
    perturbed = perturb_all(TASKS["aa_apgd-ce"], apgd_parameters, images, context)
    labels = torch.from_numpy(images.labels)
    for strength, counts in stage_counts("fused", parameters, images, classifier).items():
        n_misclassified = int((classifier.logits(perturbed[strength]).argmax(dim=1) != labels).sum())
        assert counts[0] == 3  # one label in four differs from the prediction for the clean image
        assert counts[0] + counts[1] == n_misclassified
        assert sum(counts) == len(images)


def test_standard_keeps_first_stage_image_if_network_is_fooled():
    images = tiny_images()
    clean = to_float(torch.from_numpy(images.images))
    perturbed = {}
    for key, changes in (("aa_standard", {"steps": 5, "queries": 10}), ("aa_apgd-ce", {"steps": 5})):
        context = dataclasses.replace(tiny_context(key), engine="fused")
        perturbed[key] = perturb_all(TASKS[key], attack_parameters(TASKS[key], (3.0,), **changes), images, context)[3.0]
    is_changed = (perturbed["aa_apgd-ce"] != clean).flatten(1).any(dim=1)
    assert is_changed.any()
    torch.testing.assert_close(
        perturbed["aa_standard"][is_changed], perturbed["aa_apgd-ce"][is_changed], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("key", "n_classes"), [("aa_apgd-dlr", 2), ("aa_apgd-dlr_l2", 2), ("aa_apgd-t", 3), ("aa_standard_l1", 3)]
)
def test_too_few_classes_are_rejected_with_reason(key, n_classes):
    network = TinyNetwork()
    network.classifier = nn.Linear(24, n_classes)
    classifier = Classifier(network, NORMALISATION, n_classes)
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
                perturb_all(task, task.parameters(epsilons_255=(1.0,), steps=2), tiny_images(4), context)[1.0]
            )
        assert all(torch.isfinite(pixels).all() for pixels in images)
