"""Sample sizes of a budget: what fits, in what proportions, and that a larger budget takes nothing away."""

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

PGD, SQUARE = ("cifar10", "pgd"), ("cifar10", "aa_square")
COSTS = SampleCosts(
    fixed=1e6, per_image={PGD: 1e4, SQUARE: 1e6}, n_images={PGD: 10_000, SQUARE: 10_000}, macs_per_hour=1e8
)


def test_a_key_of_a_hundred_times_the_cost_gets_a_tenth_of_the_images() -> None:
    sizes = sample_sizes(COSTS, Budget(None, 0.025), "sweep")
    assert sizes[PGD] == pytest.approx(10 * sizes[SQUARE], rel=0.01)
    assert 0.99 * 0.025 * COSTS.whole < COSTS.with_sizes(sizes) <= 0.025 * COSTS.whole


def test_hours_are_worker_hours() -> None:
    hours = 0.025 * COSTS.whole / COSTS.macs_per_hour
    assert sample_sizes(COSTS, Budget(hours, None), "sweep") == sample_sizes(COSTS, Budget(None, 0.025), "sweep")


@given(
    st.lists(st.floats(0.001, 1), min_size=2, max_size=6),
    st.lists(st.tuples(st.floats(1, 1e6), st.integers(1, 500)), min_size=1, max_size=5),
)
def test_a_larger_budget_gives_no_key_fewer_images(fractions: list[float], keys: list[tuple[float, int]]) -> None:
    places = [("digits", f"key{number}") for number in range(len(keys))]
    costs = SampleCosts(
        fixed=1.0,
        per_image={place: cost for place, (cost, _) in zip(places, keys, strict=True)},
        n_images={place: count for place, (_, count) in zip(places, keys, strict=True)},
        macs_per_hour=1.0,
    )
    least = {place: smallest_sample(count) for place, count in costs.n_images.items()}
    lowest = costs.with_sizes(least) / costs.whole
    allowed = [lowest + (1 - lowest) * share for share in sorted(fractions)]
    found = [sample_sizes(costs, Budget(None, min(1.0, share)), "sweep") for share in allowed]
    for small, large in pairwise(found):
        assert all(small[place] <= large[place] for place in places)
    for share, sizes in zip(allowed, found, strict=True):
        assert costs.with_sizes(sizes) <= share * costs.whole * (1 + 1e-6)
        assert all(least[place] <= sizes[place] <= costs.n_images[place] for place in places)


def test_the_whole_budget_gives_all_images() -> None:
    assert sample_sizes(COSTS, Budget(None, 1.0), "sweep") == COSTS.n_images


@pytest.mark.parametrize(
    ("fraction", "message"),
    [(1e-5, "the pilot and the keys that are not sampled take 0.01 worker-hours"), (1e-3, "pays for 20 images")],
)
def test_too_small_a_budget_is_refused(fraction: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sample_sizes(COSTS, Budget(None, fraction), "sweep")


def test_the_budget_that_a_refusal_names_is_enough() -> None:
    needed = COSTS.with_sizes(dict.fromkeys(COSTS.n_images, 20)) / COSTS.whole
    sizes = sample_sizes(COSTS, Budget(None, needed), "sweep")
    assert np.array_equal([*sizes.values()], [20, 20])


def test_rounded_budget_in_error_is_enough() -> None:
    for hours in (1e-5, 0.0123456, 1.23456, 123456.0):
        costs = replace(COSTS, macs_per_hour=COSTS.with_sizes(dict.fromkeys(COSTS.n_images, 20)) / hours)
        with pytest.raises(ConfigError) as raised:
            sample_sizes(costs, Budget(hours / 2, None), "sweep")
        named = re.search(r"at least ([\d.]+) worker-hours? \(([\d.]+)%", str(raised.value))
        assert named is not None
        assert float(named[1]) == pytest.approx(hours, rel=0.01)
        for budget in (parse_budget(f"{named[1]}h"), parse_budget(f"{named[2]}%")):
            assert min(sample_sizes(costs, budget, "sweep").values()) >= 20


def test_error_says_if_there_are_too_few_images() -> None:
    few = replace(COSTS, n_images={PGD: 20, SQUARE: 15})
    with pytest.raises(ConfigError, match=r"expected more than 20 images, .+ 10 strata, got 20"):
        sample_sizes(few, Budget(None, 0.5), "sweep")
    assert sample_sizes(few, Budget(None, 1.0), "sweep") == few.n_images
    one_small_dataset = replace(COSTS, n_images={PGD: 10_000, SQUARE: 15})
    assert sample_sizes(one_small_dataset, Budget(None, 0.5), "sweep")[SQUARE] == 15


def test_error_has_singular_for_one_worker_hour() -> None:
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
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["500", "0h", "-1h", "101%", "h", "1e3h", "nanh", ""])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected worker-hours above 0 such as 500h"):
        parse_budget(text)
