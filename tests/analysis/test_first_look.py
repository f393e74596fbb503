"""Plan of a first look: which keys it evaluates, and how many images fit its time budget."""

import pytest

from robust201.analysis.first_look import (
    IMAGE_COUNTS,
    TARGET_SECONDS,
    Costs,
    choose_first_look_keys,
    choose_image_count,
    describe_plan,
    format_time,
)
from robust201.core.errors import ConfigError
from robust201.tasks import TASKS

CORRUPTIONS = ["gaussian_noise", "defocus_blur", "jpeg_compression"]


def first_look_parameters(n_classes=10, **options):
    return {
        key: TASKS[key].parameters(**fields) for key, fields in choose_first_look_keys(n_classes, **options).items()
    }


def test_first_look_keys_share_one_epsilon_and_include_autoattack_with_its_defaults() -> None:
    parameters_by_key = first_look_parameters()
    assert list(parameters_by_key) == ["clean", "fgsm", "pgd", "aa_standard", *CORRUPTIONS]
    assert {parameters_by_key[key].strengths for key in ("fgsm", "pgd", "aa_standard")} == {(8.0,)}
    assert parameters_by_key["aa_standard"].identity() == TASKS["aa_standard"].parameters().identity()
    assert parameters_by_key["pgd"].identity() == TASKS["pgd"].parameters().identity()
    assert parameters_by_key["fgsm"].strengths == (8.0,)
    for epsilon, strength in (("2/255", 2.0), (4 / 255, 4.0), (1, 255.0)):
        assert first_look_parameters(epsilon=epsilon)["pgd"].strengths == (strength,)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_first_look_keys_include_applicable_attacks_for_few_classes(n_classes: int) -> None:
    parameters_by_key = first_look_parameters(n_classes)
    assert all(parameters_by_key[key].unsupported_classes_reason(n_classes) is None for key in parameters_by_key)
    assert {"aa_apgd-ce", "aa_fab-t", "aa_square"} <= parameters_by_key.keys()


def test_first_look_keys_have_no_corruptions_if_images_cannot_be_corrupted() -> None:
    assert list(choose_first_look_keys(10, corruptions=False)) == ["clean", "fgsm", "pgd", "aa_standard"]


@pytest.mark.parametrize(("epsilon", "message"), [("a", "expected numbers"), (8, "Write 8/255"), (0, "above 0")])
def test_first_look_keys_reject_invalid_epsilons(epsilon: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_first_look_keys(10, epsilon=epsilon)


@pytest.mark.parametrize("robust_fraction", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seconds_per_image", [1e-9, 1e-6, 1e-5, 1e-4, 1e-2])
def test_choose_image_count_returns_the_largest_count_within_the_time(
    seconds_per_image: float, robust_fraction: float
) -> None:
    costs, parameters_by_key = (
        Costs(seconds_per_image, seconds_per_image, 250, 10, robust_fraction),
        first_look_parameters(),
    )
    count = choose_image_count(costs, parameters_by_key, 10_000)
    assert count in IMAGE_COUNTS
    assert count == IMAGE_COUNTS[0] or costs.estimate_total_seconds(parameters_by_key, count) <= TARGET_SECONDS
    larger_counts = [candidate for candidate in IMAGE_COUNTS if count < candidate <= 10_000]
    assert not larger_counts or costs.estimate_total_seconds(parameters_by_key, larger_counts[0]) > TARGET_SECONDS


@pytest.mark.parametrize("n_images", [1, 7, 20, 450])
def test_choose_image_count_returns_all_images_if_time_allows(n_images: int) -> None:
    assert choose_image_count(Costs(0.0, 1e-9, 250, 10, 0.5), first_look_parameters(), n_images) == n_images
    assert choose_image_count(Costs(1.0, 1.0, 250, 10, 0.5), first_look_parameters(), n_images) == min(
        IMAGE_COUNTS[0], n_images
    )


def test_costs_grow_with_fraction_of_robust_images() -> None:
    seconds = [
        Costs(0.0, 1e-4, 250, 10, robust_fraction).estimate_total_seconds(first_look_parameters(), 100)
        for robust_fraction in (0.0, 0.5, 1.0)
    ]
    assert seconds == sorted(seconds)
    assert seconds[2] > 10 * seconds[0]


def test_describe_plan_states_images_seed_time_and_full_evaluation() -> None:
    costs, parameters_by_key = Costs(0.0, 1e-4, 250, 10, 0.5), first_look_parameters()
    plan = describe_plan(100, 450, 3, limited_by_time=True, costs=costs, keys=parameters_by_key).splitlines()
    assert "aa_standard" in plan[0]
    assert "on 100 of 450 images (class-stratified, seed 3, as many as the time allows), about 61 s." in plan[0]
    assert f"about {format_time(costs.estimate_total_seconds(parameters_by_key, 450))} for these keys" in plan[1]
    assert plan[2] == "To evaluate the same images on any machine, set the count to 100."
    assert "as many" not in describe_plan(100, 450, 3, limited_by_time=False, costs=costs, keys=parameters_by_key)
    assert "on all 450 images" in describe_plan(450, 450, 3, limited_by_time=True, costs=costs, keys=parameters_by_key)


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (61, "61 s"), (600, "10 min"), (36_000, "10.0 h")])
def test_format_time_rounds(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
