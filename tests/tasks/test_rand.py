"""AutoAttack's version for randomised networks: parity on a deterministic network, and behaviour on noisy networks."""

import dataclasses

import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack
from pyautoattack.autopgd_base import APGDAttack
from torch import nn

from robust201.api import evaluate
from robust201.core.errors import ConfigError, NetworkError, RobustWarning
from robust201.models.classifier import Classifier
from robust201.security import curves
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.replay import ReplayedRandomNumbers
from robust201.tasks.perturbations.rand import AveragedGradients, fused
from tests.support.library_parity import LIBRARY_BATCHES
from tests.support.tiny_networks import (
    N_CLASSES,
    NORMALISATION,
    TinyNetwork,
    perturb_all,
    tiny_classifier,
    tiny_context,
    tiny_images,
)

IMAGES = tiny_images(12)
PIXELS, LABELS = torch.from_numpy(IMAGES.images), torch.from_numpy(IMAGES.labels)
SEED, STEPS, PASSES = 5, 6, 3


class NoisyNetwork(nn.Module):
    """The tiny network with normal noise on its logits. It counts its passes, and those with a gradient."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.network = TinyNetwork()
        self.deviation = deviation
        self.n_passes = self.n_gradients = 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.n_passes += 1
        self.n_gradients += pixels.requires_grad
        logits = self.network(pixels)
        return logits + self.deviation * torch.randn_like(logits)


def library_images(classifier: nn.Module, radius: float, norm: str, *, passes: int = PASSES) -> torch.Tensor:
    """Attack with AutoAttack's version for randomised networks, with fewer steps and passes."""
    adversary = AutoAttack(classifier, eps=radius, norm=norm, seed=SEED, version="rand")
    assert (adversary.attacks_to_run, adversary.apgd.n_restarts) == (["apgd-ce", "apgd-dlr"], 1)
    adversary.verbose = False
    common_arguments = {"norm": norm, "eps": radius, "seed": SEED, "logger": adversary.logger, "n_restarts": 1}
    adversary.apgd = APGDAttack(classifier, n_iter=STEPS, eot_iter=passes, **common_arguments)
    with torch.random.fork_rng():
        return adversary.run_standard_evaluation(PIXELS / 255, LABELS, batch_size=12)[0].detach().clamp(0, 1)


@pytest.mark.parametrize(("key", "radius", "norm"), [("aa_rand", 2 / 255, "Linf"), ("aa_rand_l2", 0.2, "L2")])
def test_fused_rand_matches_library_bitwise_on_deterministic_network(key: str, radius: float, norm: str) -> None:
    classifier = tiny_classifier()
    job = AttackJob(
        *(classifier, LIBRARY_BATCHES, ReplayedRandomNumbers(SEED, "cpu"), PIXELS, LABELS),
        indices=np.arange(len(PIXELS)),
        epsilons=(radius,),
    )
    images = torch.full(PIXELS.shape, torch.nan)
    for batch in fused(job, TASKS[key].parameters(steps=STEPS, passes=PASSES)):
        images[batch.positions] = batch.images
    expected = library_images(classifier, radius, norm)
    assert (images != PIXELS / 255).any()
    assert torch.equal(images, expected)


def test_defaults_match_library() -> None:
    adversary = AutoAttack(tiny_classifier(), version="rand")
    parameters = TASKS["aa_rand"].parameters()
    assert (parameters.steps, parameters.passes) == (adversary.apgd.n_iter, adversary.apgd.eot_iter) == (100, 20)


def test_number_of_gradients_matches_library() -> None:
    """Without noise, images resist epsilons this small, so every gradient of both attacks is computed."""
    n_gradients = {}
    for name in ("fused", "library"):
        network = NoisyNetwork(0.0)
        classifier = Classifier(network, NORMALISATION, N_CLASSES)
        if name == "library":
            library_images(classifier, 1e-4 / 255, "Linf")
        else:
            context = dataclasses.replace(tiny_context("aa_rand", classifier), engine="fused")
            perturb_all(
                TASKS["aa_rand"],
                TASKS["aa_rand"].parameters(epsilons_255=(1e-4,), steps=STEPS, passes=PASSES),
                IMAGES,
                context,
            )
        n_gradients[name] = network.n_gradients
    assert n_gradients["fused"] == n_gradients["library"] == 2 * (STEPS + 1) * PASSES


def test_averaged_gradients_are_means_of_independent_passes() -> None:
    """The variance of the cross-entropy's gradient under noise decreases with the number of passes."""
    torch.manual_seed(0)
    classifier = Classifier(NoisyNetwork(2.0), NORMALISATION, N_CLASSES)
    pixels = PIXELS[:4] / 255

    def variance(passes: int) -> float:
        model = AveragedGradients(classifier, passes)
        gradients = torch.stack([model.loss_and_gradient(pixels, LABELS[:4])[2] for _ in range(60)])
        return float(gradients.var(dim=0).sum())

    assert 10 < variance(1) / variance(20) < 40


@pytest.mark.parametrize("engine", ["fused", "reference"])
def test_evaluate_of_noisy_network_is_reproducible(engine: str) -> None:
    keys = ["clean", {"autoattack": {"epsilons_255": [8], "steps": 5, "passes": 4}}]
    arguments = (IMAGES.images, IMAGES.labels, keys)
    options = {"normalisation": NORMALISATION, "progress": False, "engine": engine}
    tables = [evaluate(NoisyNetwork(0.5), *arguments, randomised=True, seed=3, **options) for _ in range(2)]
    assert tables[0]["key"].tolist() == ["clean", "aa_rand"]
    assert tables[0].outcomes.equals(tables[1].outcomes)
    assert tables[0]["accuracy"][1] < tables[0]["accuracy"][0]
    with pytest.raises(NetworkError, match=r"randomised=True"):
        evaluate(NoisyNetwork(0.5), IMAGES.images, IMAGES.labels, ["clean"], **options)


def test_accuracy_under_noise_matches_library_statistically() -> None:
    images = np.tile(IMAGES.images, (10, 1, 1, 1))
    labels = np.tile(IMAGES.labels, 10)
    accuracies = {}
    for engine in ("fused", "reference"):
        table = evaluate(
            NoisyNetwork(0.5),
            *(images, labels, {"aa_rand": {"epsilons_255": [1], "steps": 8, "passes": 5}}),
            randomised=True,
            engine=engine,
            normalisation=NORMALISATION,
            progress=False,
        )
        accuracies[engine] = table["accuracy"].item()
    assert 0.05 < accuracies["reference"] < 0.75
    assert abs(accuracies["fused"] - accuracies["reference"]) < 0.12


def test_standard_version_warns_about_randomised_network() -> None:
    keys = {"aa_standard": {"epsilons_255": [2], "steps": 2, "queries": 3}}
    with pytest.warns(RobustWarning, match="does not average over the network's random numbers"):
        evaluate(NoisyNetwork(0.1), IMAGES.images, IMAGES.labels, keys, randomised=True, normalisation=NORMALISATION)


@pytest.mark.parametrize("key", ["fmn", "ddn_l2", "sigma_zero_l0"])
def test_minimum_norm_attacks_reject_randomised_networks(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"failed for {key}: it is a minimum-norm attack"):
        evaluate(NoisyNetwork(0.5), IMAGES.images, IMAGES.labels, ["clean", key], randomised=True)
    with pytest.raises(ConfigError, match="it is a minimum-norm attack"):
        curves(NoisyNetwork(0.5), IMAGES.images, IMAGES.labels, TASKS[key].constraint.name, key, randomised=True)
