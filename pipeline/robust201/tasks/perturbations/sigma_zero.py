"""σ-zero, an attack that minimises the number of changed values.

Source: Cinà et al., "σ-zero: Gradient-based Optimization of ℓ0-norm Adversarial Examples", ICLR 2025; `sigma_zero` of
the library adv-lib 0.2.8, whose order of operations this module follows. Adam minimises the label's margin plus a
smooth approximation of the fraction of changed values; values below a threshold are set to 0 after each step. The
threshold rises while the image is misclassified, and falls while it is not. Foolbox and AutoAttack do not have this
attack, so there is no reference implementation.
"""

from collections.abc import Callable, Iterator

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples
from robust201.tasks.attack_kit.batching import value_and_gradient_of
from robust201.tasks.attack_kit.context import Perturbed
from robust201.tasks.constraints import L0
from robust201.tasks.parameters import SigmaZero
from robust201.tasks.perturbations.minimum_norm import cosine_decay, fused_minimum_norm_batches, per_image

_BETAS = (0.9, 0.999)
_MIN_NORM = 1e-12
_ADAM_OFFSET = 1e-8


def fused(job: AttackJob, parameters: SigmaZero) -> Iterator[Perturbed]:
    """Attack each image once for all epsilons."""
    yield from fused_minimum_norm_batches(
        job, L0, lambda unbounded_job, samples: run_sigma_zero(unbounded_job, samples, parameters)
    )


def run_sigma_zero(job: AttackJob, samples: Samples, parameters: SigmaZero) -> torch.Tensor:
    """Return the misclassified iterate of each image that has the fewest changed values."""
    clean, labels = samples.clean, samples.labels
    delta, first_moment, second_moment = torch.zeros_like(clean), torch.zeros_like(clean), torch.zeros_like(clean)
    fewest_changed = clean.new_full((len(clean),), clean[0].numel() if len(clean) else 0)
    thresholds = torch.full_like(fewest_changed, parameters.threshold)
    best_images, margin, stepsize = clean, _margin(labels), parameters.stepsize
    for step in range(parameters.steps):
        images = clean + delta
        logits, _, gradient = value_and_gradient_of(job.model, job.batching, images, margin, samples.strength_indices)
        misclassified = logits.argmax(dim=1) != labels
        n_changed = delta.flatten(1).norm(p=0, dim=1)
        has_fewer_changed = misclassified & (n_changed < fewest_changed)
        fewest_changed = torch.where(has_fewer_changed, n_changed, fewest_changed)
        best_images = torch.where(per_image(has_fewer_changed), images, best_images)
        gradient = gradient + _changed_fraction_gradient(delta, parameters.sigma)
        gradient = gradient / per_image(gradient.flatten(1).norm(p=torch.inf, dim=1).clamp(min=_MIN_NORM))
        first_moment = first_moment.lerp(gradient, weight=1 - _BETAS[0])
        second_moment = (second_moment * _BETAS[1]).addcmul(gradient, gradient, value=1 - _BETAS[1])
        corrections = [1 - beta ** (step + 1) for beta in _BETAS]
        scale = second_moment.sqrt() / corrections[1] ** 0.5 + _ADAM_OFFSET
        delta = delta.addcdiv(first_moment, scale, value=-stepsize / corrections[0])
        delta = (delta + clean).clamp(0, 1) - clean
        stepsize = 0.1 * parameters.stepsize + 0.9 * parameters.stepsize * cosine_decay(step, parameters.steps)
        threshold_change = parameters.threshold_factor * stepsize
        thresholds = (thresholds + torch.where(misclassified, threshold_change, -threshold_change)).clamp(0, 1)
        delta = torch.where(delta.abs() < per_image(thresholds), 0.0, delta)
    return best_images


def _margin(labels: torch.Tensor) -> Callable[[torch.Tensor, slice], torch.Tensor]:
    def margin(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        label = labels[rows].clone()[:, None]
        other_logits = logits - torch.zeros_like(logits).scatter(1, label, torch.inf)
        return (logits.gather(1, label)[:, 0] - other_logits.amax(dim=1)).clamp(min=0)

    return margin


def _changed_fraction_gradient(delta: torch.Tensor, sigma: float) -> torch.Tensor:
    """Return the gradient of the mean of δ² / (δ² + σ) over an image's values."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        leaf = delta.clone().requires_grad_()
        squares = leaf.square()
        fractions = (squares / (squares + sigma)).flatten(1).mean(dim=1)
        (gradient,) = torch.autograd.grad(fractions.sum(), [leaf])
    return gradient
