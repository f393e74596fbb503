"""What a dataset's folder tells of its results: licence, number of images, protocol, and what was changed since."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from robust201.core.errors import ResultsError
from robust201.core.records import IMPORTED
from robust201.dataset.card import CARD_FILE
from robust201.dataset.listing import explain_changes
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import SWEEP_FILE, row_of


@dataclass(frozen=True)
class Origin:
    """What an export tells of the results of a key on a dataset.

    The number of images is that of the whole test split where nothing is told. Decimals are the fewest of imported
    rows; others may have more, as earlier versions put both into one file. `computed_under` is the payload of the one
    protocol that computed all of them; None where there were several or that is not told.
    """

    n_images: int
    decimals: Mapping[str, int]
    computed_under: Mapping[str, Any] | None


def read_origin(source: Path, sweep: Mapping[str, Any] | None, dataset: str, key: str) -> Origin:
    """Find out what a dataset's `sweep.json` (None: it has none) tells of the results of a key, in the paper's style.

    Raises:
        ResultsError: `sweep.json` is not of the form that an export writes.
    """
    try:
        told = (sweep or {}).get("sweep", {})
        protocols = [p for p in told.get("protocols", ()) if (p.get("dataset"), p.get("key")) == (dataset, key)]
        counts = [protocol["n_images"] for protocol in protocols if "n_images" in protocol]
        n_test = DATASETS[dataset].n_test if dataset in DATASETS else 0  # a dataset of the user's own
        n_images = int(next(iter(counts), None) or told.get("images", {}).get("count") or n_test)
        decimals: dict[str, int] = {}
        for protocol in protocols:
            known = {name: count for name, count in protocol.get("decimals", {}).items() if count is not None}
            decimals |= {name: min(count, decimals.get(name, count)) for name, count in known.items()}
        only = protocols[0] if len(protocols) == 1 else None
        if only is not None and only.get("protocol") == IMPORTED:
            only = only.get("computed_under")
        return Origin(n_images, decimals, only if isinstance(only, dict) else None)
    except (AttributeError, TypeError, ValueError) as error:
        raise ResultsError(
            f"Importing failed for {source / SWEEP_FILE}: expected protocols as an export writes them, got something "
            f"else ({error}). Export or download it again, or remove it."
        ) from error


def explain_gaps(
    dataset: RobustnessDataset, digests: Mapping[Path, str], places: Collection[tuple[str, str]]
) -> Iterator[str]:
    """Say what of a dataset's files was changed or is gone since the export, as far as the folder tells.

    Files of results that were read are given with their SHA-256, datasets and keys in the paper's style.
    """
    yield from explain_changes(dataset.path, digests)
    planned = {} if dataset.sweep is None else dataset.sweep["strengths"]
    absent = [
        f"{name} {spelling}"
        for name, by_key in planned.items()
        for spelling in by_key
        if (name, row.key if (row := row_of(spelling)) else spelling) not in places
        and spelling not in dataset.missing.get(name, {})
    ]
    own = [name for name in absent if row_of(name.partition(" ")[2]) is None]
    if own:
        yield f"{', '.join(own)} of {dataset.path}: a task in no table of this version, which is not imported"
    absent = [name for name in absent if name not in own]
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
