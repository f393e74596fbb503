"""From a budget to sample sizes: how many images of each key networks other than the pilot's are shown.

All networks are shown n_k images of key k, at a cost c_k per image. With equal variances, the sum of variances is
smallest for n_k proportional to 1 / sqrt(c_k) (Neyman's optimum allocation with costs; Cochran, "Sampling Techniques",
1977, section 5.5), so a key that costs a hundredth gets ten times the images.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from robust201.core.errors import ConfigError
from robust201.planning.sampling_section import Budget
from robust201.statistics.sampling import MIN_PER_STRATUM

N_STRATA = 10
"""Strata of a sample."""

_ROUNDING = 1e-9

SampledKey = tuple[str, str]
"""Dataset and key."""


@dataclass(frozen=True)
class SampleCosts:
    """What a sampled sweep costs, in multiply-accumulates.

    Attributes:
        fixed: of the pilot, and of all networks under the keys that are not sampled.
        per_image: of one image for all networks but the pilot's, by dataset and key.
        n_images: all images, by dataset and key.
        macs_per_hour: of a worker.
    """

    fixed: float
    per_image: Mapping[SampledKey, float]
    n_images: Mapping[SampledKey, int]
    macs_per_hour: float

    @property
    def whole(self) -> float:
        """Cost of all networks on all images."""
        return self.fixed + sum(cost * self.n_images[key] for key, cost in self.per_image.items())

    def of_sizes(self, sizes: Mapping[SampledKey, int]) -> float:
        return self.fixed + sum(cost * sizes[key] for key, cost in self.per_image.items())


def smallest_sample(n_images: int) -> int:
    """Images that a sample of so many needs at least: enough for the variance of each stratum."""
    return min(n_images, MIN_PER_STRATUM * N_STRATA)


def smallest_cost(costs: SampleCosts) -> float:
    """Cost of the smallest samples of all keys, with the pilot and the keys that are not sampled."""
    return costs.of_sizes({key: smallest_sample(count) for key, count in costs.n_images.items()})


def sample_sizes(costs: SampleCosts, budget: Budget, name: str) -> dict[SampledKey, int]:
    """Divide a budget among keys; a larger budget gives none of them fewer images.

    Raises:
        ConfigError: the budget is below the cost of the pilot, or gives a key fewer images than its strata need.
    """
    if not costs.per_image:  # images that cannot be counted yet
        return {}
    macs_of_hours = 0.0 if budget.hours is None else budget.hours * costs.macs_per_hour
    allowed = macs_of_hours if budget.fraction is None else budget.fraction * costs.whole
    least = {key: smallest_sample(count) for key, count in costs.n_images.items()}
    needed = smallest_cost(costs)
    enough = _show(costs, needed, round_up=True)
    if least == dict(costs.n_images) and allowed < costs.whole * (1 - _ROUNDING):
        raise ConfigError(
            f"Sampling failed for {name}: expected more than {MIN_PER_STRATUM * N_STRATA} images, as a sample has "
            f"{MIN_PER_STRATUM} of each of {N_STRATA} strata, got {max(least.values())}. Take more images, or remove "
            "the section sampling."
        )
    if allowed < costs.fixed:
        raise ConfigError(
            f"Sampling failed for {name}: expected a budget of at least {enough}, since the pilot and "
            f"the keys that are not sampled take {_show(costs, costs.fixed)}, got {_show(costs, allowed)}. Raise the "
            "budget, or choose a smaller pilot."
        )
    if allowed < needed * (1 - _ROUNDING):
        (dataset, key), count = next(iter(least.items()))
        raise ConfigError(
            f"Sampling failed for {name}: expected a budget of at least {enough}, for {count} images of "
            f"{key} on {dataset} and likewise of other keys, {MIN_PER_STRATUM} for each stratum, got "
            f"{_show(costs, allowed)}. Raise the budget, or choose a smaller pilot."
        )
    if allowed >= costs.whole * (1 - _ROUNDING):
        return dict(costs.n_images)
    return _divide(costs, least, allowed)


def _divide(costs: SampleCosts, least: Mapping[SampledKey, int], allowed: float) -> dict[SampledKey, int]:
    """Find the largest factor of 1 / sqrt(cost) at which sizes fit, by bisection."""

    def sizes_at(factor: float) -> dict[SampledKey, int]:
        return {
            key: max(least[key], min(costs.n_images[key], math.floor(factor / math.sqrt(cost))))
            for key, cost in costs.per_image.items()
        }

    low, high = 0.0, max(count * math.sqrt(costs.per_image[key]) for key, count in costs.n_images.items()) + 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if costs.of_sizes(sizes_at(middle)) <= allowed else (low, middle)
    return sizes_at(low)


def _show(costs: SampleCosts, macs: float, *, round_up: bool = False) -> str:
    hours, percent = (_round(value, up=round_up) for value in (macs / costs.macs_per_hour, 100 * macs / costs.whole))
    return f"{hours} worker-hour{'' if hours == '1' else 's'} ({percent}% of the whole sweep)"


def _round(value: float, *, up: bool) -> str:
    """Round to three digits, and up where a smaller number would not do; without an exponent."""
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(value)))
    scale: float = 10**digits
    text = f"{math.ceil(value * scale * (1 - _ROUNDING)) / scale if up else value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
