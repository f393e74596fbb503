"""`robust201 plan`: hours by key, designs for a budget, and the cells to evaluate next."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import RunCommand

LIKE_DATASET = Path(__file__).parents[2] / "benchmark_data" / "cells-cifar10"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    fields: dict[str, Any] = {
        "name": "sweep",
        "results": str(tmp_path / "results"),
        "architectures": ["0-399"],
        "checkpoints": {"path": str(tmp_path)},
        "datasets": {"cifar10": {"path": str(tmp_path)}},
        "keys": {"clean": {}, "fgsm": {}, "pgd": {"epsilons_255": [1]}, "aa_square": {"epsilons_255": [1]}},
        "measurements": ["accuracy", "predictions"],
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def test_plan_designs_fit_the_budget_and_have_yaml_fields(robust201: RunCommand, sweep: Path) -> None:
    result = robust201("plan", sweep, "--budget", "20%", "--like", LIKE_DATASET, "--json")
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    total_hours = summary["costs"]["worker_hours"]
    assert sum(cost["hours"] for cost in summary["costs"]["hours_by_key"]) == pytest.approx(total_hours)
    sampled_images, fewer_networks, _ = summary["designs"]
    assert all(design["worker_hours"] <= 0.2 * total_hours * (1 + 1e-9) for design in summary["designs"])
    assert sampled_images["yaml"]["sampling"]["pilot"] == 20
    assert 0 < sampled_images["half_width"] < 0.05
    assert 0 < fewer_networks["expected_kendall_tau"] < sampled_images["expected_kendall_tau"] < 1


@pytest.mark.parametrize(
    ("budget", "note"), [("1%", "is too small to sample images"), ("0.0001%", "No design fits the budget 0.0001%")]
)
def test_plan_shows_cheapest_designs_if_budget_is_too_small(
    robust201: RunCommand, sweep: Path, budget: str, note: str
) -> None:
    result = robust201("plan", sweep, "--budget", budget)
    assert result.code == 0
    assert note in result.err
    assert "the pilot of 5 networks and the keys that are not sampled take" in result.err
    assert "all networks, sampled images (over the budget)" in result.out
    assert "sampling: {budget: " in result.out
    designs = json.loads(robust201("plan", sweep, "--budget", budget, "--json").out)["designs"]
    assert [design["over_budget"] for design in designs] == [True, budget != "1%", budget != "1%"]


def test_plan_of_small_sweep_shows_only_hours(robust201: RunCommand, sweep: Path) -> None:
    fields = yaml.safe_load(sweep.read_text()) | {"images": {"count": 2}, "architectures": [0, 1]}
    sweep.write_text(yaml.safe_dump(fields))
    result = robust201("plan", sweep)
    assert result.code == 0
    assert "Worker-hours by key" in result.out
    assert "Cheaper designs" not in result.out + result.err


def test_plan_next_excludes_evaluated_cells(robust201: RunCommand, sweep: Path) -> None:
    result = robust201(
        "plan", sweep, "--like", LIKE_DATASET, "--next", "3", "--next-for", "best", "--keys", "pgd:1", "--json"
    )
    assert result.code == 0, result.err
    cells = json.loads(result.out)["architectures"]
    assert len({*cells}) == 3
    assert {*cells} <= {*range(400)} - {21, 41, 50}  # the dataset has results of cells 21, 41 and 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--next-for", "best"), "--next-for needs --next"),
        (("--next", "3", "--budget", "10%"), "--budget and --next are mutually exclusive"),
        (("--next", "3"), "--like"),
        (("--budget", "10"), "expected worker-hours above 0 such as 500h"),
        (("--budget", "10%", "--keys", "pgd"), "--budget applies to the whole sweep"),
    ],
)
def test_plan_reports_wrong_options_in_one_line(
    robust201: RunCommand, sweep: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in robust201("plan", sweep, *options).error_line(2)
