"""Optimality of attacks matches hand calculations."""

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.statistics.optimality import global_optimality, local_optimalities, robustness_area

FIRST_DISTANCES = [0.0, 1.0, 3.0, 4.0]
SECOND_DISTANCES = [0.0, 2.0, 1.0, np.inf]


def test_robustness_area_is_the_area_below_the_accuracy_curve():
    # The accuracy is 3/4 up to epsilon 1, 2/4 up to 3, and 1/4 up to 4.
    assert robustness_area(FIRST_DISTANCES, 4.0) == 0.75 * 1 + 0.5 * 2 + 0.25 * 1
    assert robustness_area(FIRST_DISTANCES, 2.0) == 0.75 * 1 + 0.5 * 1
    # The accuracy is 3/4 up to epsilon 1, 2/4 up to 2, and 1/4 above 2.
    assert robustness_area(SECOND_DISTANCES, 4.0) == 0.75 * 1 + 0.5 * 1 + 0.25 * 2


def test_local_optimality_is_relative_to_the_gain_of_the_envelope():
    # The envelope is 0, 1, 1, 4, so the interval ends at 4. The area is 3/4 * 4 = 3 for an unsuccessful attack,
    # (0 + 1 + 1 + 4) / 4 = 1.5 for the envelope, 2 for the first attack and 1.75 for the second.
    result = local_optimalities({"first": FIRST_DISTANCES, "second": SECOND_DISTANCES})
    assert result == pytest.approx({"first": (3 - 2) / 1.5, "second": (3 - 1.75) / 1.5})
    assert local_optimalities({"only": FIRST_DISTANCES}) == {"only": 1.0}


def test_unsuccessful_attack_has_optimality_zero_or_nan():
    unsuccessful = [0.0, np.inf, np.inf, np.inf]
    assert local_optimalities({"first": FIRST_DISTANCES, "unsuccessful": unsuccessful})["unsuccessful"] == 0.0
    assert np.isnan(local_optimalities({"unsuccessful": unsuccessful})["unsuccessful"])


def test_local_optimality_interval_ends_at_the_largest_finite_distance():
    # The envelope is 1, 2, infinity, so the interval ends at 2. The area is 2 for an unsuccessful attack,
    # (1 + 2 + 2) / 3 for the envelope, and 2 for the second attack.
    result = local_optimalities({"first": [1.0, 2.0, np.inf], "second": [2.0, np.inf, np.inf]})
    assert result == pytest.approx({"first": 1.0, "second": 0.0})


def test_global_optimality_is_the_mean_over_networks():
    assert global_optimality([0.5, 1.0]) == 0.75


@pytest.mark.parametrize("distances", [{}, {"a": [1.0], "b": [1.0, 2.0]}, {"a": []}, {"a": [[1.0]]}])
def test_local_optimalities_reject_invalid_distances(distances):
    with pytest.raises(ConfigError, match="of the same images for at least one attack"):
        local_optimalities(distances)


def test_image_with_distance_zero_for_one_attack_counts_as_misclassified_for_all_attacks():
    distances = {"first": [0.0, 0.0, 1.0, 2.0], "unsuccessful": [np.inf] * 4, "second": [5.0, 0.0, 1.0, 2.0]}
    assert local_optimalities(distances) == {"first": 1.0, "unsuccessful": 0.0, "second": 1.0}
