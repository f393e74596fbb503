"""Accuracies after numbers of steps match hand calculations."""

import math

import numpy as np
import pytest

from robust201.statistics.steps import accuracies_after, choose_curve_steps, summarise_steps_of_success

STEPS = [0, 0, 1, 3, 3, 8, np.inf, np.inf]


def test_accuracies_after_count_images_that_are_fooled_later():
    expected = [0.75, 0.625, 0.625, 0.375, 0.375, 0.25, 0.25]
    assert accuracies_after(STEPS, [0, 1, 2, 3, 7, 8, 100]).tolist() == expected
    assert accuracies_after([STEPS, [0] * 8], [2]).tolist() == [[0.625], [0.0]]


def test_steps_of_success_summarise_fooled_images():
    assert summarise_steps_of_success(STEPS) == (3.75, 3.0)
    assert all(map(math.isnan, summarise_steps_of_success([0, np.inf])))


def test_curve_steps_include_every_step_at_which_an_image_is_fooled():
    assert choose_curve_steps(STEPS).tolist() == [0, 1, 3, 8]
    assert choose_curve_steps([np.inf, np.inf]).tolist() == [0]


@pytest.mark.parametrize("max_points", [2, 10])
def test_curve_steps_are_limited_and_include_the_last_step(max_points):
    steps = choose_curve_steps(np.arange(1, 5001), max_points)
    assert len(steps) == max_points + 1
    assert steps[0] == 0
    assert steps[-1] == 5000
