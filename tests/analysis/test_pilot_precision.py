"""Precision that `plan --like` predicts for estimates, compared with the replays of sampling in docs/sampling.md."""

from pathlib import Path

import pytest

from robust201.analysis.pilot_precision import PilotPrecision, ReferenceDataset
from robust201.planning.designs import worst_case_precision
from robust201.reader.dataset import RobustnessDataset
from tests.conftest import REPOSITORY

CELLS = REPOSITORY / "benchmark_data" / "cells-cifar10"


@pytest.fixture(scope="module")
def precision() -> PilotPrecision:
    return PilotPrecision(ReferenceDataset(RobustnessDataset(CELLS)).read)


@pytest.mark.parametrize(
    ("key", "n_seen", "half_width", "tau", "simple_half_width"),
    [
        ("pgd", 424, 0.012, 0.85, 0.056),
        ("aa_apgd-ce", 267, 0.016, 0.79, 0.054),
        ("aa_square", 106, 0.035, 0.70, 0.057),
    ],
)
def test_expected_precision_matches_the_replays_in_docs(
    precision: PilotPrecision, key: str, n_seen: int, half_width: float, tau: float, simple_half_width: float
) -> None:
    """The replays in docs/sampling.md use pilots of 7 networks; this test uses 10 or 11 networks."""
    result_half_width, result_tau = precision.sampled("cifar10", key, n_seen, 10_000)
    assert result_half_width == pytest.approx(half_width, rel=0.15)
    assert result_tau == pytest.approx(tau, abs=0.07)
    half_width_of_simple_sample, _ = precision.simple("cifar10", key, 250, 10_000)
    assert half_width_of_simple_sample == pytest.approx(simple_half_width, rel=0.1)


def test_expected_precision_without_outcomes_is_the_worst_case(precision: PilotPrecision) -> None:
    assert precision.sampled("cifar10", "none", 100, 1000) == worst_case_precision("cifar10", "none", 100, 1000)
    assert precision.simple("cifar10", "none", 100, 1000) == worst_case_precision("cifar10", "none", 100, 1000)
    assert precision.sampled("cifar10", "pgd", 1000, 1000) == (0.0, 1.0)


def test_cheap_key_is_not_predicted_from_itself() -> None:
    reader = RobustnessDataset(Path(CELLS))
    outcomes_by_default, outcomes_with_clean = (
        ReferenceDataset(reader).read("", "fgsm"),
        ReferenceDataset(reader, ["clean"]).read("", "fgsm"),
    )
    assert outcomes_by_default is not None
    assert outcomes_with_clean is not None
    assert outcomes_by_default.cheap_outcomes.shape == outcomes_with_clean.cheap_outcomes.shape
