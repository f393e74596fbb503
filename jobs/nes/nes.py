"""NES, an attack that sees only the network's outputs: projected gradient ascent on an estimated gradient (norm Linf).

Source: Ilyas, Engstrom, Athalye and Lin, "Black-box Adversarial Attacks with Limited Queries and Information", ICML
2018. The gradient of the loss is estimated from its values at pairs of points, image + sigma u and image - sigma u with
normal u. Each step follows the sign of the estimate and is projected onto the ball. Here the loss is the cross-entropy
of the true class, and an image is left alone once it is misclassified.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

Model = Callable[[Tensor], Tensor]


def perturb(
    model: Model,
    images: Tensor,
    labels: Tensor,
    strength: float,
    samples: int = 50,
    steps: int = 40,
    sigma: float = 0.001,
    step: float = 0.1,
) -> Tensor:
    """Return attacked images.

    Args:
        model: maps pixels in [0, 1] to logits.
        images: (B, C, H, W) in [0, 1].
        labels: (B,) true classes.
        strength: radius in units of 1/255.
        samples: queries per estimate; even, since they come in pairs.
        steps: number of steps.
        sigma: standard deviation of the pixel offsets at which the loss is evaluated.
        step: length of a step, as a fraction of the radius.
    """
    radius = strength / 255
    lower, upper = (images - radius).clamp(0, 1), (images + radius).clamp(0, 1)
    attacked = images.clone()
    with torch.no_grad():
        for _ in range(steps):
            correct = model(attacked).argmax(dim=1) == labels
            if not correct.any():
                break
            gradient = estimate_gradient(model, attacked[correct], labels[correct], samples, sigma)
            moved = attacked[correct] + step * radius * gradient.sign()
            attacked[correct] = moved.clamp(lower[correct], upper[correct])
    return attacked


def estimate_gradient(model: Model, images: Tensor, labels: Tensor, samples: int, sigma: float) -> Tensor:
    """Estimate the gradient of the cross-entropy with respect to the pixels."""
    gradient = torch.zeros_like(images)
    for _ in range(samples // 2):
        direction = torch.randn_like(images)
        above, below = (loss(model, images + sign * sigma * direction, labels) for sign in (1, -1))
        slope = (above - below) / (2 * sigma)
        gradient += slope.to(images.dtype)[:, None, None, None] * direction
    return gradient / (samples // 2)


def loss(model: Model, images: Tensor, labels: Tensor) -> Tensor:
    """Return each image's cross-entropy, in float64, because losses of nearly certain predictions hardly differ."""
    return cross_entropy(model(images).double(), labels, reduction="none")
