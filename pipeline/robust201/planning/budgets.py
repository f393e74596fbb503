"""Sample sizes for a budget: the number of images per key on which each network is evaluated.

The pilot networks are an exception: they are evaluated on all images, and their outcomes determine which images are
sampled.

Under key k, each other network is evaluated on n_k images at a cost of c_k per image. If all keys have equal variances,
then for a given total cost the sum of variances is smallest for n_k proportional to 1 / sqrt(c_k). A key with a
hundredth of the cost per image therefore gets ten times as many images (Neyman's optimum allocation with costs;
Cochran, "Sampling Techniques", 1977, section 5.5).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from robust201.core.errors import ConfigError
from robust201.planning.sampling_section import Budget
from robust201.statistics.sampling import MIN_PER_STRATUM

N_STRATA = 10
"""Number of strata of a sample: groups of images of similar difficulty, each of which is sampled separately."""

_ROUNDING_TOLERANCE = 1e-9
"""Relative rounding error that is tolerated when costs are compared."""

DatasetKey = tuple[str, str]
"""Dataset and key."""


@dataclass(frozen=True)
class SampleCosts:
    """Costs of a sampled sweep, in multiply-accumulates.

    Attributes:
        fixed: cost that sampling does not reduce: the pilot, and all networks under the keys that are not sampled.
        per_image: cost of evaluating all networks outside the pilot on one image, by dataset and key.
        n_images: number of images in the population, by dataset and key.
        macs_per_hour: speed of a worker.
    """

    fixed: float
    per_image: Mapping[DatasetKey, float]
    n_images: Mapping[DatasetKey, int]
    macs_per_hour: float

    @property
    def full_cost(self) -> float:
        """Cost of all networks on all images."""
        return self.fixed + sum(cost * self.n_images[dataset_key] for dataset_key, cost in self.per_image.items())

    def cost_with_sizes(self, sizes: Mapping[DatasetKey, int]) -> float:
        """Return the cost of a sweep with these sample sizes, which are given by dataset and key."""
        return self.fixed + sum(cost * sizes[dataset_key] for dataset_key, cost in self.per_image.items())


def smallest_sample(n_images: int) -> int:
    """Return the minimum size of a sample from `n_images` images: enough to compute a variance in each stratum."""
    return min(n_images, MIN_PER_STRATUM * N_STRATA)


def smallest_cost(costs: SampleCosts) -> float:
    """Return the minimum cost of a sampled sweep: the fixed cost and the smallest samples."""
    return costs.cost_with_sizes({dataset_key: smallest_sample(count) for dataset_key, count in costs.n_images.items()})


def sample_sizes(costs: SampleCosts, budget: Budget, name: str) -> dict[DatasetKey, int]:
    """Divide a budget among keys, and return the sample sizes; a larger budget never reduces a size.

    `name` is the name of the sweep for error messages.

    Raises:
        ConfigError: the budget is below the cost of the pilot, or gives a key fewer images than its strata need.
    """
    if not costs.per_image:  # the images of the sampled keys are not available yet, so they cannot be counted
        return {}
    hours_macs = 0.0 if budget.hours is None else budget.hours * costs.macs_per_hour
    allowed_macs = hours_macs if budget.fraction is None else budget.fraction * costs.full_cost
    smallest_sizes = {dataset_key: smallest_sample(count) for dataset_key, count in costs.n_images.items()}
    min_cost = smallest_cost(costs)
    min_budget = _format_cost(costs, min_cost, round_up=True)
    if smallest_sizes == dict(costs.n_images) and allowed_macs < costs.full_cost * (1 - _ROUNDING_TOLERANCE):
        raise ConfigError(
            f"Sampling failed for {name}: expected more than {MIN_PER_STRATUM * N_STRATA} images, because a sample has "
            f"at least {MIN_PER_STRATUM} from each of {N_STRATA} strata, got {max(smallest_sizes.values())}. Use more "
            "images, or remove the section `sampling`."
        )
    if allowed_macs < costs.fixed:
        raise ConfigError(
            f"Sampling failed for {name}: expected a budget of at least {min_budget}, got "
            f"{_format_cost(costs, allowed_macs)}: the pilot and the keys that are not sampled take "
            f"{_format_cost(costs, costs.fixed)}. Raise the budget, or choose a smaller pilot."
        )
    if allowed_macs < min_cost * (1 - _ROUNDING_TOLERANCE):
        (dataset, key), count = next(iter(smallest_sizes.items()))
        raise ConfigError(
            f"Sampling failed for {name}: expected a budget of at least {min_budget}, got "
            f"{_format_cost(costs, allowed_macs)}. The minimum pays for {count} images ({MIN_PER_STRATUM} per stratum) "
            f"of {key} on {dataset}, and for the minimum of every other sampled key. Raise the budget, or choose a "
            "smaller pilot."
        )
    if allowed_macs >= costs.full_cost * (1 - _ROUNDING_TOLERANCE):
        return dict(costs.n_images)
    return _divide_budget(costs, smallest_sizes, allowed_macs)


def _divide_budget(
    costs: SampleCosts, smallest_sizes: Mapping[DatasetKey, int], allowed_macs: float
) -> dict[DatasetKey, int]:
    """Return sizes proportional to 1 / sqrt(cost per image), with the largest factor that fits, by bisection."""

    def sizes_at(factor: float) -> dict[DatasetKey, int]:
        return {
            dataset_key: max(
                smallest_sizes[dataset_key], min(costs.n_images[dataset_key], math.floor(factor / math.sqrt(cost)))
            )
            for dataset_key, cost in costs.per_image.items()
        }

    low, high = (
        0.0,
        max(count * math.sqrt(costs.per_image[dataset_key]) for dataset_key, count in costs.n_images.items()) + 1,
    )
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if costs.cost_with_sizes(sizes_at(middle)) <= allowed_macs else (low, middle)
    return sizes_at(low)


def _format_cost(costs: SampleCosts, macs: float, *, round_up: bool = False) -> str:
    hours, percent = (
        _format_number(value, round_up=round_up) for value in (macs / costs.macs_per_hour, 100 * macs / costs.full_cost)
    )
    return f"{hours} worker-hour{'' if hours == '1' else 's'} ({percent}% of the full sweep)"


def _format_number(value: float, *, round_up: bool) -> str:
    """Format a number with three significant digits and without exponent; rounded up if `round_up` is set."""
    digits = 0 if not value else max(0, 2 - math.floor(math.log10(value)))
    scale: float = 10**digits
    text = f"{math.ceil(value * scale * (1 - _ROUNDING_TOLERANCE)) / scale if round_up else value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text
