"""Adversarial training: images stay in the ball, epsilon 0 and beta 0 have no effect, and the mode is restored."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from robust201.training.adversarial import RandomStarts, ascend, step_loss
from robust201.training.data import OneSource
from robust201.training.loop import train
from robust201.training.recipes import AdversarialTraining, PgdTraining, parse_distance
from tests.training.support import IMAGES, SPACE, SmallSpace, make_recipe, weights_hash

PIXELS = torch.from_numpy(IMAGES.images[:6]).float() / 255
LABELS = torch.from_numpy(IMAGES.labels[:6])
RANDOM_STARTS = RandomStarts(seed=1, epoch=0, ids=np.arange(6))


class RecordingNetwork(nn.Module):
    """A network that records, for each call, its input, its mode, and whether the input requires a gradient."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        self.calls = []

    def forward(self, pixels):
        self.calls.append((pixels.detach().clone(), self.training, pixels.requires_grad))
        return self.layers(pixels)


def make_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return RecordingNetwork().train()


def compute_loss(adversarial):
    network = make_network()
    section = None if adversarial is None else AdversarialTraining.model_validate(adversarial)
    return step_loss(network, network, PIXELS, LABELS, section, RANDOM_STARTS), network


METHODS = ("pgd", "trades")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("start", ["uniform", None])
@given(epsilon=st.sampled_from([0.002, "8/255", 0.4, 1]), step_size=st.floats(0, 1), n_steps=st.integers(1, 4))
def test_attack_keeps_all_images_in_the_ball_and_in_range(method, start, epsilon, step_size, n_steps):
    fields = {"epsilon": epsilon, "step": step_size, "steps": n_steps} | ({} if start is None else {"start": start})
    _, network = compute_loss({method: fields})
    # PGD trains with one pass; TRADES needs clean predictions for the attack, and trains with two passes.
    assert len(network.calls) == n_steps + (1 if method == "pgd" else 3)
    for pixels, _, _ in network.calls:
        assert pixels.min() >= 0
        assert pixels.max() <= 1
        assert (pixels - PIXELS).abs().max() <= parse_distance(epsilon) + 1e-6


def test_pgd_trains_on_perturbed_images_with_a_higher_loss():
    (standard_loss, _), _ = compute_loss(None)
    (adversarial_loss, logits), network = compute_loss({"pgd": {"epsilon": "8/255", "step": "2/255", "steps": 7}})
    training_images, was_training, _ = network.calls[-1]
    assert was_training
    assert (training_images - PIXELS).abs().max() > 7 / 255
    assert adversarial_loss > standard_loss
    with torch.no_grad():
        assert torch.equal(make_network()(training_images), logits)


def test_ascend_follows_the_sign_of_the_gradient():
    direction = torch.linspace(-1, 1, PIXELS[0].numel()).view(PIXELS[0].shape)
    attack = PgdTraining(epsilon="8/255", step="2/255", steps=3)
    grey_images = torch.full_like(PIXELS, 0.5)
    perturbed = ascend(lambda images: (images * direction).sum(), grey_images, grey_images, attack)
    torch.testing.assert_close(perturbed - grey_images, (6 / 255 * direction.sign()).expand_as(grey_images))


@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_pgd_with_epsilon_0_equals_standard_training_bit_by_bit(mode):
    hashes_and_histories = []
    for adversarial in (None, {"pgd": {"epsilon": 0, "steps": 1, "mode": mode}}):
        recipe = make_recipe(augmentation="std", adversarial=adversarial)
        (snapshot,) = train(SmallSpace(), "small", OneSource(IMAGES), recipe, seed=1)
        hashes_and_histories.append((weights_hash(snapshot.state_dict), snapshot.history))
    assert hashes_and_histories[0] == hashes_and_histories[1]


def test_trades_with_beta_0_has_the_standard_loss_and_gradient():
    gradients = []
    for adversarial in (None, {"trades": {"beta": 0, "steps": 2}}):
        (loss, logits), network = compute_loss(adversarial)
        loss.backward()
        gradients.append((loss, logits, *(parameter.grad for parameter in network.parameters())))
    for standard, trades in zip(*gradients, strict=True):
        assert torch.equal(standard, trades)


