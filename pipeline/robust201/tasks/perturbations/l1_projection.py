"""Projection to the intersection of an L1 ball with [0, 1].

Source: Croce and Hein, "Mind the box: l1-APGD for sparse adversarial attacks on image classifiers", ICML 2021, section
3; `pyautoattack.autopgd_base.L1_projection`, in whose order of operations this is, without its choice of rows, which a
device would have to be waited for.
"""

import math

import torch


def correction_to_l1(clean: torch.Tensor, difference: torch.Tensor, radii: torch.Tensor) -> torch.Tensor:
    """Find what to add so that an image is the nearest one in the ball and in [0, 1].

    Args:
        clean: (B, 3, H, W) in [0, 1], centres of the balls.
        difference: (B, 3, H, W), of the images to project from their centres.
        radii: (B, 1, 1, 1).

    Returns:
        (B, 3, H, W): clean + difference + it lies in both.
    """
    x, y = clean.flatten(1), difference.flatten(1)
    n_values = x.shape[1]
    # How far each value may move: back into [0, 1] at least, to the centre at most; both 0 or below.
    least = torch.minimum(torch.zeros_like(y), torch.minimum(1 - x - y, x + y))
    most = -y.abs()
    # The sum of the distances falls piecewise linearly while all values move at the same speed: breakpoints ascending.
    negated, order = torch.sort(-torch.cat((least, most), 1), dim=1)
    following = torch.cat((negated[:, 1:], torch.zeros_like(negated[:, :1])), 1)
    slopes = (2 * (order < n_values).float() - 1).cumsum(dim=1)
    least_sum = -least.sum(dim=1)
    excess = radii.flatten() - y.abs().sum(dim=1)
    sums = least_sum.unsqueeze(-1) + torch.cumsum((following - negated) * slopes, dim=1)
    low = torch.zeros(len(x), 1, dtype=torch.int64, device=x.device)
    high = torch.full_like(low, 2 * n_values - 1)
    for _ in range(math.ceil(math.log2(2 * n_values))):
        middle = (low + high) // 2
        is_outside = sums.gather(1, middle) + excess[:, None] < 0
        low, high = torch.where(is_outside, middle, low), torch.where(is_outside, high, middle)
    alpha = (-sums.gather(1, low) - excess[:, None]) / slopes.gather(1, low + 1) + following.gather(1, low)
    moved = -torch.minimum(torch.maximum(-least, alpha), -most)
    correction = torch.where((least_sum + excess < 0)[:, None], moved, least)
    return (y.sign() * correction).view(clean.shape)
