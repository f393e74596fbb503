"""Clean accuracies are compared with the accuracies recorded with the weights, and commands report differences."""

import json
from dataclasses import replace
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.dataset.reader import Dataset
from robust201.statistics.weights_check import ACCURACY_TOLERANCE, CleanAccuracy, check_accuracies, expected_range
from robust201.weights.published.base import read_test_accuracy
from robust201.weights.store import CheckpointStore
from tests.conftest import TINY_ARCHITECTURES, add_network, random_state


def clean_accuracy(measured: float, recorded: float, n_images: int, n_test: int) -> CleanAccuracy:
    return CleanAccuracy("cifar10", 21, "", measured, recorded, n_images, n_test)


@given(st.integers(2, 40), st.data())
def test_expected_range_is_the_smallest_whose_tails_are_within_half_the_level(n_test, data):
    """Each tail is at most half the level. A tail that includes the range's end is at least half the level."""
    n_correct, n_images = data.draw(st.integers(0, n_test)), data.draw(st.integers(1, n_test - 1))
    level = Fraction(data.draw(st.integers(1, 50)), 100)
    low, high = expected_range(n_correct / n_test, n_images, n_test, level=float(level), tolerance=0)
    weights = [comb(n_correct, k) * comb(n_test - n_correct, n_images - k) for k in range(n_images + 1)]
    n_below = sum(weight for k, weight in enumerate(weights) if k < round(low * n_images))
    n_above = sum(weight for k, weight in enumerate(weights) if k > round(high * n_images))
    max_tail = level / 2 * sum(weights)
    assert max(n_below, n_above) <= max_tail * Fraction(1_000_001, 1_000_000)
    assert n_below + weights[round(low * n_images)] >= max_tail * Fraction(999_999, 1_000_000)
    assert n_above + weights[round(high * n_images)] >= max_tail * Fraction(999_999, 1_000_000)


def test_expected_range_allows_only_the_tolerance_if_all_images_are_evaluated():
    assert expected_range(0.9, 10_000, 10_000) == pytest.approx((0.899, 0.901))
    check = check_accuracies([clean_accuracy(accuracy, 0.9, 10_000, 10_000) for accuracy in (0.8989, 0.9, 0.9011)])
    assert check.n_checked == 3
    assert [network.accuracy.measured for network in check.unexpected] == [0.8989, 0.9011]
    bf16_accuracy = replace(clean_accuracy(0.893, 0.9, 10_000, 10_000), tolerance=ACCURACY_TOLERANCE["bf16"])
    assert not check_accuracies([bf16_accuracy]).unexpected


def test_check_accuracies_tolerates_larger_differences_for_many_networks():
    """The level is divided among the networks, so that a sweep of thousands of networks flags none by chance."""
    accuracy = clean_accuracy(0.76, 0.9, 100, 10_000)
    assert check_accuracies([accuracy]).unexpected
    assert not check_accuracies([accuracy] * 10_000).unexpected
    message = check_accuracies([accuracy]).unexpected[0].message
    assert "but 0.7" in message
    assert "the accuracy on 100 clean images is 0.7600" in message
    assert "an accuracy of 0.9000 on 10,000 images was recorded with the weights" in message


@pytest.mark.parametrize(
    ("percentages", "accuracy"),
    [
        ({"ori-test@199": 93.43}, 0.9343),
        ({"ori-test@199": 0}, 0.0),
        ({"ori-test@11": 70.0, "x-valid@199": 80.0}, None),
        ({"ori-test@199": "93"}, None),
        ({"ori-test@199": 193.0}, None),
        ({"ori-test@199": float("nan")}, None),
        (None, None),
    ],
)
def test_read_test_accuracy_accepts_only_percentages_of_the_last_epoch(percentages, accuracy):
    assert read_test_accuracy(percentages, 200) == accuracy


def test_commands_report_networks_with_unexpected_accuracy(robust201, write_sweep, tmp_path):
    """`verify` names only the network whose accuracy differs from the recorded accuracy."""
    results, exported = (tmp_path / name for name in ("results", "exported"))
    sweep = write_sweep(checkpoints={"path": str(tmp_path / "store")}, keys={"clean": {}}, images={"count": None})

    def run_with(accuracies: dict[int, float]) -> str:
        """Evaluate two random networks whose weights are stored with these accuracies; return the stderr of `run`."""
        with CheckpointStore(tmp_path / "store") as store:
            for index in TINY_ARCHITECTURES:
                add_network(store, index, random_state(index), test_accuracy=accuracies.get(index))
        result = robust201("run", sweep)
        assert result.code == 0
        return result.err

    run_with({})
    assert robust201("export", results, "--out", exported).code == 0
    accuracies = {index: Dataset(exported).accuracy(index, "digits", "clean") for index in TINY_ARCHITECTURES}
    assert json.loads(robust201("verify", results, "--json").out)["weights"]["checked"] == 0
    # Recorded accuracies are not part of a result's identity.
    assert "0 missing" in run_with({0: accuracies[0], 21: accuracies[21] + 0.1})
    verify_result = robust201("verify", results)
    assert verify_result.code == 0
    assert verify_result.err.startswith("warning: Checking weights failed for #21 digits: the accuracy on ")
    assert "#0" not in verify_result.err
    assert "recorded with the weights for 1 of 2 networks" in " ".join(verify_result.out.split())
