"""The self-check of weights: clean accuracies compared with those recorded with the weights (docs/trust.md).

A results folder knows the recorded ones by its plan, an export by ``recorded_accuracy.json``: ``{dataset: {"n_test":
images of the test split, "accuracy": {id: fraction}}}``; where an architecture has several weights, ``{id: {name of the
weights: fraction}}``. The file is there if the weights came with their accuracies.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ResultsError, describe_content
from robust201.core.records import CLEAN_STRENGTH, Unit
from robust201.reader.json_files import read_object
from robust201.reader.value_checks import CLEAN, architecture_of
from robust201.statistics.weights_check import ROUNDING, CleanAccuracy, WeightsCheck, check_accuracies

if TYPE_CHECKING:
    from robust201.planning.plan import Plan
    from robust201.reader.dataset import RobustnessDataset
    from robust201.shards import Inventory, ShardStore

RECORDED_FILE = "recorded_accuracy.json"

_MEASUREMENTS = ("accuracy",)


def check_clean_accuracy(plan: "Plan", store: "ShardStore", inventory: "Inventory") -> WeightsCheck:
    """Check a results folder; networks that lack either accuracy are left out.

    Raises:
        StorageError: rows are damaged or gone (see `RowSelection.iter_values`).
    """
    # Of the paper's 290,970 units only these are written out.
    clean = (
        planned.unit(position)
        for planned in plan.planned_keys
        if planned.key == CLEAN
        for position in range(len(planned.networks))
    )
    recorded: dict[str, tuple[float, int]] = {}
    known = []
    for unit, accuracy, n_test in plan.recorded_accuracies(clean):
        recorded[unit.id] = accuracy, n_test
        known.append(unit)
    complete = inventory.are_complete(known, CLEAN_STRENGTH, _MEASUREMENTS)
    checked = [unit for unit, is_complete in zip(known, complete, strict=True) if is_complete]
    rounding = ROUNDING[plan.config.precision]
    accuracies = []
    for unit, values in store.select(checked, inventory, _MEASUREMENTS).iter_values():
        accuracy, n_test = recorded[unit.id]
        measured = float(values[CLEAN_STRENGTH]["accuracy"])
        network = unit.dataset, unit.architecture, unit.weights
        accuracies.append(CleanAccuracy(*network, measured, accuracy, unit.n_images, n_test, rounding))
    return check_accuracies(accuracies)


def recorded_text(recorded: Iterable[tuple[Unit, float, int]]) -> str:
    """Text of recorded_accuracy.json, of what `Plan.recorded_accuracies` found; empty where nothing was recorded."""
    payload: dict[str, dict[str, Any]] = {}
    for unit, accuracy, n_test in recorded:
        of_dataset = payload.setdefault(unit.dataset, {"n_test": n_test, "accuracy": {}})
        held = of_dataset["accuracy"]
        if unit.weights:
            held.setdefault(str(unit.architecture), {})[unit.weights] = accuracy
        else:
            held[str(unit.architecture)] = accuracy
    return json.dumps(payload, indent=1) + "\n" if payload else ""


def read_recorded(folder: Path) -> Iterator[tuple[str, int, str, str, float]]:
    """List (dataset, images of its test split, id, name of the weights or "", accuracy); nothing without the file.

    Raises:
        ResultsError: the file has another content.
    """
    path = folder / RECORDED_FILE
    content = read_object(path) or {}
    try:
        for dataset, held in content.items():
            n_test = held["n_test"]
            for identifier, accuracy in held["accuracy"].items():
                named = accuracy if isinstance(accuracy, dict) else {"": accuracy}
                for weights, fraction in named.items():
                    if type(n_test) is not int or n_test < 1 or not 0 <= fraction <= 1:
                        raise ValueError(f"{fraction} of {n_test}")  # noqa: TRY301
                    yield dataset, n_test, identifier, weights, float(fraction)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ResultsError(
            f"Reading the accuracies recorded with weights failed for {path}: expected test images and fractions by "
            f"dataset and id, got other content ({describe_content(error)}). Export or download the dataset again."
        ) from error


def check_recorded(dataset: "RobustnessDataset") -> WeightsCheck:
    """Compare clean accuracies with those recorded with the weights; networks that lack either are left out.

    Of several folders seen as one, none is compared: each may have images of its own.

    Raises:
        ResultsError: the file of recorded accuracies has another content, or results are damaged.
    """
    if dataset.sweep is None:
        return check_accuracies(())
    sweep = dataset.sweep.get("sweep") or {}
    count, decimals = (sweep.get("images") or {}).get("count"), dataset.sweep.get("round_to")
    of_file = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    protocols = {
        protocol.get("dataset"): protocol for protocol in sweep.get("protocols", ()) if protocol.get("key") == CLEAN
    }
    several = len(dataset.weights) > 1
    held: dict[tuple[str, str], dict[str, float]] = {}
    accuracies = []
    for name, n_test, identifier, weights, recorded in read_recorded(dataset.path):
        if (name, weights) not in held:
            chosen = weights if several else None
            found = dataset.query(name, CLEAN, ["accuracy"], missing_ok=True, weights=chosen)
            held[name, weights] = found.get(name, {}).get(CLEAN, {}).get("accuracy", {})
        measured = held[name, weights].get(identifier)
        if measured is not None:
            precision = protocols.get(name, {}).get("precision", "fp32")
            rounding = of_file + ROUNDING.get(precision, ROUNDING["fp32"])
            n_images = min(count or n_test, n_test)
            architecture = architecture_of(identifier)
            accuracies.append(
                CleanAccuracy(name, architecture, weights, measured, recorded, n_images, n_test, rounding)
            )
    return check_accuracies(accuracies)
