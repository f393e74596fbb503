"""What a dataset's folder tells of its results: licence, images, protocol, and whether the files are the export's."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from robust201.core.errors import ResultsError
from robust201.core.files import sha256_of
from robust201.core.records import IMPORTED, Protocol
from robust201.dataset.card import CARD_FILE
from robust201.dataset.listing import explain_changes
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import META_FILE, SWEEP_FILE, row_of


@dataclass(frozen=True)
class Origin:
    """What is told of the results of a key on a dataset.

    Attributes:
        n_images: number of images; that of the whole test split where nothing is told.
        images: their hash, and how they were selected, as in a protocol; None where that is not told.
        computed_under: payload of the one protocol that computed all of them; None where there were several or that is
            not told.
        decimals: fewest decimals that imported ones among them have, by measurement; their other rows may have more.
    """

    n_images: int
    images: Mapping[str, Any] | None
    computed_under: Mapping[str, Any] | None
    decimals: Mapping[str, int]

    def to_payload(self) -> dict[str, Any]:
        """What is known of images and protocol, as the payload of an imported protocol keeps it."""
        known = {"images": self.images, "computed_under": self.computed_under}
        return {name: dict(value) for name, value in known.items() if value is not None}


def read_origin(source: Path, sweep: Mapping[str, Any] | None, dataset: str, key: str) -> Origin:
    """Find out what a dataset tells of the results of a key.

    Args:
        source: the dataset's folder.
        sweep: content of its `sweep.json`; None where it has none.
        dataset: name of the dataset.
        key: in the paper's style.

    Raises:
        ResultsError: `sweep.json` is not of the form that an export writes.
    """
    try:
        return _find_origin(sweep, dataset, key)
    except (AttributeError, TypeError, ValueError) as error:
        raise ResultsError(
            f"Importing failed for {source / SWEEP_FILE}: expected protocols as an export writes them, got something "
            f"else ({error}). Export or download it again, or remove it."
        ) from error


def _find_origin(sweep: Mapping[str, Any] | None, dataset: str, key: str) -> Origin:
    told = {} if sweep is None else sweep.get("sweep", {})
    protocols = [p for p in told.get("protocols", ()) if (p.get("dataset"), p.get("key")) == (dataset, key)]
    if isinstance(counts := (sweep or {}).get("evaluations"), dict):
        protocols = [protocol for protocol in protocols if counts.get(Protocol.of(protocol).digest, 0)]
    n_images = next((p["n_images"] for p in protocols if p.get("protocol") == IMPORTED and p.get("n_images")), None)
    computed = [p.get("computed_under") if p.get("protocol") == IMPORTED else p for p in protocols]
    return Origin(
        int(n_images or told.get("images", {}).get("count") or DATASETS[dataset].n_test),
        _only([protocol.get("images") for protocol in protocols]),
        _only(computed),
        _fewest([protocol.get("decimals", {}) for protocol in protocols]),
    )


def _fewest(decimals: list[Mapping[str, int | None]]) -> Mapping[str, int]:
    fewest: dict[str, int] = {}
    for measurement, count in ((name, count) for of_protocol in decimals for name, count in of_protocol.items()):
        if count is not None:
            fewest[measurement] = min(count, fewest.get(measurement, count))
    return fewest


def _only(values: list[Any]) -> Mapping[str, Any] | None:
    """The one value that all have; None where they differ, or one or all of them have none."""
    first = values[0] if values else None
    return first if isinstance(first, dict) and all(value == first for value in values) else None


def find_json(dataset: RobustnessDataset, name: str, key: str, measure: str) -> Path | None:
    """Find the JSON file of a measurement of a key; None where there is none, or Parquet alone."""
    return dataset.files.find_json(name, key, measure)


def explain_gaps(
    dataset: RobustnessDataset, digests: Mapping[Path, str], places: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Say what of a dataset's files was changed or is gone since the export, as far as the folder tells.

    Args:
        dataset: what is imported.
        digests: SHA-256 of each file of results that was read.
        places: datasets and keys, in the paper's style, that were read.

    Yields:
        Lines for people.
    """
    told = [path for name in (META_FILE, SWEEP_FILE) if (path := dataset.path / name).is_file()]
    read = {**digests, **{path: sha256_of(path) for path in told}}
    yield from explain_changes(dataset.path, {path.relative_to(dataset.path).as_posix(): read[path] for path in read})
    planned = {} if dataset.sweep is None else dataset.sweep["strengths"]
    absent = [
        f"{name} {spelling}"
        for name, by_key in planned.items()
        for spelling in by_key
        if (name, row.key if (row := row_of(spelling)) else spelling) not in places
        and spelling not in dataset.missing.get(name, {})
    ]
    if absent:
        yield f"{dataset.path / SWEEP_FILE} lists {', '.join(absent)}, of which there is no JSON file"


def read_licence(source: Path) -> str | None:
    """Licence that the card of an export names; None where there is no such card."""
    card = source / CARD_FILE
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    parts = text.split("---\n", 2)
    if len(parts) < 3 or parts[0]:
        return None
    try:
        front = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return None
    named = front.get("license") if isinstance(front, dict) else None
    return named if isinstance(named, str) else None