def test_trades_adds_the_divergence_between_clean_and_adversarial_predictions():
    (loss, logits), network = compute_loss({"trades": {"beta": 6, "steps": 3}})
    perturbed = network.calls[-1][0]
    reference = make_network()
    reference(PIXELS)
    clean_probabilities, adversarial_probabilities = logits.softmax(1), reference(perturbed).softmax(1)
    divergence = (clean_probabilities * (clean_probabilities.log() - adversarial_probabilities.log())).sum(1).mean()
    torch.testing.assert_close(loss, functional.cross_entropy(logits, LABELS) + 6 * divergence)
    assert divergence > 0
    # The attack starts from the image plus noise of standard deviation 0.001.
    start = network.calls[1][0]
    assert 0 < (start - PIXELS).abs().max() < 0.006
    assert (perturbed - PIXELS).abs().max() > 5 / 255


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_attack_uses_its_mode_and_does_not_update_statistics(method, mode):
    _, network = compute_loss({method: {"steps": 2, "mode": mode}})
    n_training_passes = 1 if method == "pgd" else 2
    assert [training for _, training, _ in network.calls[:-n_training_passes]] == [mode == "training"] * (
        2 + (method == "trades")
    )
    assert [training for _, training, _ in network.calls[-n_training_passes:]] == [True] * n_training_passes
    reference = make_network()
    for pixels, _, _ in network.calls[-n_training_passes:]:
        reference(pixels)
    for (name, buffer), expected in zip(network.named_buffers(), reference.buffers(), strict=True):
        assert torch.equal(buffer, expected), name


def test_attack_updates_statistics_if_update_statistics_is_set():
    _, network = compute_loss({"pgd": {"steps": 2, "mode": "training", "update_statistics": True}})
    reference = make_network()
    for pixels, _, _ in network.calls:
        reference(pixels)
    assert int(network.layers[1].num_batches_tracked) == 3
    assert torch.equal(network.layers[1].running_mean, reference.layers[1].running_mean)


@pytest.mark.parametrize(("method", "start"), [("pgd", "uniform"), ("trades", "normal"), ("trades", "uniform")])
def test_random_start_depends_only_on_image_epoch_and_seed(method, start):
    def start_images(ids, epoch=0, seed=1):
        """Return the starting points of the attack on grey images."""
        network = make_network()
        adversarial = AdversarialTraining.model_validate({method: {"steps": 1, "start": start, "epsilon": "200/255"}})
        step_loss(
            network, network, PIXELS[ids] * 0 + 0.5, LABELS[ids], adversarial, RandomStarts(seed, epoch, np.array(ids))
        )
        return network.calls[int(method == "trades")][0]

    all_starts = start_images([0, 1, 2, 3, 4, 5])
    assert torch.equal(start_images([4, 1]), all_starts[[4, 1]])
    assert not torch.equal(all_starts[0], all_starts[1])
    assert not torch.equal(start_images([0, 1], epoch=1), all_starts[:2])
    assert not torch.equal(start_images([0, 1], seed=2), all_starts[:2])
    noise = (all_starts - 0.5).flatten()
    if start == "normal":
        assert noise.std() == pytest.approx(0.001, rel=0.05)
    else:
        assert noise.abs().max() == pytest.approx(0.5)
        # Clipping to [0, 1] limits the uniform noise of ±200/255 to ±0.5; smaller noise is still uniform.
        assert (noise.abs() < 0.25).float().mean() == pytest.approx(0.25 / (200 / 255), abs=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_adversarial_training_accepts_a_network_with_zero_gradient(method):
    # The logits of architecture 10 do not depend on the image, so the attack's gradient is zero.
    recipe = make_recipe(epochs=1, weight_decay=0, adversarial={method: {"steps": 1}})
    (snapshot,) = train(SPACE, 10, OneSource(IMAGES), recipe, seed=1)
    assert np.isfinite(snapshot.history[-1].loss)
