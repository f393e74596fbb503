"""Bitwise comparison of fused attacks with the libraries' attacks, with equal random numbers and batches."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT

from robust201.attacks import square
from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import Request, to_float
from robust201.attacks.reference import foolbox
from robust201.attacks.runner import run_attack
from robust201.tasks import TASKS
from robust201.tasks.constraints import CONSTRAINTS
from tests.support.replayed_random_numbers import LargerBallRandomNumbers, ReplayedRandomNumbers

FOOLBOX = ("fgsm", "pgd", "pgd_linf7", "pgd_l2")
"""Keys that `library_images` attacks with Foolbox; under all other keys, it attacks with pyautoattack."""

LIBRARY_BATCHES = (10**9, 10**9)
"""Sizes of batches and pools; the libraries attack all images in one batch."""

STANDARD_L1 = "aa_standard_l1"


class Difference(NamedTuple):
    """Differences between the library's attack and the fused attack, and effects of the library's attack."""

    image_bits: int  # differing bits in the attacked images
    logit_bits: int  # differing bits in the logits of the attacked images
    n_changed: int  # images that the library changed
    n_correct: int  # images that are classified correctly after the library's attack


def library_images(key, classifier, pixels, labels, epsilon, seed, parameters):
    """Attack one batch at one epsilon with the library; return the attacked images."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if key in FOOLBOX:
            return foolbox_images(key, classifier, pixels, labels, epsilon, parameters)
        return autoattack_images(key, classifier, pixels, labels, epsilon, seed, parameters)


def foolbox_images(key, classifier, pixels, labels, epsilon, parameters):
    attack = foolbox.attacks.LinfFastGradientAttack()
    criterion = foolbox.criteria.Misclassification(labels)
    if key in ("pgd", "pgd_linf7"):
        attack = foolbox.attacks.LinfPGD(
            rel_stepsize=parameters.rel_stepsize, steps=parameters.steps, random_start=parameters.random_start
        )
        if key == "pgd" and parameters.target == "least_likely":
            with torch.no_grad():
                criterion = foolbox.criteria.TargetedMisclassification(classifier(pixels).argmin(dim=1))
    elif key == "pgd_l2":
        attack = foolbox.attacks.L2PGD(
            abs_stepsize=parameters.step_size, steps=parameters.steps, random_start=parameters.random_start
        )
    if key in ("pgd_linf7", "pgd_l2") and parameters.label == "predicted":
        with torch.no_grad():
            criterion = foolbox.criteria.Misclassification(classifier(pixels).argmax(dim=1))
    model = foolbox.PyTorchModel(classifier, bounds=(0, 1), device=classifier.device)
    return attack(model, pixels, criterion, epsilons=epsilon)[1].detach()


def autoattack_images(key, classifier, pixels, labels, epsilon, seed, parameters):
    name, _, norm = key.removeprefix("aa_").partition("_")
    norm = norm.upper() or "Linf"
    device = classifier.device
    adversary = AutoAttack(
        classifier, attacks=[name], eps=epsilon, norm=norm, seed=seed, version="custom", device=device
    )
    adversary.verbose = False
    if name == "standard":
        return standard_images(classifier, pixels, labels, epsilon, norm, seed, parameters)
    apgd_options = {"norm": norm, "eps": epsilon, "seed": seed, "device": device, "logger": adversary.logger}
    if name == "square":
        adversary.square.n_queries = parameters.queries
        adversary.square.n_restarts = parameters.restarts
        adversary.square.p_init = parameters.p_init
    elif name == "fab-t":
        adversary.fab = FABAttack_PT(
            classifier,
            n_restarts=1,
            n_iter=parameters.steps,
            eps=epsilon,
            seed=seed,
            norm=norm,
            device=device,
            n_target_classes=min(parameters.targets, classifier.n_classes - 1),
        )
    else:
        apgd_options |= {"n_iter": parameters.steps, "n_restarts": parameters.restarts}
        apgd_options["use_largereps"] = norm == "L1" and parameters.larger_epsilons
        if name == "apgd-t":
            n_targets = min(parameters.targets, classifier.n_classes - 1)
            adversary.apgd_targeted = APGDAttack_targeted(classifier, n_target_classes=n_targets, **apgd_options)
        else:
            adversary.apgd = APGDAttack(classifier, loss=name.removeprefix("apgd-"), **apgd_options)
    return adversary.run_standard_evaluation(pixels, labels, batch_size=len(pixels))[0].detach().clamp(0, 1)


