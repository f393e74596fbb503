"""Adversarial training: the ball, strength 0, and the attack's effect on the network's state."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from robust201.training.adversarial import StartDraws, ascend, step_loss
from robust201.training.data import OneSource
from robust201.training.loop import train
from robust201.training.recipes import AdversarialTraining, PgdTraining, Recipe
from tests.training.support import IMAGES, SPACE, Small, weights_hash

PIXELS = torch.from_numpy(IMAGES.images[:6]).float() / 255
LABELS = torch.from_numpy(IMAGES.labels[:6])
DRAWS = StartDraws(seed=1, epoch=0, ids=np.arange(6))


class RecordingNetwork(nn.Module):
    """A network that records its inputs and its mode at each call."""

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


def loss_of(adversarial, network=None, draws=DRAWS):
    network = network or make_network()
    fields = None if adversarial is None else AdversarialTraining.model_validate(adversarial)
    return step_loss(network, network, PIXELS, LABELS, fields, draws), network


KINDS = ("pgd", "trades")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["uniform", None])
@given(epsilon=st.sampled_from([0.5, 8, 100, 255]), step=st.floats(0, 255), steps=st.integers(1, 4))
def test_attack_keeps_all_images_in_the_ball_and_in_range(kind, start, epsilon, step, steps):
    fields = {"epsilon_255": epsilon, "step_255": step, "steps": steps} | ({} if start is None else {"start": start})
    _, network = loss_of({kind: fields})
    assert len(network.calls) == steps + (1 if kind == "pgd" else 3)
    for pixels, _, _ in network.calls:
        assert pixels.min() >= 0
        assert pixels.max() <= 1
        assert (pixels - PIXELS).abs().max() <= epsilon / 255 + 1e-6


def test_pgd_trains_on_the_perturbed_images_at_a_higher_loss():
    (plain, _), _ = loss_of(None)
    (attacked, logits), network = loss_of({"pgd": {"epsilon_255": 8, "step_255": 2, "steps": 7}})
    last, was_training, _ = network.calls[-1]
    assert was_training
    assert (last - PIXELS).abs().max() > 7 / 255
    assert attacked > plain
    with torch.no_grad():
        assert torch.equal(make_network()(last), logits)


def test_ascend_steps_by_the_sign_of_the_gradient():
    direction = torch.linspace(-1, 1, PIXELS[0].numel()).view(PIXELS[0].shape)
    fields = PgdTraining(epsilon_255=8, step_255=2, steps=3)
    middle = torch.full_like(PIXELS, 0.5)
    moved = ascend(lambda images: (images * direction).sum(), middle, middle, fields)
    torch.testing.assert_close(moved - middle, (6 / 255 * direction.sign()).expand_as(middle))


@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_pgd_with_epsilon_0_equals_plain_training_bytewise(mode):
    base = {
        "epochs": 2,
        "batch_size": 8,
        "learning_rate": 0.1,
        "weight_decay": 5e-4,
        "schedule": {"cosine": {}},
        "augmentation": "std",
    }
    results = []
    for adversarial in (None, {"pgd": {"epsilon_255": 0, "steps": 1, "mode": mode}}):
        recipe = Recipe.model_validate(base | {"adversarial": adversarial})
        (snapshot,) = train(Small(), "small", OneSource(IMAGES), recipe, seed=1)
        results.append((weights_hash(snapshot.state_dict), snapshot.history))
    assert results[0] == results[1]


def test_trades_with_beta_0_has_the_plain_loss_and_gradient():
    gradients = []
    for adversarial in (None, {"trades": {"beta": 0, "steps": 2}}):
        (loss, logits), network = loss_of(adversarial)
        loss.backward()
        gradients.append((loss, logits, *(parameter.grad for parameter in network.parameters())))
    for plain, trades in zip(*gradients, strict=True):
        assert torch.equal(plain, trades)


def test_trades_adds_the_divergence_from_the_output_on_the_unperturbed_image():
    (loss, logits), network = loss_of({"trades": {"beta": 6, "steps": 3}})
    perturbed = network.calls[-1][0]
    reference = make_network()
    reference(PIXELS)
    original, attacked = logits.softmax(1), reference(perturbed).softmax(1)
    divergence = (original * (original.log() - attacked.log())).sum(1).mean()
    torch.testing.assert_close(loss, functional.cross_entropy(logits, LABELS) + 6 * divergence)
    assert divergence > 0
    # Its attack starts from the image plus noise of standard deviation 0.001 and increases the divergence.
    start = network.calls[1][0]
    assert 0 < (start - PIXELS).abs().max() < 0.006
    assert (perturbed - PIXELS).abs().max() > 5 / 255


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_attack_runs_in_its_mode_without_updating_the_statistics(kind, mode):
    _, network = loss_of({kind: {"steps": 2, "mode": mode}})
    passes = 1 if kind == "pgd" else 2
    assert [training for _, training, _ in network.calls[:-passes]] == [mode == "training"] * (2 + (kind == "trades"))
    assert [training for _, training, _ in network.calls[-passes:]] == [True] * passes
    reference = make_network()
    for pixels, _, _ in network.calls[-passes:]:
        reference(pixels)
    for (name, buffer), expected in zip(network.named_buffers(), reference.buffers(), strict=True):
        assert torch.equal(buffer, expected), name


def test_attack_updates_the_statistics_with_update_statistics():
    _, network = loss_of({"pgd": {"steps": 2, "mode": "training", "update_statistics": True}})
    reference = make_network()
    for pixels, _, _ in network.calls:
        reference(pixels)
    assert int(network.layers[1].num_batches_tracked) == 3
    assert torch.equal(network.layers[1].running_mean, reference.layers[1].running_mean)


def test_attack_leaves_no_gradients():
    (loss, _), network = loss_of({"pgd": {"steps": 2}})
    assert all(parameter.grad is None for parameter in network.parameters())
    loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(("kind", "start"), [("pgd", "uniform"), ("trades", "normal"), ("trades", "uniform")])
def test_start_depends_on_image_epoch_and_seed_only(kind, start):
    def starts(ids, epoch=0, seed=1):
        network = make_network()
        fields = AdversarialTraining.model_validate({kind: {"steps": 1, "start": start, "epsilon_255": 200}})
        step_loss(network, network, PIXELS[ids] * 0 + 0.5, LABELS[ids], fields, StartDraws(seed, epoch, np.array(ids)))
        return network.calls[int(kind == "trades")][0]

    together = starts([0, 1, 2, 3, 4, 5])
    assert torch.equal(starts([4, 1]), together[[4, 1]])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(starts([0, 1], epoch=1), together[:2])
    assert not torch.equal(starts([0, 1], seed=2), together[:2])
    noise = (together - 0.5).flatten()
    if start == "normal":
        assert noise.std() == pytest.approx(0.001, rel=0.05)
    else:
        assert noise.abs().max() == pytest.approx(0.5)
        # Clipping to [0, 1] cuts the uniform noise of ±200/255 at ±0.5, so below 0.5 it is still uniform.
        assert (noise.abs() < 0.25).float().mean() == pytest.approx(0.25 / (200 / 255), abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_network_without_a_path_is_trained(kind):
    """Its logits do not depend on the image, so the attack's gradient is zero."""
    recipe = Recipe.model_validate(
        {
            "epochs": 1,
            "batch_size": 8,
            "learning_rate": 0.1,
            "weight_decay": 0,
            "schedule": {"cosine": {}},
            "adversarial": {kind: {"steps": 1}},
        }
    )
    (snapshot,) = train(SPACE, 10, OneSource(IMAGES), recipe, seed=1)
    assert np.isfinite(snapshot.history[-1].loss)
