"""What the benchmark of the engine counts and chooses."""

import pytest

from benchmarks.engine import convolutions_of, stratified_sample, suite_seconds
from pipeline.spaces.nasbench201 import evaluated_indices, format_spec, multiply_accumulates

ALL_CONVOLUTIONS = ("nor_conv_3x3", "nor_conv_1x1", "nor_conv_3x3", "nor_conv_1x1", "nor_conv_3x3", "nor_conv_3x3")
IDENTITY = ("none", "none", "none", "skip_connect", "none", "none")


@pytest.mark.parametrize("operations", [ALL_CONVOLUTIONS, IDENTITY])
def test_convolutions_add_up_to_the_published_count(operations):
    spec = format_spec(operations)
    counted = sum(
        number * inputs * outputs * kernel**2 * (size // stride) ** 2
        for (inputs, outputs, kernel, stride, size), number in convolutions_of(spec).items()
    )
    classifier = (64 + 1) * 10
    published = multiply_accumulates(spec, channels=16, cells=5, n_classes=10, image_size=32)
    assert counted + classifier == published


def test_merged_and_dead_convolutions_are_not_counted():
    merged = format_spec(("skip_connect", "none", "none", "nor_conv_3x3", "nor_conv_1x1", "none"))
    single = format_spec(("none", "none", "none", "nor_conv_3x3", "none", "none"))
    dead = format_spec(("nor_conv_3x3", "none", "none", "nor_conv_3x3", "none", "none"))
    assert convolutions_of(merged) == convolutions_of(single) == convolutions_of(dead)


def test_the_sample_is_fixed_and_spread_over_the_costs():
    sample = stratified_sample(24)
    assert sample == stratified_sample(24)
    assert len(set(sample)) == 24
    assert set(sample) <= set(evaluated_indices())


def test_suite_cost():
    costs = {"fgsm": 1.0, "pgd": 0.01, "aa_apgd-ce": 0.02, "aa_square": 0.001}
    assert suite_seconds(costs, 0.5) == pytest.approx(1 + 7 * (0.4 + 2 + 2.5))
