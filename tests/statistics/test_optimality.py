"""Optimality of attacks, by numbers worked out by hand."""

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.statistics.optimality import global_optimality, local_optimalities, robustness_area

FIRST = [0.0, 1.0, 3.0, 4.0]
SECOND = [0.0, 2.0, 1.0, np.inf]


def test_the_area_is_that_below_the_curve():
    # Accuracy 3/4 up to 1, 2/4 up to 3, 1/4 up to 4.
    assert robustness_area(FIRST, 4.0) == 0.75 * 1 + 0.5 * 2 + 0.25 * 1
    assert robustness_area(FIRST, 2.0) == 0.75 * 1 + 0.5 * 1
    # 3/4 up to 1, 2/4 up to 2, 1/4 up to 4 and beyond.
    assert robustness_area(SECOND, 4.0) == 0.75 * 1 + 0.5 * 1 + 0.25 * 2


def test_local_optimality_is_the_share_of_what_the_envelope_gains():
    # Envelope 0, 1, 1, 4, so the interval ends at 4; an attack without any success has 3/4 * 4 = 3, the envelope
    # (0 + 1 + 1 + 4) / 4 = 1.5, the first attack 2, the second 1.75.
    found = local_optimalities({"first": FIRST, "second": SECOND})
    assert found == pytest.approx({"first": (3 - 2) / 1.5, "second": (3 - 1.75) / 1.5})
    assert local_optimalities({"alone": FIRST}) == {"alone": 1.0}


def test_an_attack_that_fools_nothing_has_no_optimality():
    nothing = [0.0, np.inf, np.inf, np.inf]
    assert local_optimalities({"first": FIRST, "nothing": nothing})["nothing"] == 0.0
    assert np.isnan(local_optimalities({"nothing": nothing})["nothing"])


def test_where_no_attack_fools_an_image_the_interval_ends_at_the_largest_finite_distance():
    # Envelope 1, 2, infinity over [0, 2]: 2 without success, (1 + 2 + 2) / 3 with it; the second (2 + 2 + 2) / 3.
    found = local_optimalities({"first": [1.0, 2.0, np.inf], "second": [2.0, np.inf, np.inf]})
    assert found == pytest.approx({"first": 1.0, "second": 0.0})


def test_global_optimality_is_the_mean_over_networks():
    assert global_optimality([0.5, 1.0]) == 0.75


@pytest.mark.parametrize("wrong", [{}, {"a": [1.0], "b": [1.0, 2.0]}, {"a": []}, {"a": [[1.0]]}])
def test_other_images_are_refused(wrong):
    with pytest.raises(ConfigError, match="of the same images by one attack or more"):
        local_optimalities(wrong)


def test_images_that_are_wrong_as_they_are_count_as_such_for_every_attack():
    distances = {"first": [0.0, 0.0, 1.0, 2.0], "nothing": [np.inf] * 4, "second": [5.0, 0.0, 1.0, 2.0]}
    assert local_optimalities(distances) == {"first": 1.0, "nothing": 0.0, "second": 1.0}
