"""What the benchmark of the engine counts and chooses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import sweep_hours
from benchmarks.engine import read_square_share
from benchmarks.engine_case import convolutions_of, stratified_sample, suite_seconds
from benchmarks.square_stages import mean_query_seconds, stages_of
from robust201.spaces.nasbench201.cells import evaluated_indices, format_spec, multiply_accumulates
from robust201.tasks.perturbations.square import side_of

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


def test_the_stages_of_square_are_its_queries_and_its_sides():
    stages = stages_of(5000, 32)
    sides = [side_of(query, 0.8, (3, 32, 32)) for query in range(5000)]
    assert [stage.side for stage in stages for _ in range(stage.first, stage.stop)] == sides
    made = sum(stage.weight for stage in stages) / 5000
    assert made == pytest.approx(read_square_share(), abs=0.02)
    assert sum(stage.weight for stage in stages_of(5000, 32, share=0.5)) == pytest.approx(2500)


def test_what_a_query_costs_on_average_lies_between_its_stages():
    stages = stages_of(5000, 32, share=0.5)
    assert mean_query_seconds(stages, 2.0, 1.5, {}) == pytest.approx(2.0)
    last = {stage.side: 0.5 for stage in stages if stage.first > 1000}
    assert mean_query_seconds(stages, 2.0, 1.5, last) == pytest.approx((1001 * 2 + 3999 * 1) / 5000)


# --- what the paper's sweep takes ------------------------------------------------------------------------------------


def test_a_fit_gives_back_what_the_costs_were_made_from():
    macs = [1e6, 7e6, 30e6, 100e6]
    fit = sweep_hours.fit_cost(macs, [2e-4 + 3e-12 * number for number in macs])
    assert (fit.constant, fit.slope) == (pytest.approx(2e-4), pytest.approx(3e-12))
    assert fit.error == pytest.approx(0, abs=1e-6)


@given(st.lists(st.tuples(st.floats(1e6, 2e8), st.floats(1e-6, 1e-3)), min_size=2, max_size=10))
def test_a_fit_predicts_no_negative_cost_and_knows_its_error(pairs):
    macs, seconds = zip(*pairs, strict=True)
    fit = sweep_hours.fit_cost(macs, seconds)
    assert fit.constant >= 0
    assert fit.slope >= 0
    error = max(abs(fit(number) / value - 1) for number, value in pairs)
    assert fit.error == pytest.approx(error, abs=1e-4)


def test_a_sweep_counts_every_image_of_every_dataset():
    suite, forward = sweep_hours.Fit(1e-3, 1e-12, 0.0), sweep_hours.Fit(1e-6, 0.0, 0.0)
    found = sweep_hours.sweep_seconds(suite, forward, [0, 1e9], ready_seconds=3.0)
    # 75 corrupted forms and the clean one; an image of 16x16 has a quarter of the pixels and no corrupted forms.
    large = 10_000 * (2 * (1e-3 + 76e-6) + 1e-3) + 2 * 3.0
    assert found == {
        "cifar10": pytest.approx(large),
        "cifar100": pytest.approx(large),
        "ImageNet16-120": pytest.approx(6_000 / 4 * (2 * (1e-3 + 1e-6) + 1e-3) + 2 * 3.0),
    }


def test_merged_multiply_accumulates_are_fewer():
    assert sweep_hours.merged_macs(309) < sweep_hours.published_macs(309)
    assert sweep_hours.published_macs(1462) - sweep_hours.merged_macs(1462) == (64 + 1) * 10