def standard_images(classifier, pixels, labels, epsilon, norm, seed, parameters):
    """Attack with AutoAttack's standard version, changing only the numbers of steps and queries."""
    adversary = AutoAttack(classifier, eps=epsilon, norm=norm, seed=seed, version="standard")
    adversary.verbose = False
    for attack_name in ("apgd", "apgd_targeted"):
        default = getattr(adversary, attack_name)
        targeted_options = {"n_target_classes": default.n_target_classes} if attack_name == "apgd_targeted" else {}
        # Build a new object, because the constructor derives other values from the number of steps.
        replacement = type(default)(
            classifier,
            n_iter=parameters.steps,
            norm=norm,
            n_restarts=default.n_restarts,
            eps=epsilon,
            rho=default.thr_decr,
            use_largereps=default.use_largereps,
            logger=default.logger,
            **targeted_options,
        )
        setattr(adversary, attack_name, replacement)
    adversary.fab.n_iter = parameters.steps
    adversary.square.n_queries = parameters.queries
    return adversary.run_standard_evaluation(pixels, labels, batch_size=len(pixels))[0].detach().clamp(0, 1)


def fused_images(key, classifier, images, labels, epsilons, seed, parameters, *, model=None):
    """Attack one batch with the fused attack at S epsilons, one after the other; return (S, N, 3, H, W).

    The attacked model is `model` (default: `classifier`).
    """
    device = classifier.device if key in FOOLBOX else "cpu"
    begins_with_larger_balls = parameters.norm == "L1" and getattr(parameters, "larger_epsilons", key == STANDARD_L1)
    random_numbers_class = LargerBallRandomNumbers if begins_with_larger_balls else ReplayedRandomNumbers
    batched_model = BatchedModel(model or classifier, classifier.n_classes, *LIBRARY_BATCHES)
    adversarial = torch.full((len(epsilons), *images.shape), torch.nan, device=images.device)
    divisor = CONSTRAINTS[parameters.norm].divisor
    for strength_index, epsilon in enumerate(epsilons):
        request = Request((epsilon * divisor,), images, labels, np.arange(len(images)))
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(square, "queries_per_check", lambda _query: 1)
            for batch in run_attack(TASKS[key], parameters, batched_model, request, random_numbers_class(seed, device)):
                adversarial[strength_index, batch.positions] = batch.images
    return adversarial


def count_differing_bits(first, second):
    first, second = (tensor.detach().cpu().contiguous().numpy().view(np.uint8) for tensor in (first, second))
    return int(np.unpackbits(first ^ second).sum())


def compare(key, classifier, images, labels, parameters, *, seed):
    """Compare the library's and the fused attack on one batch (N, 3, H, W) uint8; return {strength: Difference}."""
    constraint = CONSTRAINTS[parameters.norm]
    epsilons = [constraint.radius(strength) for strength in parameters.strengths]
    fused = fused_images(key, classifier, images, labels, epsilons, seed, parameters)
    differences = {}
    for strength, epsilon, fused_images_at_strength in zip(parameters.strengths, epsilons, fused, strict=True):
        expected = library_images(key, classifier, to_float(images), labels, epsilon, seed, parameters)
        with torch.no_grad():
            expected_logits = classifier(expected)
        with torch.inference_mode():
            logits = classifier.logits(fused_images_at_strength)
        differences[strength] = Difference(
            count_differing_bits(fused_images_at_strength, expected),
            count_differing_bits(logits, expected_logits),
            int((expected != to_float(images)).flatten(1).any(dim=1).sum()),
            int((expected_logits.argmax(dim=1) == labels).sum()),
        )
    return differences
