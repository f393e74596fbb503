"""Steps at which images fall, on numbers worked out by hand."""

import math

import numpy as np
import pytest

from robust201.statistics.steps import accuracies_after, falling_steps, steps_of_success

STEPS = [0, 0, 1, 3, 3, 8, np.inf, np.inf]


def test_accuracy_after_a_budget_counts_the_images_that_fall_later():
    assert accuracies_after(STEPS, [0, 1, 2, 3, 7, 8, 100]).tolist() == [
        *(0.75, 0.625, 0.625, 0.375, 0.375, 0.25, 0.25)
    ]
    assert accuracies_after([STEPS, [0] * 8], [2]).tolist() == [[0.625], [0.0]]


def test_mean_and_median_are_over_the_images_that_the_attack_fools():
    assert steps_of_success(STEPS) == (3.75, 3.0)
    assert all(map(math.isnan, steps_of_success([0, np.inf])))


def test_a_curve_has_a_point_wherever_an_image_falls():
    assert falling_steps(STEPS).tolist() == [0, 1, 3, 8]
    assert falling_steps([np.inf, np.inf]).tolist() == [0]


@pytest.mark.parametrize("most", [2, 10])
def test_of_many_steps_a_curve_has_some_and_the_last(most):
    chosen = falling_steps(np.arange(1, 5001), most)
    assert len(chosen) == most + 1
    assert chosen[0] == 0
    assert chosen[-1] == 5000
