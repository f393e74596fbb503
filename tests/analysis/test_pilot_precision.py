"""Precision that plan --like expects, against the table that replays of the same outcomes gave."""

from pathlib import Path

import pytest

from robust201.analysis.pilot_precision import LikeDataset, PilotPrecision
from robust201.planning.designs import worst_case
from robust201.reader.dataset import RobustnessDataset
from tests.conftest import REPOSITORY

CELLS = REPOSITORY / "benchmark_data" / "cells-cifar10"


@pytest.fixture(scope="module")
def precision() -> PilotPrecision:
    return PilotPrecision(LikeDataset(RobustnessDataset(CELLS)).read)


@pytest.mark.parametrize(
    ("key", "n_seen", "half_width", "tau", "simple_half_width"),
    [
        ("pgd", 424, 0.012, 0.85, 0.056),
        ("aa_apgd-ce", 267, 0.016, 0.79, 0.054),
        ("aa_square", 106, 0.035, 0.70, 0.057),
    ],
)
def test_expected_precision_is_that_of_the_replays_of_the_docs(
    precision: PilotPrecision, key: str, n_seen: int, half_width: float, tau: float, simple_half_width: float
) -> None:
    """The replays of docs/sampling.md have pilots of 7 networks, where 10 or 11 are used here."""
    found, expected_tau = precision.sampled("cifar10", key, n_seen, 10_000)
    assert found == pytest.approx(half_width, rel=0.15)
    assert expected_tau == pytest.approx(tau, abs=0.07)
    simple, _ = precision.simple("cifar10", key, 250, 10_000)
    assert simple == pytest.approx(simple_half_width, rel=0.1)


def test_keys_without_outcomes_have_the_worst_case_and_all_images_are_certain(precision: PilotPrecision) -> None:
    assert precision.sampled("cifar10", "none", 100, 1000) == worst_case("cifar10", "none", 100, 1000)
    assert precision.simple("cifar10", "none", 100, 1000) == worst_case("cifar10", "none", 100, 1000)
    assert precision.sampled("cifar10", "pgd", 1000, 1000) == (0.0, 1.0)


def test_a_cheap_key_is_not_predicted_from_itself() -> None:
    reader = RobustnessDataset(Path(CELLS))
    known, other = LikeDataset(reader).read("", "fgsm"), LikeDataset(reader, ["clean"]).read("", "fgsm")
    assert known is not None
    assert other is not None
    assert known.cheap.shape == other.cheap.shape
