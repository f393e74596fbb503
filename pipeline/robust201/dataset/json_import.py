"""A published or exported JSON dataset becomes shards: so it can be verified, compared, added to and exported again."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201 import __version__
from robust201.core.errors import EvaluationError, InputError, ResultsError
from robust201.core.files import sha256_of, visible_entries
from robust201.core.records import IMPORTED, IMPORTED_FILE, EvaluationResult, Part
from robust201.dataset.import_origins import explain_gaps, find_json, read_licence, read_origin
from robust201.planning.imported_plan import ImportedGroup, ImportedPlan, load_imported_plan
from robust201.planning.plan_file import PLAN_FILE, load_plan
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import (
    MEASURES,
    OPTIONAL_MEASURES,
    RESULTS_FOLDER_FILE,
)
from robust201.runtime.lease import Lease
from robust201.shards import Inventory, ShardStore
from robust201.shards.imported import check_imported
from robust201.tasks import PERTURBATIONS
from robust201.tasks.measurements import COLUMNS, MEASUREMENTS

EXACT_DECIMALS = 15
"""Numbers with so many decimals were not rounded."""

Rows = Mapping[str, Any]
"""Values by id."""

_SAMPLED_ROWS = 20
_DECIMALS = re.compile(r"\d\.(\d+)(?:e-(\d+))?")


@dataclass(frozen=True)
class JsonImportReport:
    """What was imported.

    Attributes:
        n_groups: datasets and keys.
        n_evaluations: rows stored.
        lacking: measurements that some keys have and others lack; an export leaves them out.
        remarks: what of the files was changed or is gone since they were exported, as far as their folder tells.
    """

    n_groups: int
    n_evaluations: int
    lacking: tuple[str, ...]
    remarks: tuple[str, ...]


def import_json(
    source: Path, results: Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> JsonImportReport:
    """Store the results of a JSON dataset in a results folder.

    The folder may hold an earlier import, which is added to, and the results of a sweep that takes imported ones, of
    which none is changed. A measurement of a key that is imported again takes the
    place of what was there; measurements that the key had and the files lack stay. Files are read
    whole, one key at a time, and each key of a dataset becomes one shard.

    Args:
        source: the dataset's folder, in either spelling of keys, compressed or not.
        results: the results folder; made if absent.
        progress: called with (keys imported, keys to import).

    Returns:
        What was imported.

    Raises:
        ResultsError: the folder is no dataset, or a file is damaged or contradicts another.
        InputError: the results folder holds something else, a sweep that takes no imported results, or measurements of
            other architectures or strengths that would have to be joined with those of the files.
        LeaseHeldError: another import, or a driver, is at work in the results folder.
    """
    dataset = RobustnessDataset(source)
    places = [
        (name, key)
        for name in dataset.data
        for key in PERTURBATIONS
        if any(find_json(dataset, name, key, measure) is not None for measure in (*MEASURES, *OPTIONAL_MEASURES))
    ]
    if not places:
        raise ResultsError(
            f"Importing failed for {source}: expected files <dataset>/<key>_<measurement>.json of a known dataset and "
            "key, got none. Name the unpacked dataset's folder."
        )
    _check_taking(results)
    if not (results / RESULTS_FOLDER_FILE).exists() and (foreign := visible_entries(results)):
        raise InputError(
            f"Importing failed for {results}: expected a new folder or an earlier import, got one with {foreign[0]} "
            "but without format.json. Name another folder."
        )
    store = ShardStore.create(results)
    with Lease.acquire(results):
        _check_taking(results)  # a sweep may have been planned while the lease was waited for
        digests: dict[Path, str] = {}
        n_evaluations = _import_groups(dataset, store, places, digests, progress)
        held = load_imported_plan(results)
    everywhere = set(held.measurements)
    some = {measurement for group in held.groups for measurement in group.measurements}
    remarks = tuple(explain_gaps(dataset, digests, places))
    return JsonImportReport(len(places), n_evaluations, tuple(sorted(some - everywhere)), remarks)


def _check_taking(results: Path) -> None:
    if (results / PLAN_FILE).is_file() and not load_plan(results).config.take_imported:
        raise InputError(
            f"Importing failed for {results}: expected a new folder, an earlier import, or a sweep that takes imported "
            "results, got the results of a sweep that does not. Import into a folder of its own, and hold the two "
            "together with: robust201 compare"
        )


def _import_groups(
    dataset: RobustnessDataset,
    store: ShardStore,
    places: Sequence[tuple[str, str]],
    digests: dict[Path, str],
    progress: Callable[[int, int], None],
) -> int:
    results = store.root
    held = load_imported_plan(results) if (results / IMPORTED_FILE).is_file() else ImportedPlan(dataset.path.name, ())
    before = {(group.dataset, group.key): group for group in held.groups}
    inventory = store.inventory(verify="unverified", on_damage="report")
    n_evaluations = 0
    for done, (name, key) in enumerate(places):
        found = _read_files(dataset, name, key)
        earlier = _Earlier.of(before.get((name, key)), found, store, inventory)
        group = _import_group(dataset, store, name, key, found, earlier)
        for measure in found:
            if (file := find_json(dataset, name, key, measure)) is not None:
                digests[file] = group.payload["files"][measure]
        held = held.updated([group])
        held.save(results)
        n_evaluations += len(group.architectures) * len(group.strengths)
        progress(done + 1, len(places))
    store.remove_other_imports({group.protocol.digest for group in held.groups})
    return n_evaluations


def _read_files(dataset: RobustnessDataset, name: str, key: str) -> dict[str, Rows]:
    """Read the files of a key, each whole."""
    files = {measure: find_json(dataset, name, key, measure) for measure in (*MEASURES, *OPTIONAL_MEASURES)}
    return {
        measure: dataset.files.read_json_file(file, name, key, measure)
        for measure, file in files.items()
        if file is not None
    }


@dataclass(frozen=True)
class _Earlier:
    """What an earlier import had of a key, and the files at hand lack: it stays.

    Attributes:
        group: the earlier import; None where there is nothing to keep.
        measurements: those to keep.
        store: reads them.
        inventory: what the store held before.
    """

    group: ImportedGroup | None
    measurements: tuple[str, ...]
    store: ShardStore
    inventory: Inventory

    @classmethod
    def of(
        cls, group: ImportedGroup | None, found: Mapping[str, Rows], store: ShardStore, inventory: Inventory
    ) -> "_Earlier":
        kept = () if group is None else tuple(name for name in group.measurements if name not in found)
        return cls(group if kept else None, kept, store, inventory)

    def check(self, path: Path, ids: Sequence[str], strengths: Sequence[float]) -> None:
        """Hold the files at hand to what they are joined with."""
        group = self.group
        if group is None:
            return
        wanted = {int(identifier) for identifier in ids}
        whole = all(
            self.inventory.is_complete(group.unit(index), strength, self.measurements)
            for index in group.architectures
            for strength in group.strengths
        )
        if wanted != set(group.architectures) or tuple(strengths) != group.strengths or not whole:
            told = f"{len(group.architectures)} architectures at {len(group.strengths)} strengths"
            raise InputError(
                f"Importing failed for {path} {group.dataset} {group.key}: expected the {told} of which the results "
                f"folder has {', '.join(self.measurements)}, got {'others' if whole else 'gaps in these'}. "
                "Import into another folder."
            )

    def values(self, architecture: int, strength: float) -> dict[str, NDArray[Any]]:
        """Columns to keep of one evaluation."""
        if self.group is None:
            return {}
        return self.store.values(self.group.unit(architecture), strength, self.inventory, self.measurements)


def _import_group(
    dataset: RobustnessDataset, store: ShardStore, name: str, key: str, found: Mapping[str, Rows], earlier: _Earlier
) -> ImportedGroup:
    ids = _common_ids(dataset.path, name, key, found)
    strengths = dataset.strengths(name, key)
    earlier.check(dataset.path, ids, strengths)
    origin = read_origin(dataset.path, dataset.sweep, name, key)
    decimals = {
        # Where a sweep took imported results, some rows are rounded and others are not.
        measure: _fewest(origin.decimals.get(measure), count_decimals(rows, ids))
        for measure, rows in found.items()
        if measure in _ROUNDED
    }
    opened = {measure: find_json(dataset, name, key, measure) for measure in found}
    files = {measure: sha256_of(file) for measure, file in opened.items() if file is not None}
    known = {} if earlier.group is None else earlier.group.payload
    measurements = (*found, *earlier.measurements)
    n_images = _count_images(found, ids[0], key, origin.n_images, earlier)
    told = origin.to_payload()
    if earlier.group is not None:  # of measurements that came from two places only what both tell is known
        told = {field: value for field, value in told.items() if known.get(field) == value}
    payload = {
        "protocol": IMPORTED,
        "source": dataset.path.name,
        "licence": read_licence(dataset.path),
        "dataset": name,
        "key": key,
        "strengths": list(strengths),
        "n_images": n_images,
        "files": {m: h for m, h in known.get("files", {}).items() if m in earlier.measurements} | files,
        "decimals": {m: d for m, d in known.get("decimals", {}).items() if m in earlier.measurements} | decimals,
        "imported_by": f"robust201 {__version__}",
    } | told
    group = ImportedGroup(
        name,
        key,
        strengths,
        n_images,
        tuple(map(int, ids)),
        tuple(m for m in MEASUREMENTS if m in measurements),
        payload,
    )
    store.save_protocol(group.protocol)
    try:
        store.add_imported(name, _results(group, found, ids, earlier, dataset.path))
    except EvaluationError as error:
        # Not raised inside: an error of the files read would look like one of the file being written.
        raise ResultsError(str(error)) from error
    return group


_ROUNDED = ("accuracy", "confidence")
_COUNTED = ("cm", "predictions")


def _fewest(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


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


def _count_images(found: Mapping[str, Rows], identifier: str, key: str, told: int, earlier: _Earlier) -> int:
    """Count a key's images: by a measurement of each of them, else as the dataset tells."""
    for measure in _COUNTED:
        if measure in found:
            value = found[measure][identifier]
            first = np.asarray(value if key == "clean" else value[0])
            return int(first.sum()) if measure == "cm" else len(first)
    if earlier.group is not None and set(_COUNTED) & set(earlier.measurements):
        return earlier.group.n_images
    return told


def _results(
    group: ImportedGroup,
    found: Mapping[str, Rows],
    ids: Sequence[str],
    earlier: _Earlier,
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
                values = earlier.values(unit.architecture, strength)
                for measure, plain in by_measure.items():
                    values |= columns_of_json(measure, plain[place])
                check_imported(values, unit.n_images, group.payload["decimals"], name=f"{label} at {strength:g}")
                results.append(EvaluationResult(part, strength, values, 0.0, {"source": path.name}))
        except ResultsError as error:
            raise EvaluationError(str(error)) from error
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
