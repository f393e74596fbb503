"""The balls that attacks keep to: what a strength means, how distances are measured, how results are labelled."""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


@dataclass(frozen=True)
class Constraint:
    """A ball of a norm around each image, in pixels of [0, 1].

    Attributes:
        name: of the norm; published keys of attacks end with ``@`` and it.
        order: of the norm.
        divisor: what a strength is divided by to give a radius: 255 where strengths are written in units of 1/255.
        axis: what strengths are called on the axis of a figure.
        slack: how far a float32 image may lie outside: attacks add, subtract, project and clip a few times, and each
            rounds.
        relative_slack: the same as a share of the radius, for sums of float32 numbers that grow with it.
    """

    name: str
    order: Literal["inf", 2, 1, 0]
    divisor: float
    axis: str
    slack: float
    relative_slack: float = 0.0

    def radius(self, strength: float) -> float:
        """Radius of the ball at a strength, in the units of pixels."""
        return strength / self.divisor

    def largest_radius(self, shape: "Sequence[int]") -> float:
        """Largest distance of two images (C, H, W) of [0, 1], in the units of pixels: a larger ball bounds nothing."""
        if self.order == "inf":
            return 1.0
        n_values = float(prod(shape))
        return n_values**0.5 if self.order == 2 else n_values

    def refusal(self, strengths: "Sequence[float]", shape: "Sequence[int]") -> str | None:
        """Say why images (C, H, W) cannot be attacked at some strengths; None where they can."""
        largest = self.largest_radius(shape) * self.divisor
        # What is shown is rounded, and may be written back.
        if max(strengths) <= largest * (1 + 1e-4):
            return None
        return (
            f"expected strengths up to {largest:.6g}, the largest {self.name} distance of images of {shape[-2]} x "
            f"{shape[-1]} pixels, got {max(strengths):g}. Leave it out."
        )

    def reach(self, strength: float) -> float:
        """Largest distance of a float32 image that counts as in the ball."""
        return self.reach_of_radius(self.radius(strength))

    def reach_of_radius(self, radius: float) -> float:
        """Return the same for a radius in the units of pixels."""
        return radius * (1 + self.relative_slack) + self.slack

    def distances(self, differences: "torch.Tensor") -> "torch.Tensor":
        """Lengths of differences of images, (B, 3, H, W) float32 to (B,)."""
        flat = differences.flatten(1)
        lengths: torch.Tensor
        if self.order == "inf":
            lengths = flat.abs().amax(dim=1)
            return lengths
        # Summed in float64: the check must not round more than what it checks.
        lengths = flat.double().norm(p=self.order, dim=1)
        return lengths


LINF = Constraint("Linf", "inf", 255.0, "epsilon in 1/255", 1e-6)
"""A pixel in [0, 1] is off by at most 2**-25 after one rounding."""

L2 = Constraint("L2", 2, 1.0, "epsilon (L2)", 1e-5)
"""Of 3,072 pixels that are each off by 2**-25 in the worst case, the norm is off by 1.7e-6 per rounding."""

L1 = Constraint("L1", 1, 1.0, "epsilon (L1)", 5e-4, 2e-5)
"""Of 3,072 pixels that are each off by 2**-25 in the worst case, the norm is off by 9.2e-5 per rounding. The projection
adds up float32 numbers whose sum is the length of the step that it takes back: of 20 radii, with a few roundings of
2**-24 each, it is off by some 5e-6 radii."""

L0 = Constraint("L0", 0, 1.0, "values changed (L0)", 0.0)
"""Counts the values of pixels that differ, each channel by itself; a value that is left alone has equal bits."""

CONSTRAINTS: dict[str, Constraint] = {constraint.name: constraint for constraint in (LINF, L2, L1, L0)}
"""By name."""
