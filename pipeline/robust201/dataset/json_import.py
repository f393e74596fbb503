"""A published or exported JSON dataset becomes shards: so it can be verified, compared, added to and exported again."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray

from robust201 import __version__
from robust201.core.errors import EvaluationError, InputError, ResultsError
from robust201.core.files import MAX_LISTED_BYTES, MAX_STATE_BYTES, IrregularFileError, read_file, sha256_of
from robust201.core.records import IMPORTED, IMPORTED_FILE, EvaluationResult, Part
from robust201.dataset.card import CARD_FILE
from robust201.dataset.imported_plan import ImportedGroup, ImportedPlan, load_imported_plan
from robust201.dataset.listing import explain_changes
from robust201.dataset.published_forms import PublishedForms, holds_shares
from robust201.images import DATASETS
from robust201.planning.plan_file import PLAN_FILE
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import (
    RESULTS_FOLDER_FILE,
    SWEEP_FILE,
    ResultFiles,
    row_of,
    values_by_strength,
)
from robust201.reader.value_checks import architecture_of
from robust201.runtime.lease import Lease
from robust201.shards import ShardStore
from robust201.spaces import DEFAULT_SPACE
from robust201.tasks import TASKS
from robust201.tasks.columns import COLUMNS, COUNTS, MEASUREMENTS, count_images, fields_of
from robust201.tasks.measurements import check_values

EXACT_DECIMALS = 15
"""Numbers with so many decimals were not rounded."""

Rows = Mapping[str, Any]
"""Values by id."""

_SAMPLED_ROWS = 20
_DECIMALS = re.compile(r"\d\.(\d+)(?:e-(\d+))?")


@dataclass(frozen=True)
class JsonImportReport:
    """How many keys of datasets were imported, and how many rows.

    Attributes:
        lacking: measurements that some keys have and others lack; an export leaves them out.
        remarks: what was read in another form than an export's (see `PublishedForms`); keys that were left out, for
            they are of no task of this version; and what of the files was changed or is gone since they were exported,
            as far as their folder records it.
    """

    n_groups: int
    n_evaluations: int
    lacking: tuple[str, ...]
    remarks: tuple[str, ...]


def import_json(
    source: Path, results: Path, *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> JsonImportReport:
    """Store the results of a JSON dataset, in either spelling of keys, compressed or not, in a results folder.

    The folder is made if absent. It may hold an earlier import, which is added to: a key that is imported again takes
    the place of what was there, and must have all its measurements. Files are read whole, one key at a time, and each
    key of a dataset becomes one shard. `progress` is called with (keys imported, keys to import).

    Raises:
        ResultsError: the folder is no dataset, or a file is damaged or contradicts another.
        InputError: the results folder holds a sweep or something else, or measurements of a key that the files lack.
        LeaseHeldError: another import, or a driver, is at work in the results folder.
    """
    dataset = RobustnessDataset(source)
    places = {
        (name, key): files
        for name in dataset.data
        for key in TASKS
        if (files := json_files_of(dataset.files, name, key))
    }
    if not places:
        left_out = keys_left_out(dataset, ())
        got = f"only {', '.join(left_out)}, of no task of this version" if left_out else "none"
        raise ResultsError(
            f"Importing failed for {source}: expected files <dataset>/<key>_<measurement>.json of a known dataset and "
            f"key, got {got}. Name the unpacked dataset's folder."
        )
    _refuse_sweep(results)
    is_new = not (results / RESULTS_FOLDER_FILE).exists()
    store = ShardStore.create(results)
    with Lease.acquire(results):
        _refuse_sweep(results)  # a sweep may have been planned while the lease was waited for
        try:
            held, read_as = _import_groups(dataset, store, places, progress)
        except InputError:
            if is_new and not (results / IMPORTED_FILE).exists():
                store.folder.remove()
            raise
    imported = [group for group in held.groups if (group.dataset, group.key) in places]
    n_evaluations = sum(len(group.architectures) * len(group.strengths) for group in imported)
    digests = {
        places[one.dataset, one.key][name]: sha for one in imported for name, sha in one.payload["files"].items()
    }
    some = {measurement for group in held.groups for measurement in group.measurements}
    lacking = tuple(sorted(some - set(held.measurements)))
    remarks = (*read_as, *explain_gaps(dataset, digests, places))
    return JsonImportReport(len(places), n_evaluations, lacking, remarks)


def _refuse_sweep(results: Path) -> None:
    if (results / PLAN_FILE).is_file():
        raise InputError(
            f"Importing failed for {results}: expected a new folder or an earlier import, got the results of a sweep. "
            "Import into a separate folder, and compare the two with: robust201 compare"
        )


def json_files_of(files: ResultFiles, dataset: str, key: str) -> dict[str, Path]:
    """Find the JSON files of a key, in either spelling, by measurement."""
    row = row_of(key)
    known = list(MEASUREMENTS) if row and not row.columns else files.measurements_of(dataset, key)
    found = {measure: files.find_json(dataset, key, measure) for measure in known}
    return {measure: file for measure, file in found.items() if file is not None}


def _import_groups(
    dataset: RobustnessDataset,
    store: ShardStore,
    places: Mapping[tuple[str, str], Mapping[str, Path]],
    progress: Callable[[int, int], None],
) -> tuple[ImportedPlan, list[str]]:
    results = store.root
    held = load_imported_plan(results) if (results / IMPORTED_FILE).is_file() else ImportedPlan(dataset.path.name, ())
    if held.groups and held.space_name != dataset.files.space_name:
        raise InputError(
            f"Importing failed for {dataset.path}: expected architectures of {held.space_name}, as the results folder "
            f"has, got those of {dataset.files.space_name}. Import into a separate folder."
        )
    for earlier in held.groups:
        place = earlier.dataset, earlier.key
        lacking = [measure for measure in earlier.measurements if place in places and measure not in places[place]]
        if lacking:
            raise InputError(
                f"Importing failed for {dataset.path} {earlier.dataset} {earlier.key}: expected files of all "
                f"measurements that the results folder has of it, got none of {', '.join(lacking)}. Put the files of "
                "both into one folder, and import that."
            )
    read_as: list[str] = []
    for done, ((name, key), files) in enumerate(places.items()):
        group, remarks = _import_group(dataset, store, name, key, files)
        held = held.updated(group)
        read_as += remarks
        held.save(results)
        progress(done + 1, len(places))
    store.remove_other_imports({group.protocol.digest for group in held.groups})
    return held, read_as


def _import_group(
    dataset: RobustnessDataset, store: ShardStore, name: str, key: str, files: Mapping[str, Path]
) -> tuple[ImportedGroup, tuple[str, ...]]:
    found = {measure: dataset.files.read_json_file(file, name, key, measure) for measure, file in files.items()}
    ids = _common_ids(dataset.path, name, key, found)
    strengths = dataset.strengths(name, key)
    origin = read_origin(dataset.sweep, name, key)
    decimals = {
        measure: _fewest(origin.decimals.get(measure), count_decimals(rows, ids))
        for measure, rows in found.items()
        if not all(name in COLUMNS and COLUMNS[name].is_exact for name in fields_of(measure).values())
    }
    cm, is_single = COLUMNS[COUNTS].measurement, key == "clean"
    shares = cm in found and holds_shares(found[cm][ids[0]], origin.n_images, is_single=is_single)
    counts = (
        count_images(measure, rows[ids[0]], is_single=is_single)
        for measure, rows in found.items()
        if not (shares and measure == cm)
    )
    n_images = next(filter(None, counts), origin.n_images)
    if not n_images:
        raise ResultsError(
            f"Importing failed for {dataset.path} {name} {key}: expected sweep.json to give the number of images, got "
            "none. Export it again with its confusion matrices (cm)."
        )
    payload: dict[str, Any] = {
        "protocol": IMPORTED,
        "source": dataset.path.name,
        "licence": read_licence(dataset.path),
        "dataset": name,
        "key": key,
        "strengths": list(strengths),
        "n_images": n_images,
        "files": {measure: sha256_of(file, MAX_LISTED_BYTES) for measure, file in files.items()},
        "decimals": decimals,
        "imported_by": f"robust201 {__version__}",
    }
    if dataset.files.space_name != DEFAULT_SPACE:
        payload["space"] = dataset.files.space_name
    is_measure = TASKS[key].kind == "measure"
    if origin.computed_under:
        payload["computed_under"] = dict(origin.computed_under)
    group = ImportedGroup(
        dataset=name,
        key=key,
        strengths=strengths,
        n_images=n_images,
        architectures=tuple(map(architecture_of, ids)),
        measurements=tuple(found) if is_measure else tuple(m for m in MEASUREMENTS if m in found),
        payload=payload,
    )
    store.save_protocol(group.protocol)
    forms = PublishedForms(f"{name} {key}", n_images, shares=shares)
    try:
        store.add_imported(name, _results(group, found, ids, dataset.path, forms))
    except EvaluationError as error:
        # Not raised inside: an error of the files read would look like one of the file being written.
        raise ResultsError(str(error)) from error
    return group, forms.remarks


def _fewest(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _common_ids(path: Path, name: str, key: str, found: Mapping[str, Rows]) -> list[str]:
    (first, rows), *others = found.items()
    ids: list[str] = sorted(rows, key=_order)
    for measure, other in others:
        if sorted(other, key=_order) != ids:
            raise ResultsError(
                f"Importing failed for {path} {name} {key}: expected the same architectures in {first} and {measure}, "
                f"got {len(ids)} and {len(list(other))}. Export or download the files again."
            )
    if not ids:
        raise ResultsError(
            f"Importing failed for {path} {name} {key}: expected an architecture, got none. Leave the file out."
        )
    return ids


def _order(identifier: str) -> Any:
    return architecture_of(identifier)


def count_decimals(rows: Rows, ids: Sequence[str]) -> int | None:
    """Count the decimals that numbers were rounded to, from the first rows; None where they were not rounded."""
    most = 0
    for identifier in ids[:_SAMPLED_ROWS]:
        for number, exponent in _DECIMALS.findall(repr(rows[identifier])):
            most = max(most, len(number) + int(exponent or 0))
    return most if most < EXACT_DECIMALS else None


def _results(
    group: ImportedGroup, found: Mapping[str, Rows], ids: Sequence[str], path: Path, forms: PublishedForms
) -> Iterator[list[EvaluationResult]]:
    for identifier in ids:
        unit = group.unit(architecture_of(identifier))
        part = Part(unit, unit.strengths, 0, unit.n_images)
        label = f"{unit.label} of {path}"
        try:
            by_strength: dict[float, dict[str, NDArray[Any]]] = {strength: {} for strength in unit.strengths}
            for measure, rows in found.items():
                row = rows[identifier]
                plain = [row] if group.is_single else values_by_strength(row, unit.strengths, f"{label} {measure}")
                for strength, value in zip(unit.strengths, plain, strict=True):
                    by_strength[strength] |= forms.columns_of(measure, value)
            results = []
            for strength, read in by_strength.items():
                values, decimals = forms.completed(read), group.payload["decimals"]
                check_values(values, unit.n_images, decimals=decimals, name=f"{label} at {strength:g}")
                results.append(EvaluationResult(part, strength, values, 0.0, {"source": path.name}))
        except ResultsError as error:
            raise EvaluationError(str(error)) from error
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise EvaluationError(
                f"Importing failed for {label}: expected {len(unit.strengths)} values in the published nesting, got "
                f"another form ({error}). Export or download the files again."
            ) from error
        yield results


@dataclass(frozen=True)
class Origin:
    """What an export records of the results of a key on a dataset.

    The number of images is that of the whole test split where nothing is recorded. Decimals are the fewest of imported
    rows; others may have more, as earlier versions put both into one file. `computed_under` is the payload of the one
    protocol that computed all of them; None where there were several or that is not recorded.
    """

    n_images: int
    decimals: Mapping[str, int]
    computed_under: Mapping[str, Any] | None


def read_origin(sweep: Mapping[str, Any] | None, dataset: str, key: str) -> Origin:
    """Read what a sound `sweep.json` (None: there is none) records of the results of a key, in the paper's style."""
    record = {} if sweep is None else sweep.get("sweep", {})
    protocols = [p for p in record.get("protocols", ()) if (p.get("dataset"), p.get("key")) == (dataset, key)]
    counts = [protocol["n_images"] for protocol in protocols if protocol.get("n_images") is not None]
    n_test = DATASETS[dataset].n_test if dataset in DATASETS else 0  # a dataset of the user's own
    n_images = next(iter(counts), None) or (record.get("images") or {}).get("count") or n_test
    decimals: dict[str, int] = {}
    for protocol in protocols:
        known = {name: count for name, count in protocol.get("decimals", {}).items() if count is not None}
        decimals |= {name: min(count, decimals.get(name, count)) for name, count in known.items()}
    only = protocols[0] if len(protocols) == 1 else None
    if only is not None and only.get("protocol") == IMPORTED:
        only = only.get("computed_under")
    return Origin(n_images, decimals, only if isinstance(only, dict) else None)


