"""NES (jobs/nes), an example of a custom attack, keeps images in the ball and is better than random corners."""

import runpy

import pytest
import torch
from torch import nn

from tests.conftest import REPOSITORY

NES = REPOSITORY / "jobs/nes/nes.py"


@pytest.fixture(scope="module")
def nes() -> dict:
    return runpy.run_path(str(NES))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3, bias=False)).eval()
    with torch.no_grad():  # without this bias, nearly all images would have the same class
        network[1].bias.copy_(-0.5 * network[1].weight.sum(dim=1))
    return network.requires_grad_(False)


def test_nes_stays_in_ball_skips_misclassified_images_and_beats_random_corners(nes, network):
    torch.manual_seed(2)
    images = torch.rand(64, 3, 2, 2)
    predictions = network(images).argmax(dim=1)
    labels = torch.where(torch.arange(64) < 48, predictions, (predictions + 1) % 3)
    attacked = nes["perturb"](network, images, labels, 40.0, samples=20, steps=15)
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert (attacked - images).abs().max() <= 40 / 255 + 1e-6
    assert torch.equal(attacked[48:], images[48:])
    fooled_fraction = (network(attacked).argmax(dim=1) != labels)[:48].float().mean()
    random_corners = (images + 40 / 255 * (2 * torch.randint_like(images, 2) - 1)).clamp(0, 1)
    assert fooled_fraction > (network(random_corners).argmax(dim=1) != labels)[:48].float().mean() + 0.2
