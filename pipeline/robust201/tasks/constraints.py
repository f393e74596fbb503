"""Norm balls of attacks: units of strengths, distances between images, and the norms' names in keys and figures."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

from robust201.core.radii import parse_radius

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

Norm = Literal["Linf", "L2", "L1"]
NORMS: tuple[Norm, ...] = get_args(Norm)


@dataclass(frozen=True)
class Constraint:
    """A norm ball around each image, whose pixels are in [0, 1].

    Attributes:
        name: name of the norm; published keys of attacks end with ``@`` and this name.
        order: order of the norm.
        divisor: radius = strength / divisor; 255 where strengths are given in units of 1/255.
        axis_label: label of the strengths' axis in figures.
        slack: distance by which float32 images may lie outside the ball, for pixels in [0, 1]. Attacks add,
            subtract, project and clip a few times, and each operation rounds.
        relative_slack: additional slack as a fraction of the radius, because the rounding errors of float32 sums grow
            with the radius.
    """

    name: Norm
    order: Literal["inf", 2, 1]
    divisor: float
    axis_label: str
    slack: float
    relative_slack: float = 0.0

    def strength_of(self, epsilon: object) -> float:
        """Convert an epsilon, a number or text such as ``8/255``, to the strength used in results.

        Raises:
            ValueError: see `parse_radius`.
        """
        strength = float(parse_radius(epsilon) * Fraction(self.divisor))
        # Round to 15 digits, so that 8/255 rounded to a float becomes 8 again.
        return strength if self.divisor == 1 else float(f"{strength:.15g}")

    def radius(self, strength: float) -> float:
        """Return the ball's radius at a strength, for pixels in [0, 1]."""
        return strength / self.divisor

    def largest_radius(self, shape: "Sequence[int]") -> float:
        """Return the largest distance between two images (C, H, W) in [0, 1]; larger balls contain all images."""
        if self.order == "inf":
            return 1.0
        n_values = float(prod(shape))
        return n_values**0.5 if self.order == 2 else n_values

    def excessive_strength_reason(self, strengths: "Sequence[float]", shape: "Sequence[int]") -> str | None:
        """Return why images (C, H, W) cannot be attacked at some strengths, or None."""
        largest = self.largest_radius(shape) * self.divisor
        # The message rounds the maximum, so accept the rounded number too.
        if max(strengths) <= largest * (1 + 1e-4):
            return None
        return (
            f"expected strengths up to {largest:.6g}, the largest {self.name} distance of images of {shape[-2]} x "
            f"{shape[-1]} pixels, got {max(strengths):g}. Remove larger strengths."
        )

    def reach(self, strength: float) -> float:
        """Return the largest distance at which a float32 image counts as inside the ball of a strength."""
        return self.reach_of_radius(self.radius(strength))

    def reach_of_radius(self, radius: float) -> float:
        """Return the largest distance at which a float32 image counts as inside a ball of this radius."""
        return radius * (1 + self.relative_slack) + self.slack

    def distances(self, differences: "torch.Tensor") -> "torch.Tensor":
        """Return the norms (B,) of the differences (B, C, H, W) float32 between images."""
        flat = differences.flatten(1)
        norms: torch.Tensor
        if self.order == "inf":
            norms = flat.abs().amax(dim=1)
            return norms
        # Sum in float64, so that the check does not round more than the attack that it checks.
        norms = flat.double().norm(p=self.order, dim=1)
        return norms


LINF = Constraint("Linf", "inf", 255.0, "epsilon in 1/255", 1e-6)
"""The Linf ball. One rounding changes a pixel in [0, 1] by at most 2**-25, which is less than the slack."""

L2 = Constraint("L2", 2, 1.0, "epsilon (L2)", 1e-5)
"""The L2 ball. In the worst case, one rounding changes each of 3,072 values by 2**-25, and the norm by 1.7e-6."""

L1 = Constraint("L1", 1, 1.0, "epsilon (L1)", 5e-4, 2e-5)
"""The L1 ball. In the worst case, one rounding changes each of 3,072 values by 2**-25, and the norm by 9.2e-5. The
projection also sums float32 numbers to find by how much to shorten a step. If the step is 20 times the radius and the
sum takes a few roundings of 2**-24 each, its error is about 5e-6 times the radius."""

CONSTRAINTS: dict[str, Constraint] = {constraint.name: constraint for constraint in (LINF, L2, L1)}
"""Constraints by the name of the norm."""
