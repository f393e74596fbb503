"""Projection onto the intersection of an L1 ball with [0, 1].

Source: Croce and Hein, "Mind the box: l1-APGD for sparse adversarial attacks on image classifiers", ICML 2021, section
3; `pyautoattack.autopgd_base.L1_projection`, whose order of operations this module follows. The library projects only
images outside of the ball. Here every image is projected, so the host never waits for the device.
"""

import torch

from robust201.attacks.hyperplanes import bisect
from robust201.networks.device import cumulative_sum


def correction_to_l1(clean: torch.Tensor, difference: torch.Tensor, radii: torch.Tensor) -> torch.Tensor:
    """Return the correction (B, C, H, W) that projects images onto the intersection of an L1 ball with [0, 1].

    `clean` are the centres of the balls, and `difference` the images minus the centres, both (B, C, H, W); `radii` are
    (B, 1, 1, 1). Up to rounding, clean + difference + correction is in the L1 ball and in [0, 1].
    """
    x, y = clean.flatten(1), difference.flatten(1)
    n_values = x.shape[1]
    # Each value must move at least far enough to return to [0, 1], and at most to the centre. Moves towards the centre
    # are negative.
    smallest_move = torch.minimum(torch.zeros_like(y), torch.minimum(1 - x - y, x + y))
    largest_move = -y.abs()
    # If all values move at the same speed, their total distance is piecewise linear in time. Sort its breakpoints.
    negated, order = torch.sort(-torch.cat((smallest_move, largest_move), 1), dim=1)
    following = torch.cat((negated[:, 1:], torch.zeros_like(negated[:, :1])), 1)
    slopes = cumulative_sum(2 * (order < n_values).float() - 1, dim=1)
    smallest_sum = -smallest_move.sum(dim=1)
    slack = radii.flatten() - y.abs().sum(dim=1)
    sums = smallest_sum.unsqueeze(-1) + cumulative_sum((following - negated) * slopes, dim=1)
    low = bisect(lambda index: sums.gather(1, index) + slack[:, None] < 0, negated, 2 * n_values - 1)
    alpha = (-sums.gather(1, low) - slack[:, None]) / slopes.gather(1, low + 1) + following.gather(1, low)
    moves_to_ball = -torch.minimum(torch.maximum(-smallest_move, alpha), -largest_move)
    correction = torch.where((smallest_sum + slack < 0)[:, None], moves_to_ball, smallest_move)
    return (y.sign() * correction).view(clean.shape)