def keys_left_out(dataset: RobustnessDataset, read: Collection[Path]) -> list[str]:
    """Name what of a dataset an import passes over, such as ``cifar10 mine``: what is of no task of this version.

    Keys are those of `sweep.json` and, as the published form has none, those by which the JSON files are called that
    were not read; where such a name has no measurement, all of it stands for the key.
    """
    planned = {} if dataset.sweep is None else dataset.sweep["strengths"]
    own = {name: [key for key in by_key if row_of(key) is None] for name, by_key in planned.items()}
    found = {f"{name} {key}": None for name, keys in own.items() for key in keys}
    done = {_stem(file) for file in read}
    for file in sorted(dataset.path.glob("[!.]*/[!.]*.json*")):
        if not file.name.endswith((".json", ".json.gz", ".json.zst")) or _stem(file) in done:
            continue
        folder, name = _stem(file)
        key = next((name.removesuffix(f"_{one}") for one in MEASUREMENTS if name.endswith(f"_{one}")), None)
        if any(name.startswith(f"{measurement}_") for measurement in own.get(folder, ())):
            continue  # named already
        # Another folder may hold what is no result at all.
        if key is not None or folder in dataset.data:
            found[f"{folder} {name if key is None else key}"] = None
    return list(found)


def _stem(file: Path) -> tuple[str, str]:
    """Give the folder and the name of a file without its endings, which are the same compressed or not."""
    return file.parent.name, file.name.partition(".json")[0]


