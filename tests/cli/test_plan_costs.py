"""`robust201 plan` prints worker-hours by key, which add up to those of the sweep."""

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
