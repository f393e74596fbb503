"""A published or exported JSON dataset becomes shards: so it can be verified, compared, added to and exported again."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import __version__
from pipeline.analysis.reader import RobustnessDataset
from pipeline.analysis.result_files import MEASURES, OPTIONAL_MEASURES, PARQUET_FOLDER, Rows
from pipeline.datasets import DATASETS
from pipeline.errors import EvaluationError, InputError, ResultsError
from pipeline.imported_plan import IMPORTED_FILE, ImportedGroup, ImportedPlan, load_imported_plan
from pipeline.measurements import COLUMNS, MEASUREMENTS
from pipeline.perturbations import PERTURBATIONS
from pipeline.plan_file import PLAN_FILE
from pipeline.records import IMPORTED, EvaluationResult, Part
from pipeline.shards import ShardStore
from pipeline.shards.imported import check_imported

EXACT_DECIMALS = 15
"""Numbers with so many decimals were not rounded."""

_SAMPLED_ROWS = 20
_DECIMALS = re.compile(r"\d\.(\d+)(?:e-(\d+))?")


@dataclass(frozen=True)
class JsonImportReport:
    """What was imported.

    Attributes:
        n_groups: datasets and keys.
        n_evaluations: rows stored.
        lacking: measurements that some keys have and others lack; an export leaves them out.
    """

    n_groups: int
    n_evaluations: int
    lacking: tuple[str, ...]


def import_json(
    source: Path, results: Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> JsonImportReport:
    """Store the results of a JSON dataset in a results folder.

    The folder may hold an earlier import, which is added to: a key of a dataset that is imported again takes the place
    of what was there. Files are read row by row, and each key of a dataset becomes one shard.

    Args:
        source: the dataset's folder, in either spelling of keys, compressed or not.
        results: the results folder; made if absent.
        progress: called with (keys imported, keys to import).

    Returns:
        What was imported.

    Raises:
        ResultsError: the folder is no dataset, or a file is damaged or contradicts another.
        InputError: the results folder holds a sweep of its own.
    """
    dataset = RobustnessDataset(source)
    places = [
        (name, key)
        for name in dataset.data
        for key in PERTURBATIONS
        if any(_file(dataset, name, key, measure) is not None for measure in (*MEASURES, *OPTIONAL_MEASURES))
    ]
    if not places:
        raise ResultsError(
            f"Importing failed for {source}: expected files <dataset>/<key>_<measurement>.json of a known dataset and "
            "key, got none. Name the unpacked dataset's folder."
        )
    if (results / PLAN_FILE).is_file():
        raise InputError(
            f"Importing failed for {results}: expected a new folder or an earlier import, got the results of a sweep. "
            "Import into a folder of its own, and compare or merge the two."
        )
    store = ShardStore.create(results)
    held = load_imported_plan(results) if (results / IMPORTED_FILE).is_file() else ImportedPlan(source.name, ())
    n_evaluations = 0
    for done, (name, key) in enumerate(places):
        group = _import_group(dataset, store, name, key)
        held = held.updated([group])
        held.save(results)
        n_evaluations += len(group.architectures) * len(group.strengths)
        progress(done + 1, len(places))
    everywhere = set(held.measurements)
    some = {measurement for group in held.groups for measurement in group.measurements}
    return JsonImportReport(len(places), n_evaluations, tuple(sorted(some - everywhere)))


def _file(dataset: RobustnessDataset, name: str, key: str, measure: str) -> Path | None:
    file = dataset.files.find(name, key, measure)
    return None if file is None or PARQUET_FOLDER in file.parts else file


def _import_group(dataset: RobustnessDataset, store: ShardStore, name: str, key: str) -> ImportedGroup:
    found = {
        measure: dataset.files.rows(name, key, measure)
        for measure in (*MEASURES, *OPTIONAL_MEASURES)
        if _file(dataset, name, key, measure) is not None
    }
    ids = _common_ids(dataset.path, name, key, found)
    strengths = dataset.strengths(name, key)
    decimals = {measure: count_decimals(rows, ids) for measure, rows in found.items() if measure in _ROUNDED}
    payload = {
        "protocol": IMPORTED,
        "source": dataset.path.name,
        "dataset": name,
        "key": key,
        "decimals": decimals,
        "imported_by": f"robust201 {__version__}",
    }
    n_images = _count_images(found, ids[0], key, name)
    group = ImportedGroup(
        name, key, strengths, n_images, tuple(map(int, ids)), tuple(m for m in MEASUREMENTS if m in found), payload
    )
    store.save_protocol(group.protocol)
    try:
        store.add_imported(name, _results(group, found, ids, decimals, dataset.path))
    except EvaluationError as error:
        # Not raised inside: an error of the files read would look like one of the file being written.
        raise ResultsError(str(error)) from error
    return group


_ROUNDED = ("accuracy", "confidence")


def _common_ids(path: Path, name: str, key: str, found: Mapping[str, Rows]) -> list[str]:
    (first, rows), *others = found.items()
    ids = sorted(rows, key=int)
    for measure, other in others:
        if sorted(other, key=int) != ids:
            raise ResultsError(
                f"Importing failed for {path} {name} {key}: expected the same architectures in {first} and {measure}, "
                f"got {len(ids)} and {len(list(other))}. Export or download the files again."
            )
    if not ids:
        raise ResultsError(
            f"Importing failed for {path} {name} {key}: expected an architecture, got none. Leave the file out."
        )
    return ids


def count_decimals(rows: Rows, ids: Sequence[str]) -> int | None:
    """Count the decimals that numbers were rounded to, from the first rows; None where they were not rounded."""
    most = 0
    for identifier in ids[:_SAMPLED_ROWS]:
        for number, exponent in _DECIMALS.findall(repr(rows[identifier])):
            most = max(most, len(number) + int(exponent or 0))
    return most if most < EXACT_DECIMALS else None


def _count_images(found: Mapping[str, Rows], identifier: str, key: str, name: str) -> int:
    for measure in ("cm", "predictions"):
        if measure in found:
            value = found[measure][identifier]
            first = np.asarray(value if key == "clean" else value[0])
            return int(first.sum()) if measure == "cm" else len(first)
    return DATASETS[name].n_test


def _results(
    group: ImportedGroup,
    found: Mapping[str, Rows],
    ids: Sequence[str],
    decimals: Mapping[str, int | None],
    path: Path,
) -> Iterator[list[EvaluationResult]]:
    for identifier in ids:
        unit = group.unit(int(identifier))
        part = Part(unit, unit.strengths, 0, unit.n_images)
        label = f"#{identifier} {group.dataset} {group.key} of {path}"
        try:
            by_measure = {
                measure: split_by_strength(rows[identifier], group.key, len(unit.strengths))
                for measure, rows in found.items()
            }
            results = []
            for place, strength in enumerate(unit.strengths):
                values: dict[str, NDArray[Any]] = {}
                for measure, plain in by_measure.items():
                    values |= columns_of_json(measure, plain[place])
                check_imported(values, unit.n_images, decimals, name=f"{label} at {strength:g}")
                results.append(EvaluationResult(part, strength, values, 0.0, {"source": path.name}))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise EvaluationError(
                f"Importing failed for {label}: expected {len(unit.strengths)} values in the published nesting, got "
                f"another form ({error}). Export or download the files again."
            ) from error
        yield results


def split_by_strength(value: Any, key: str, n_strengths: int) -> list[Any]:
    """Give the value of each strength.

    Args:
        value: as it stands in the file: one value for ``clean``, else a list of them; a confidence may also be an
            object of lists, of which the published description says no more than "one element per eps".
        key: in the paper's style.
        n_strengths: number of strengths.

    Raises:
        ValueError: there are more or fewer.
    """
    if key == "clean":
        return [value]
    if isinstance(value, dict):
        split = [{name: part[place] for name, part in value.items()} for place in range(n_strengths)]
        lengths = {len(part) for part in value.values()}
    else:
        split, lengths = list(value), {len(value)}
    if lengths != {n_strengths}:
        raise ValueError(f"{sorted(lengths)} values")
    return split


def columns_of_json(measure: str, value: Any) -> dict[str, NDArray[Any]]:
    """Turn a measurement's JSON value into its columns, null into NaN (the inverse of `measurements.to_json`).

    Raises:
        ValueError: a count is no whole number, or an array is ragged.
    """
    form = MEASUREMENTS[measure]
    parts = {form: value} if isinstance(form, str) else {column: value[name] for name, column in form.items()}
    columns = {}
    for name, plain in parts.items():
        dtype = COLUMNS[name].dtype
        array = np.array(plain, dtype=np.float64)
        if dtype.kind != "f" and not np.array_equal(array, np.rint(array)):
            raise ValueError(f"{name} that are no whole numbers")
        columns[name] = array.astype(dtype)
    return columns
