"""robust201's own attacks (engine `fused`) for AttackBench (`attackbenchlib`), which times them and counts passes.

Source: Cinà et al., "AttackBench: Evaluating Gradient-based Attacks for Adversarial Examples", AAAI 2025;
attackbenchlib 2.0. AttackBench calls ``attack(model=…, inputs=…, labels=…, targets=…, targeted=…)`` with a module that
counts the passes of each image and records the nearest misclassified image among its inputs.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from robust201.core.errors import ConfigError, DatasetError, did_you_mean
from robust201.models.model import Objective
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.batching import Batching
from robust201.tasks.attack_kit.context import to_float
from robust201.tasks.attack_kit.random_numbers import CounterRandomNumbers
from robust201.tasks.parameters import MinimumNorm

AttackCallable = Callable[..., torch.Tensor]
"""An attack as AttackBench calls it (see `attackbench_attack`)."""


def attackbench_attack(key: str, *, seed: int = 0, **parameters: Any) -> AttackCallable:
    """Return a minimum-norm attack as a callable for AttackBench.

    Args:
        key: a minimum-norm attack of the fused engine, such as ``"fmn_l2"``.
        seed: seed of its random numbers.
        parameters: parameters of the attack, such as ``steps=1000``.

    Returns:
        (model, inputs, labels, targets=None, targeted=False) → images (N, 3, H, W). Inputs are (N, 3, H, W) float32 in
        [0, 1], multiples of 1/255. In addition to its steps, the attack makes one forward pass to find the images
        that are already misclassified.

    Raises:
        ConfigError: the fused engine has no such minimum-norm attack.
    """
    known_keys = [
        name for name, task in TASKS.items() if issubclass(task.parameters, MinimumNorm) and "fused" in task.functions
    ]
    if key not in known_keys:
        raise ConfigError(
            f"Creating an attack for AttackBench failed for {key!r}: expected one of {', '.join(known_keys)}."
            f"{did_you_mean(str(key), known_keys)}"
        )
    task, attack_parameters = TASKS[key], TASKS[key].parameters(**parameters)
    run_job = task.load("fused")

    def attack(
        model: nn.Module,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        targets: torch.Tensor | None = None,
        targeted: bool = False,
    ) -> torch.Tensor:
        del targets
        if targeted:
            raise ConfigError(f"Attacking failed for {key}: the attack is untargeted. Call it with targeted=False.")
        job = AttackJob(
            model=_ModuleAsModel(model),
            batching=Batching(max(1, len(inputs)), max(1, len(inputs))),
            random_numbers=CounterRandomNumbers(seed, key),
            images=_to_8_bit(inputs, key),
            labels=labels,
            indices=np.arange(len(inputs)),
            epsilons=(math.inf,),
        )
        perturbed_images = inputs.clone()
        for batch in run_job(job, attack_parameters):
            perturbed_images[batch.positions] = batch.images
        return perturbed_images

    attack.__name__ = key
    return attack


def _to_8_bit(inputs: torch.Tensor, key: str) -> torch.Tensor:
    pixels = (inputs * 255).round().clamp(0, 255).to(torch.uint8)
    if not torch.allclose(to_float(pixels), inputs, rtol=0, atol=1e-6):
        raise DatasetError(
            f"Attacking failed for {key}: pixels must be multiples of 1/255 in [0, 1]. Round the images to 8 bits."
        )
    return pixels


class _ModuleAsModel:
    """Adapter from a module to `Model`. AttackBench's module counts passes, so it is neither compiled nor copied."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(mode=False), torch.no_grad():
            logits: torch.Tensor = self._module(pixels.clone())
        return logits

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        def cross_entropy(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            return functional.cross_entropy(logits, labels[rows].clone(), reduction="none")

        return self.value_and_gradient(pixels, cross_entropy)

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.inference_mode(mode=False), torch.enable_grad():
            leaf_pixels = pixels.clone().requires_grad_()
            logits: torch.Tensor = self._module(leaf_pixels)
            values = objective(logits, slice(0, len(leaf_pixels)))
            (gradient,) = torch.autograd.grad(values.sum(), [leaf_pixels])
        return logits.detach(), values.detach(), gradient
