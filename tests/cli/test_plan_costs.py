"""`robust201 plan` prints worker-hours by key, and days on the sweep's workers."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import RunCommand


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    fields: dict[str, Any] = {
        "name": "sweep",
        "results": str(tmp_path / "results"),
        "architectures": ["0-399"],
        "checkpoints": {"path": str(tmp_path)},
        "datasets": {"cifar10": {"path": str(tmp_path)}},
        "keys": {"clean": {}, "fgsm": {}, "pgd": {"epsilons": ["1/255"]}, "aa_square": {"epsilons": ["1/255"]}},
        "execution": {"workers": 4},
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def test_hours_by_key_add_up_to_the_hours_of_the_sweep(robust201: RunCommand, sweep: Path) -> None:
    costs = json.loads(robust201("plan", sweep, "--json").out)
    assert {cost["key"] for cost in costs["hours_by_key"]} == {"clean", "fgsm", "pgd", "aa_square"}
    assert sum(cost["hours"] for cost in costs["hours_by_key"]) == pytest.approx(costs["worker_hours"])
    assert costs["days"] == pytest.approx(costs["worker_hours"] / 24 / 4)


@pytest.mark.parametrize(("architectures", "has_days"), [(["0-399"], True), ([0, 1], False)])
def test_plan_shows_days_only_of_long_sweeps(
    robust201: RunCommand, sweep: Path, architectures: list[object], has_days: bool
) -> None:
    fields = yaml.safe_load(sweep.read_text()) | {"images": {"count": 40}, "architectures": architectures}
    sweep.write_text(yaml.safe_dump(fields | ({"images": {"count": None}} if has_days else {})))
    result = robust201("plan", sweep)
    assert result.code == 0
    assert "Worker-hours by key" in result.out
    assert ("worker-hours are" in result.err) == has_days