def explain_gaps(
    dataset: RobustnessDataset, digests: Mapping[Path, str], places: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Say what of a dataset is left out, and which files, by its own record, were changed or removed since the export.

    Files of results that were read are given with their SHA-256, datasets and keys in the paper's style.
    """
    yield from explain_changes(dataset.path, digests)
    if left_out := keys_left_out(dataset, digests):
        yield f"{', '.join(left_out)} of {dataset.path}: of no task of this version, not imported"
    planned = {} if dataset.sweep is None else dataset.sweep["strengths"]
    absent = [
        f"{name} {spelling}"
        for name, by_key in planned.items()
        for spelling in by_key
        if (name, row.key if (row := row_of(spelling)) else spelling) not in places
        and spelling not in dataset.missing.get(name, {})
    ]
    absent = [name for name in absent if row_of(name.partition(" ")[2]) is not None]
    if absent:
        yield f"{dataset.path / SWEEP_FILE} lists {', '.join(absent)}, of which there is no JSON file"


def read_licence(source: Path) -> str | None:
    """Licence that the card of an export names; None where there is no such card."""
    card = source / CARD_FILE
    try:
        text = read_file(card, MAX_STATE_BYTES).decode(errors="replace")
    except (FileNotFoundError, IsADirectoryError, IrregularFileError):
        return None
    parts = text.split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        return None
    try:
        front = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return None
    named = front.get("license") if isinstance(front, dict) else None
    return named if isinstance(named, str) else None
