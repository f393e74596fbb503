"""Hours are estimated by key, and cheaper designs of a sweep fit a budget."""

from typing import Any

import pytest

from robust201.core.errors import ConfigError
from robust201.planning.config import SweepConfig
from robust201.planning.costs import key_costs, total_hours
from robust201.planning.designs import designs_for_budget, halved_designs, weaken, worst_case_precision, yaml_lines
from robust201.planning.estimates import estimate
from robust201.planning.loading import parse_config
from robust201.planning.plan import Plan, assumed_facts, make_plan


def make_config(**changes: Any) -> SweepConfig:
    fields = {
        "name": "some",
        "results": "runs/some",
        "architectures": ["0-39"],
        "checkpoints": {"path": "weights"},
        "datasets": {"cifar10": {"path": "data"}},
        "keys": {"clean": {}, "pgd": {"steps": 40}, "aa_square": {"queries": 5000}},
    }
    return parse_config(fields | changes, "test")


def make_small_plan(**changes: Any) -> Plan:
    config = make_config(**changes)
    return make_plan(config, assumed_facts(config))


def test_hours_of_all_keys_sum_to_the_estimate() -> None:
    plan = make_small_plan()
    assert total_hours(plan, {}) == pytest.approx(estimate(plan)["estimated_worker_hours"])
    hours_by_key = {cost.key: cost.hours for cost in key_costs(plan, {})}
    assert hours_by_key["aa_square"] > hours_by_key["pgd"] > hours_by_key["clean"]


def test_measured_speed_replaces_assumed_speed() -> None:
    plan = make_small_plan()
    assumed_costs = {cost.key: cost for cost in key_costs(plan, {})}
    speed = 0.5e9 * plan.config.execution.assumed_gmacs()
    measured_costs = {cost.key: cost for cost in key_costs(plan, {("cifar10", "pgd"): speed})}
    assert measured_costs["pgd"].hours == pytest.approx(2 * assumed_costs["pgd"].hours)
    assert measured_costs["pgd"].is_measured
    assert not measured_costs["clean"].is_measured


def test_cheaper_designs_halve_images_networks_or_queries() -> None:
    n_networks = len(make_config().selected_architectures)
    n_half = n_networks // 2
    half_images, half_networks, half_queries = halved_designs(make_small_plan(), {}, worst_case_precision)
    # 5000 of the 10,000 test images of CIFAR-10, at an accuracy of 0.5 and with finite population correction
    assert half_images.half_width == pytest.approx(1.959964 * (0.25 / 5000 * 0.5) ** 0.5)
    assert half_images.yaml == {"images": {"count": 5000}}
    assert half_networks.half_width == 0.0
    assert half_networks.tau == pytest.approx(n_half * (n_half - 1) / (n_networks * (n_networks - 1)))
    assert len(half_networks.yaml["architectures"]) == n_half
    assert half_queries.yaml["keys"]["aa_square"]["queries"] == 2500
    assert half_queries.half_width is None


def test_halved_designs_are_empty_for_a_sampled_sweep() -> None:
    sampled_plan = make_small_plan(sampling={"budget": "80%"}, measurements=["accuracy", "predictions"])
    assert total_hours(sampled_plan, {}) == pytest.approx(0.8 * total_hours(make_small_plan(), {}), rel=0.01)
    assert halved_designs(sampled_plan, {}, worst_case_precision) == []


def test_designs_fit_budget() -> None:
    plan = make_small_plan()
    full_hours = total_hours(plan, {})
    budget = f"{0.4 * full_hours:.6f}h"
    designs = designs_for_budget(plan.config, budget, {}, worst_case_precision, make_config)
    assert len(designs) == 3
    assert all(0 < design.hours <= 0.4 * full_hours * 1.0001 for design in designs)
    assert designs[0].yaml["sampling"]["pilot"] == len(plan.config.selected_architectures) // 5
    assert "predictions" in designs[0].yaml["measurements"]
    assert designs[0].half_width > 0  # type: ignore[operator]
    make_config(**designs[0].yaml)  # the changed sweep is valid
    make_config(**designs[1].yaml)
    assert designs_for_budget(plan.config, f"{2 * full_hours}h", {}, worst_case_precision, make_config) == []


@pytest.mark.parametrize(
    ("budget", "changes", "message"),
    [
        ("500", {}, "such as 500h"),
        ("10%", {"architectures": [0, 1]}, "at least 3 networks"),
    ],
)
def test_designs_for_budget_rejects_invalid_budget_or_too_few_networks(
    budget: str, changes: dict[str, Any], message: str
) -> None:
    def reload(**changed_fields: Any) -> SweepConfig:
        return make_config(**changes, **changed_fields)

    with pytest.raises(ConfigError, match=message):
        designs_for_budget(make_config(**changes), budget, {}, worst_case_precision, reload)


