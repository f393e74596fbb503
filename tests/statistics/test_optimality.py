"""Optimality of attacks, checked against hand calculations."""

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.statistics.optimality import global_optimality, local_optimalities, robustness_area

FIRST = [0.0, 1.0, 3.0, 4.0]
SECOND = [0.0, 2.0, 1.0, np.inf]


def test_robustness_area_is_the_area_below_the_accuracy_curve():
    # Accuracy 3/4 up to 1, 2/4 up to 3, 1/4 up to 4.
    assert robustness_area(FIRST, 4.0) == 0.75 * 1 + 0.5 * 2 + 0.25 * 1
    assert robustness_area(FIRST, 2.0) == 0.75 * 1 + 0.5 * 1
    # 3/4 up to 1, 2/4 up to 2, 1/4 up to 4 and beyond.
    assert robustness_area(SECOND, 4.0) == 0.75 * 1 + 0.5 * 1 + 0.25 * 2


def test_local_optimality_is_relative_to_the_gain_of_the_envelope():
    # The envelope is 0, 1, 1, 4, so the interval ends at 4. An unsuccessful attack has area 3/4 * 4 = 3, the envelope
    # (0 + 1 + 1 + 4) / 4 = 1.5, the first attack 2, and the second 1.75.
    result = local_optimalities({"first": FIRST, "second": SECOND})
    assert result == pytest.approx({"first": (3 - 2) / 1.5, "second": (3 - 1.75) / 1.5})
    assert local_optimalities({"alone": FIRST}) == {"alone": 1.0}


def test_unsuccessful_attack_has_optimality_zero_or_nan():
    nothing = [0.0, np.inf, np.inf, np.inf]
    assert local_optimalities({"first": FIRST, "nothing": nothing})["nothing"] == 0.0
    assert np.isnan(local_optimalities({"nothing": nothing})["nothing"])


def test_local_optimality_interval_ends_at_the_largest_finite_distance():
    # The envelope is 1, 2, infinity over [0, 2]: area 2 without success, (1 + 2 + 2) / 3 with it; the second 2.
    result = local_optimalities({"first": [1.0, 2.0, np.inf], "second": [2.0, np.inf, np.inf]})
    assert result == pytest.approx({"first": 1.0, "second": 0.0})


def test_global_optimality_is_the_mean_over_networks():
    assert global_optimality([0.5, 1.0]) == 0.75


@pytest.mark.parametrize("wrong", [{}, {"a": [1.0], "b": [1.0, 2.0]}, {"a": []}, {"a": [[1.0]]}])
def test_local_optimality_rejects_different_images(wrong):
    with pytest.raises(ConfigError, match="of the same images for at least one attack"):
        local_optimalities(wrong)


def test_misclassified_images_count_as_such_for_every_attack():
    distances = {"first": [0.0, 0.0, 1.0, 2.0], "nothing": [np.inf] * 4, "second": [5.0, 0.0, 1.0, 2.0]}
    assert local_optimalities(distances) == {"first": 1.0, "nothing": 0.0, "second": 1.0}
