"""Sample sizes for a budget fit the budget, have the right proportions, and do not decrease with the budget."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.errors import ConfigError
from robust201.planning.budgets import SampleCosts, sample_sizes, smallest_sample
from robust201.planning.sampling_section import Budget, parse_budget

MIN_SAMPLE = 20  # two images from each of ten strata
PGD, SQUARE = ("cifar10", "pgd"), ("cifar10", "aa_square")
COSTS = SampleCosts(
    fixed=1e6, per_image={PGD: 1e4, SQUARE: 1e6}, n_images={PGD: 10_000, SQUARE: 10_000}, macs_per_hour=1e8
)


def test_sample_sizes_are_inversely_proportional_to_the_square_root_of_cost() -> None:
    sizes = sample_sizes(COSTS, Budget(None, 0.025), "sweep")
    assert sizes[PGD] == pytest.approx(10 * sizes[SQUARE], rel=0.01)
    assert 0.99 * 0.025 * COSTS.full_cost < COSTS.cost_with_sizes(sizes) <= 0.025 * COSTS.full_cost


def test_budget_in_hours_equals_budget_as_fraction() -> None:
    hours = 0.025 * COSTS.full_cost / COSTS.macs_per_hour
    assert sample_sizes(COSTS, Budget(hours, None), "sweep") == sample_sizes(COSTS, Budget(None, 0.025), "sweep")


@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=6),
    st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 500)), min_size=1, max_size=5),
)
def test_sample_sizes_do_not_decrease_with_budget(fractions: list[float], keys: list[tuple[float, int]]) -> None:
    dataset_keys = [("digits", f"key{index}") for index in range(len(keys))]
    costs = SampleCosts(
        fixed=1.0,
        per_image={dataset_key: cost for dataset_key, (cost, _) in zip(dataset_keys, keys, strict=True)},
        n_images={dataset_key: n_images for dataset_key, (_, n_images) in zip(dataset_keys, keys, strict=True)},
        macs_per_hour=1.0,
    )
    min_sizes = {dataset_key: smallest_sample(n_images) for dataset_key, n_images in costs.n_images.items()}
    min_fraction = costs.cost_with_sizes(min_sizes) / costs.full_cost
    allowed_fractions = [min_fraction + (1 - min_fraction) * fraction for fraction in sorted(fractions)]
    sizes_by_budget = [sample_sizes(costs, Budget(None, min(1.0, fraction)), "sweep") for fraction in allowed_fractions]
    for smaller, larger in pairwise(sizes_by_budget):
        assert all(smaller[dataset_key] <= larger[dataset_key] for dataset_key in dataset_keys)
    for fraction, sizes in zip(allowed_fractions, sizes_by_budget, strict=True):
        assert costs.cost_with_sizes(sizes) <= fraction * costs.full_cost * (1 + 1e-6)
        assert all(
            min_sizes[dataset_key] <= sizes[dataset_key] <= costs.n_images[dataset_key] for dataset_key in dataset_keys
        )


def test_budget_of_100_percent_gives_all_images() -> None:
    assert sample_sizes(COSTS, Budget(None, 1.0), "sweep") == COSTS.n_images


@pytest.mark.parametrize(
    ("fraction", "message"),
    [(1e-5, "the pilot and the keys that are not sampled take 0.01 worker-hours"), (1e-3, "pays for 20 images")],
)
def test_too_small_budget_is_rejected(fraction: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sample_sizes(COSTS, Budget(None, fraction), "sweep")


def test_minimum_budget_gives_minimum_samples() -> None:
    min_fraction = COSTS.cost_with_sizes(dict.fromkeys(COSTS.n_images, MIN_SAMPLE)) / COSTS.full_cost
    sizes = sample_sizes(COSTS, Budget(None, min_fraction), "sweep")
    assert np.array_equal([*sizes.values()], [MIN_SAMPLE, MIN_SAMPLE])


def test_rounded_budget_in_error_message_is_sufficient() -> None:
    for hours in (1e-5, 0.0123456, 1.23456, 123456.0):
        min_cost = COSTS.cost_with_sizes(dict.fromkeys(COSTS.n_images, MIN_SAMPLE))
        costs = replace(COSTS, macs_per_hour=min_cost / hours)
        with pytest.raises(ConfigError) as error:
            sample_sizes(costs, Budget(hours / 2, None), "sweep")
        match = re.search(r"at least ([\d.]+) worker-hours? \(([\d.]+)%", str(error.value))
        assert match is not None
        assert float(match[1]) == pytest.approx(hours, rel=0.01)
        for budget in (parse_budget(f"{match[1]}h"), parse_budget(f"{match[2]}%")):
            assert min(sample_sizes(costs, budget, "sweep").values()) >= MIN_SAMPLE


def test_dataset_with_too_few_images_is_rejected() -> None:
    costs = replace(COSTS, n_images={PGD: 20, SQUARE: 15})
    with pytest.raises(ConfigError, match=r"expected more than 20 images, .+ 10 strata, got 20"):
        sample_sizes(costs, Budget(None, 0.5), "sweep")
    assert sample_sizes(costs, Budget(None, 1.0), "sweep") == costs.n_images
    one_small_dataset = replace(COSTS, n_images={PGD: 10_000, SQUARE: 15})
    assert sample_sizes(one_small_dataset, Budget(None, 0.5), "sweep")[SQUARE] == 15


def test_error_uses_singular_for_one_worker_hour() -> None:
    with pytest.raises(ConfigError, match=r"got 1 worker-hour \("):
        sample_sizes(replace(COSTS, fixed=2e8), Budget(1, None), "sweep")


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("500h", Budget(500, None)),
        ("2.5%", Budget(None, 0.025)),
        (" .5 h ", Budget(0.5, None)),
        ("100%", Budget(None, 1)),
    ],
)
def test_parse_budget_accepts_hours_and_percentages(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["500", "0h", "-1h", "101%", "h", "1e3h", "nanh", ""])
def test_parse_budget_rejects_invalid_text(text: str) -> None:
    with pytest.raises(ValueError, match="expected worker-hours above 0 such as 500h"):
        parse_budget(text)