@pytest.mark.parametrize("percent", [2, 10, 20])
def test_sampled_design_is_over_budget_only_below_the_cost_of_the_smallest_pilot(percent: int) -> None:
    plan = make_small_plan()  # the default pilot has a fifth of its architectures
    full_hours = total_hours(plan, {})
    sampled_images, fewer_networks, weaker_attacks = designs_for_budget(
        plan.config, f"{percent}%", {}, worst_case_precision, make_config
    )
    assert sampled_images.is_over_budget == (percent < 10)
    assert (sampled_images.hours <= percent / 100 * full_hours * 1.0001) == (not sampled_images.is_over_budget)
    assert ("the pilot of 2 networks and the keys" in sampled_images.drawback) == sampled_images.is_over_budget
    min_config = make_config(**sampled_images.yaml)  # the smallest valid sampled sweep
    assert total_hours(make_plan(min_config, assumed_facts(min_config)), {}) == pytest.approx(sampled_images.hours)
    assert fewer_networks.is_over_budget == (fewer_networks.hours > percent / 100 * full_hours)
    assert not weaker_attacks.is_over_budget
    assert weaker_attacks.hours <= percent / 100 * full_hours * 1.0001


def test_sampled_design_changes_only_the_budget_of_the_sampling_section() -> None:
    sampling = {"budget": "90%", "pilot": 10, "cheap": ["clean"], "seed": 3}

    def reload(**changed_fields: Any) -> SweepConfig:
        return make_config(**{"measurements": ["accuracy", "predictions"], **changed_fields})

    config = reload(sampling=sampling)
    sampled_images, *_ = designs_for_budget(config, "5%", {}, worst_case_precision, reload)
    assert sampled_images.is_over_budget
    assert sampled_images.yaml["sampling"] == {
        "pilot": 10,
        "cheap": ("clean",),
        "seed": 3,
        "budget": sampled_images.yaml["sampling"]["budget"],
    }
    smaller_sampling = {
        **sampling,
        "budget": f"{0.999 * float(sampled_images.yaml['sampling']['budget'].rstrip('%')):.6f}%",
    }
    config_below_minimum = reload(sampling=smaller_sampling)
    with pytest.raises(ConfigError, match="expected a budget of at least"):
        make_plan(config_below_minimum, assumed_facts(config_below_minimum))


def test_weaken_keeps_total_step_length() -> None:
    config = make_config()
    weaker_config = weaken(config, 0.1)
    assert weaker_config is not None
    weaker_pgd, original_pgd = weaker_config.keys["pgd"], config.parameters["pgd"]
    assert weaker_pgd["steps"] == 4
    assert weaker_pgd["steps"] * weaker_pgd["rel_stepsize"] == pytest.approx(40 * original_pgd.rel_stepsize)  # type: ignore[attr-defined]


def test_weaken_without_iterative_attack_returns_none() -> None:
    assert weaken(make_config(keys={"clean": {}, "fgsm": {}}), 0.5) is None


def test_yaml_lines_shorten_long_lists_of_networks() -> None:
    assert yaml_lines({"architectures": list(range(20)), "sampling": {"budget": "5h"}}) == [
        "architectures: [0, 1, 2, 3, 4, 5, 6, 7, ...]  # 20; --json lists all",
        "sampling: {budget: 5h}",
    ]


@pytest.mark.parametrize("percent", [6, 30])
def test_designs_fit_budget_at_measured_speeds(percent: int) -> None:
    plan = make_small_plan()
    speeds = {("cifar10", "aa_square"): 0.2e9 * plan.config.execution.assumed_gmacs()}
    full_hours = total_hours(plan, speeds)
    sampled_images, *other_designs = designs_for_budget(
        plan.config, f"{percent}%", speeds, worst_case_precision, make_config
    )
    assert sampled_images.is_over_budget == (percent == 6)
    config = make_config(**sampled_images.yaml)
    assert total_hours(make_plan(config, assumed_facts(config)), speeds) == pytest.approx(sampled_images.hours)
    for design in (sampled_images, *other_designs):
        assert design.is_over_budget == (design.hours > percent / 100 * full_hours * 1.0001)
    assert not other_designs[-1].is_over_budget  # weaker attacks on fewer networks
