"""Attacks for AttackBench have its signature, return the fused engine's images, and make the expected passes."""

import inspect

import pytest
import torch
from torch import nn

from robust201.bench.attackbench import attackbench_attack
from robust201.core.errors import ConfigError, DatasetError
from robust201.tasks import TASKS
from tests.support.tiny_networks import Float64Network, perturb_all, tiny_classifier, tiny_context, tiny_images

IMAGES = tiny_images(12)
PIXELS, LABELS = torch.from_numpy(IMAGES.images) / 255, torch.from_numpy(IMAGES.labels)
LARGEST_EPSILONS = {"fmn": 255.0, "fmn_l2": (3 * 64) ** 0.5, "ddn_l2": (3 * 64) ** 0.5, "sigma_zero_l0": 192.0}
"""Epsilons whose balls contain all images, by key."""


class CountingModule(nn.Module):
    """A module that counts the images in its passes, as AttackBench's module does."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = tiny_classifier(Float64Network())
        self.n_forward = self.n_backward = 0

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.n_forward += len(pixels)
        if pixels.requires_grad:
            pixels.register_hook(self._count)
        return self.classifier(pixels)

    def _count(self, gradient: torch.Tensor) -> None:
        self.n_backward += len(gradient)


@pytest.mark.parametrize("key", LARGEST_EPSILONS)
def test_attackbench_attack_matches_fused_engine(key: str) -> None:
    network = CountingModule()
    attack = attackbench_attack(key, seed=11, steps=15)
    images = attack(model=network, inputs=PIXELS, labels=LABELS, targets=None, targeted=False)
    task = TASKS[key]
    field = "epsilons_255" if key == "fmn" else "epsilons"
    context = tiny_context(key, network.classifier)
    context = type(context)(**{**vars(context), "engine": "fused"})
    fused_images = perturb_all(task, task.parameters(steps=15, **{field: (LARGEST_EPSILONS[key],)}), IMAGES, context)[
        LARGEST_EPSILONS[key]
    ]
    assert (images != PIXELS).any()
    torch.testing.assert_close(images, fused_images, rtol=0, atol=1e-6)
    n_correct = int((network.classifier(PIXELS).argmax(dim=1) == LABELS).sum())
    assert (network.n_forward, network.n_backward) == (12 + 15 * n_correct, 15 * n_correct)


def test_attackbench_attack_has_signature_for_attackbench() -> None:
    parameter_names = list(inspect.signature(attackbench_attack("fmn")).parameters)
    assert parameter_names == ["model", "inputs", "labels", "targets", "targeted"]


def test_attackbench_attack_rejects_other_keys_targets_and_float_images() -> None:
    with pytest.raises(ConfigError, match="expected one of fmn, fmn_l2, fmn_l1, fmn_l0, ddn_l2, sigma_zero_l0"):
        attackbench_attack("pgd")
    attack = attackbench_attack("fmn", steps=1)
    with pytest.raises(ConfigError, match="fmn: the attack is untargeted"):
        attack(model=CountingModule(), inputs=PIXELS, labels=LABELS, targeted=True)
    with pytest.raises(DatasetError, match="multiples of 1/255"):
        attack(model=CountingModule(), inputs=PIXELS * 0.99, labels=LABELS)
