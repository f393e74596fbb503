"""Adversarial training: the ball, its limits of strength 0, and what the attack leaves of the network."""

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


class Watched(nn.Module):
    """A network that keeps what it was shown, and in which mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        self.seen = []

    def forward(self, pixels):
        self.seen.append((pixels.detach().clone(), self.training, pixels.requires_grad))
        return self.layers(pixels)


def make_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Watched().train()


def loss_of(adversarial, network=None, draws=DRAWS):
    network = network or make_network()
    fields = None if adversarial is None else AdversarialTraining.model_validate(adversarial)
    return step_loss(network, network, PIXELS, LABELS, fields, draws), network


KINDS = ("pgd", "trades")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", ["uniform", None])
@given(epsilon=st.sampled_from([0.5, 8, 100, 255]), step=st.floats(0, 255), steps=st.integers(1, 4))
def test_all_images_shown_are_in_the_ball_and_in_range(kind, start, epsilon, step, steps):
    fields = {"epsilon_255": epsilon, "step_255": step, "steps": steps} | ({} if start is None else {"start": start})
    _, network = loss_of({kind: fields})
    assert len(network.seen) == steps + (1 if kind == "pgd" else 3)
    for shown, _, _ in network.seen:
        assert shown.min() >= 0
        assert shown.max() <= 1
        assert (shown - PIXELS).abs().max() <= epsilon / 255 + 1e-6


def test_pgd_shows_the_network_what_it_found_and_it_is_worse():
    (plain, _), _ = loss_of(None)
    (attacked, logits), network = loss_of({"pgd": {"epsilon_255": 8, "step_255": 2, "steps": 7}})
    last, was_training, _ = network.seen[-1]
    assert was_training
    assert (last - PIXELS).abs().max() > 7 / 255
    assert attacked > plain
    with torch.no_grad():
        assert torch.equal(make_network()(last), logits)


def test_a_step_is_that_of_the_sign():
    direction = torch.linspace(-1, 1, PIXELS[0].numel()).view(PIXELS[0].shape)
    fields = PgdTraining(epsilon_255=8, step_255=2, steps=3)
    middle = torch.full_like(PIXELS, 0.5)
    moved = ascend(lambda images: (images * direction).sum(), middle, middle, fields)
    torch.testing.assert_close(moved - middle, (6 / 255 * direction.sign()).expand_as(middle))


@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_pgd_in_a_ball_of_no_radius_is_plain_training_to_the_byte(mode):
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


def test_trades_without_weight_is_plain_in_its_loss_and_gradient():
    gradients = []
    for adversarial in (None, {"trades": {"beta": 0, "steps": 2}}):
        (loss, logits), network = loss_of(adversarial)
        loss.backward()
        gradients.append((loss, logits, *(parameter.grad for parameter in network.parameters())))
    for plain, trades in zip(*gradients, strict=True):
        assert torch.equal(plain, trades)


def test_trades_adds_the_divergence_from_what_the_image_gives():
    (loss, logits), network = loss_of({"trades": {"beta": 6, "steps": 3}})
    perturbed = network.seen[-1][0]
    again = make_network()
    again(PIXELS)
    expected, got = logits.softmax(1), again(perturbed).softmax(1)
    divergence = (expected * (expected.log() - got.log())).sum(1).mean()
    torch.testing.assert_close(loss, functional.cross_entropy(logits, LABELS) + 6 * divergence)
    assert divergence > 0
    # Its attack starts a thousandth off the image, and climbs the divergence.
    start = network.seen[1][0]
    assert 0 < (start - PIXELS).abs().max() < 0.006
    assert (perturbed - PIXELS).abs().max() > 5 / 255


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_the_attack_runs_in_its_mode_and_leaves_the_statistics(kind, mode):
    _, network = loss_of({kind: {"steps": 2, "mode": mode}})
    passes = 1 if kind == "pgd" else 2
    assert [training for _, training, _ in network.seen[:-passes]] == [mode == "training"] * (2 + (kind == "trades"))
    assert [training for _, training, _ in network.seen[-passes:]] == [True] * passes
    reference = make_network()
    for shown, _, _ in network.seen[-passes:]:
        reference(shown)
    for (name, buffer), expected in zip(network.named_buffers(), reference.buffers(), strict=True):
        assert torch.equal(buffer, expected), name


def test_the_attack_moves_the_statistics_where_the_recipe_says_so():
    _, network = loss_of({"pgd": {"steps": 2, "mode": "training", "update_statistics": True}})
    reference = make_network()
    for shown, _, _ in network.seen:
        reference(shown)
    assert int(network.layers[1].num_batches_tracked) == 3
    assert torch.equal(network.layers[1].running_mean, reference.layers[1].running_mean)


def test_the_attack_leaves_no_gradients():
    (loss, _), network = loss_of({"pgd": {"steps": 2}})
    assert all(parameter.grad is None for parameter in network.parameters())
    loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize(("kind", "start"), [("pgd", "uniform"), ("trades", "normal"), ("trades", "uniform")])
def test_a_start_is_the_images_own(kind, start):
    def starts(ids, epoch=0, seed=1):
        network = make_network()
        fields = AdversarialTraining.model_validate({kind: {"steps": 1, "start": start, "epsilon_255": 200}})
        step_loss(network, network, PIXELS[ids] * 0 + 0.5, LABELS[ids], fields, StartDraws(seed, epoch, np.array(ids)))
        return network.seen[int(kind == "trades")][0]

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
        # Uniform in a ball of 200/255 and cut to [0, 1], as far as half of it reaches.
        assert (noise.abs() < 0.25).float().mean() == pytest.approx(0.25 / (200 / 255), abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_without_a_path_trains(kind):
    """Its logits do not depend on the image, so there is no gradient to climb."""
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
