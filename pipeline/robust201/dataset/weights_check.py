"""The self-check of weights on a results folder, and the file of an export that lets its readers repeat it."""

import json
from collections.abc import Iterable
from typing import Any

from robust201.core.records import CLEAN_STRENGTH, Unit
from robust201.dataset.groups import SweepPlan
from robust201.images.specs import UNKNOWN_COUNT
from robust201.planning.plan import Plan
from robust201.shards import Inventory, ShardStore
from robust201.statistics.weights_check import ROUNDING, CleanAccuracy, WeightsCheck, check_accuracies

_MEASUREMENTS = ("accuracy",)


def check_clean_accuracy(plan: SweepPlan, store: ShardStore, inventory: Inventory) -> WeightsCheck:
    """Compare clean accuracies with those recorded with the weights; networks that lack either are left out.

    Raises:
        StorageError: rows are damaged or gone (see `RowSelection.iter_values`).
    """
    units = [
        unit
        for unit in plan.units
        if unit.key == "clean" and inventory.is_complete(unit, CLEAN_STRENGTH, _MEASUREMENTS)
    ]
    recorded = {unit.id: (accuracy, n_test) for unit, accuracy, n_test in _recorded(plan, units)}
    held = [unit for unit in units if unit.id in recorded]
    precision = plan.config.precision if isinstance(plan, Plan) else "fp32"
    accuracies = []
    for unit, values in store.select(held, inventory, _MEASUREMENTS).iter_values():
        accuracy, n_test = recorded[unit.id]
        measured = float(values[CLEAN_STRENGTH]["accuracy"])
        accuracies.append(
            CleanAccuracy(
                unit.dataset,
                unit.architecture,
                unit.weights,
                measured,
                accuracy,
                unit.n_images,
                n_test,
                ROUNDING[precision],
            )
        )
    return check_accuracies(accuracies)


def recorded_text(plan: SweepPlan, units: Iterable[Unit]) -> str:
    """Text of recorded_accuracy.json (see `reader.recorded_accuracy`); empty where nothing was recorded."""
    payload: dict[str, dict[str, Any]] = {}
    for unit, accuracy, n_test in _recorded(plan, units):
        of_dataset = payload.setdefault(unit.dataset, {"n_test": n_test, "accuracy": {}})
        held = of_dataset["accuracy"]
        if unit.weights:
            held.setdefault(str(unit.architecture), {})[unit.weights] = accuracy
        else:
            held[str(unit.architecture)] = accuracy
    return json.dumps(payload, indent=1) + "\n" if payload else ""


def _recorded(plan: SweepPlan, units: Iterable[Unit]) -> Iterable[tuple[Unit, float, int]]:
    """Find units whose weights came with an accuracy: that, and the images of the whole test split."""
    if not isinstance(plan, Plan):
        return  # imported results say nothing of their weights
    accuracies = plan.facts.test_accuracies
    for unit in units:
        n_test = plan.config.dataset_spec(unit.dataset).n_test
        if unit.checkpoint_sha256 in accuracies and n_test != UNKNOWN_COUNT:
            yield unit, accuracies[unit.checkpoint_sha256], n_test
