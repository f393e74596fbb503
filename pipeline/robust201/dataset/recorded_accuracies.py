"""Check of weights: clean accuracies are compared with the accuracies recorded with the weights (docs/trust.md).

The recorded accuracies are in the plan of a results folder, and in an export's ``recorded_accuracy.json``:
``{dataset: {"n_test": size of the test split, "accuracy": {id: fraction}}}``. If architectures have several sets of
weights, ``accuracy`` is ``{id: {name of the weights: fraction}}``. The file only exists if accuracies were recorded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.json_rows import read_object
from robust201.dataset.layout import CLEAN, parse_architecture_id
from robust201.dataset.shard_rows import KeyRows
from robust201.dataset.values import check_content
from robust201.images.specs import UNKNOWN_COUNT
from robust201.statistics.weights_check import ACCURACY_TOLERANCE, CleanAccuracy, WeightsCheck, check_accuracies
from robust201.store.folder import ResultsFolder
from robust201.sweep.parts import compare
from robust201.sweep.plan import Plan

if TYPE_CHECKING:
    from robust201.dataset.reader import Dataset

RECORDED_FILE = "recorded_accuracy.json"


_Fraction = Annotated[float, Field(ge=0, le=1)]


class _RecordedDataset(BaseModel, strict=True):
    n_test: Annotated[int, Field(ge=1)]
    accuracy: dict[str, _Fraction | dict[str, _Fraction]]


class _RecordedFile(BaseModel):
    datasets: dict[str, _RecordedDataset]


def read_recorded(folder: Path) -> Iterator[tuple[str, int, str, str, float]]:
    """Yield the recorded accuracies of a dataset folder; there are none if the file does not exist.

    Yields:
        Dataset, number of test images, id, name of the weights (empty if there is a single set), and accuracy.

    Raises:
        ResultsError: the file's content is invalid.
    """
    path = folder / RECORDED_FILE
    content = read_object(path) or {}
    check_content(path, {"datasets": content}, _RecordedFile)
    for dataset, recorded in content.items():
        for identifier, accuracy in recorded["accuracy"].items():
            for weights, fraction in (accuracy if isinstance(accuracy, dict) else {"": accuracy}).items():
                yield dataset, recorded["n_test"], identifier, weights, float(fraction)


def check_recorded(dataset: "Dataset") -> WeightsCheck:
    """Compare clean accuracies with accuracies recorded with the weights, for networks that have both.

    Several folders are not compared, because their images may differ.

    Raises:
        ResultsError: the file of recorded accuracies is invalid, or results are damaged.
    """
    from robust201.dataset.table import read_numbers

    if dataset.sweep is None:
        return check_accuracies(())
    sweep_record, decimals = dataset.sweep.get("sweep") or {}, dataset.sweep.get("round_to")
    n_selected = (sweep_record.get("images") or {}).get("count")
    file_rounding = 0.0 if decimals is None else 0.5 * 10.0**-decimals
    precisions = {
        protocol.get("dataset"): protocol.get("precision", "fp32")
        for protocol in sweep_record.get("protocols", ())
        if protocol.get("key") == CLEAN
    }
    folder = dataset.folders[0]
    measured: dict[tuple[str, str, str], float] = {}
    for name in dataset.data:
        if folder.find(name, CLEAN, "accuracy") is not None:
            rows = read_numbers(folder, name, CLEAN, "accuracy")
            weights = [""] * len(rows) if rows.weights is None else rows.weights.tolist()
            pairs = zip(map(str, rows.architectures.tolist()), weights, strict=True)
            accuracies = rows.columns["accuracy"].tolist()
            measured |= {(name, *pair): accuracy for pair, accuracy in zip(pairs, accuracies, strict=True)}
    accuracies = []
    for name, n_test, identifier, weights, fraction in read_recorded(dataset.path):
        accuracy = measured.get((name, identifier, weights), measured.get((name, identifier, "")))
        if accuracy is not None:
            tolerance = ACCURACY_TOLERANCE.get(precisions.get(name, "fp32"), ACCURACY_TOLERANCE["fp32"])
            network, n_images = (name, parse_architecture_id(identifier), weights), min(n_selected or n_test, n_test)
            accuracies.append(CleanAccuracy(*network, accuracy, fraction, n_images, n_test, file_rounding + tolerance))
    return check_accuracies(accuracies)


def check_clean_accuracy(plan: Plan, folder: ResultsFolder) -> WeightsCheck:
    """Compare the clean accuracies in a results folder with the recorded accuracies, for networks that have both.

    Raises:
        ShardDamagedError: a file is damaged.
        StorageError: a file cannot be read at the moment.
    """
    listing, accuracies = folder.list(), []
    clean_plan = plan.comparable.narrow(keys=("clean",))
    for state in compare(clean_plan, listing, folder.read_tuple).keys:
        rows, n_test = KeyRows(folder, state.key, listing), plan.config.dataset_spec(state.key.dataset).n_test
        for position in range(len(state.key.networks)):
            unit = state.key.unit(position)
            recorded = plan.facts.recorded_accuracies.get(unit.checkpoint_sha256)
            if recorded is None or n_test == UNKNOWN_COUNT or any(True for _ in state.missing(position)):
                continue
            measured = float(rows.read(position, ("accuracy",))[CLEAN_STRENGTH]["accuracy"])
            tolerance = ACCURACY_TOLERANCE[plan.config.precision]
            network = unit.dataset, unit.architecture, unit.weights
            accuracies.append(CleanAccuracy(*network, measured, recorded, unit.n_images, n_test, tolerance))
    return check_accuracies(accuracies)
