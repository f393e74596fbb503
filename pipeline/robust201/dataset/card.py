"""The dataset card of an export, README.md, for the Hugging Face Hub.

Its YAML front matter has one configuration per dataset. The card contains neither a date nor an absolute path, so that
equal results give equal bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from robust201 import __version__
from robust201.core.citation import PAPER_BIBTEX
from robust201.dataset.groups import Group, ProtocolCount
from robust201.dataset.layout import PARQUET_FOLDER, images_name, parquet_name
from robust201.dataset.listing import CHECKSUM_FILE
from robust201.dataset.published_layout import ParquetColumn, SpaceLayout
from robust201.dataset.written_file import WrittenFile
from robust201.images import DATASETS
from robust201.tasks.columns import CORRECT_BITS
from robust201.tasks.constraints import LINF

CARD_FILE = "README.md"

LICENCE = "mit"
"""Licence of the dataset, as an SPDX identifier."""

_EXAMPLE = """  ```python
  pandas.read_parquet("parquet", columns=["architecture", "key", "strength", "accuracy"])
  duckdb.sql("select key, avg(accuracy) from 'parquet/**/*.parquet' group by key")
  datasets.load_dataset("parquet", data_dir="parquet", split="train")
  ```"""


@dataclass(frozen=True)
class CardFacts:
    """Facts about an export from which its card is written.

    Attributes:
        name: name of the sweep.
        layout: layout of the search space.
        groups: the exported units of each key on each dataset.
        measurements: names of the measurements.
        protocols: the protocols, with their numbers of evaluations.
        files: all files that were written before the card.
        columns: columns of the Parquet files of all keys that are not measures; empty if there are no such files.
        measures: columns of each measure's Parquet files, by key in the export's spelling.
        unevaluated_keys: keys of the sweep that were not evaluated on a dataset, by dataset.
    """

    name: str
    layout: SpaceLayout
    groups: Sequence[Group]
    measurements: Sequence[str]
    protocols: Sequence[ProtocolCount]
    files: Sequence[WrittenFile]
    columns: Mapping[str, ParquetColumn]
    measures: Mapping[str, Mapping[str, ParquetColumn]]
    unevaluated_keys: Mapping[str, Sequence[str]]

    @property
    def title(self) -> str:
        return f"{self.layout.title}: {self.name}"

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.dataset for group in self.groups))

    @property
    def parquet_files(self) -> dict[str, tuple[str, str]]:
        """Dataset and key of each Parquet file by file name, in the spelling of the file's folders."""
        paths = (file.name.split("/") for file in self.files if file.name.startswith(f"{PARQUET_FOLDER}/"))
        return {"/".join(path): (path[1].removeprefix("dataset="), path[2].removeprefix("key=")) for path in paths}

    @property
    def has_parquet(self) -> bool:
        return bool(self.columns or self.measures)

    @property
    def description(self) -> str:
        n_architectures = len({unit.architecture for group in self.groups for unit in group.complete_units})
        networks = f"{n_architectures:,} {self.layout.architectures_noun} on {', '.join(self.datasets)}"
        measurements_by_key = {group.key: ", ".join(group.measurements) for group in self.groups if group.is_measure}
        measures_text = "; ".join(f"{key} ({names})" for key, names in measurements_by_key.items())
        image_groups = [group for group in self.groups if not group.is_measure]
        if measurements_by_key and not image_groups:
            return f"Measures of {networks}: {measures_text}."
        n_evaluations = sum(group.n_evaluations for group in image_groups)
        sentence = (
            f"Robustness of {networks}: {', '.join(self.measurements)} of {n_evaluations:,} evaluations, clean, under "
            "attacks and under common corruptions."
        )
        return f"{sentence} And measures of the networks: {measures_text}." if measurements_by_key else sentence


def card_text(facts: CardFacts) -> str:
    """Return the content of README.md."""
    sections = [
        _front_matter_section(facts),
        f"# {facts.title}\n",
        f"{facts.description} Written by robust201 {__version__}.\n",
        _contents_section(facts),
        _protocol_section(facts),
        _layout_section(facts),
        _columns_section(facts),
        _licence_section(facts),
        f"## Citation\n\nThe dataset follows the design of:\n\n```bibtex\n{PAPER_BIBTEX}\n```\n",
        _checksums_section(facts),
    ]
    return "\n".join(section for section in sections if section)


def _front_matter_section(facts: CardFacts) -> str:
    n_evaluations = sum(group.n_evaluations for group in facts.groups)
    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    fields: dict[str, Any] = {
        "pretty_name": facts.title,
        "license": LICENCE,
        "tags": list(facts.layout.tags),
        "size_categories": [next((name for limit, name in bounds if n_evaluations < limit), "1M<n<10M")],
    }
    if facts.has_parquet:
        fields["configs"] = _make_configurations(facts)
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n"


def _make_configurations(facts: CardFacts) -> list[dict[str, Any]]:
    """Return one configuration per dataset and one per measure.

    Measures need their own configurations, because all files of a configuration must have the same columns.
    """
    if not facts.measures:
        return [
            {"config_name": dataset, "data_files": f"{PARQUET_FOLDER}/dataset={dataset}/**/*.parquet"}
            for dataset in facts.datasets
        ]
    configurations = []
    for dataset in facts.datasets:
        files_by_key = {
            key: file_name for file_name, (file_dataset, key) in facts.parquet_files.items() if file_dataset == dataset
        }
        image_key_files = [file_name for key, file_name in files_by_key.items() if key not in facts.measures]
        measure_files = {key: file_name for key, file_name in files_by_key.items() if key in facts.measures}
        if image_key_files:
            configurations.append({"config_name": dataset, "data_files": image_key_files})
        configurations += [
            {"config_name": f"{dataset}-{key}", "data_files": file_name} for key, file_name in measure_files.items()
        ]
    return configurations


def _contents_section(facts: CardFacts) -> str:
    lines = ["## What it holds", "", "| dataset | key | kind | strengths | architectures |", "|---|---|---|---|---|"]
    for group in facts.groups:
        strengths = ", ".join(f"{strength:g}" for strength in group.strengths)
        n_architectures = len({unit.architecture for unit in group.complete_units})
        lines.append(f"| {group.dataset} | `{group.key}` | {group.task.kind} | {strengths} | {n_architectures:,} |")
    notes = "Strengths of attacks are Linf radii in units of 1/255 of the pixel range, those of corruptions severities."
    constraints = {group.key: group.task.constraint for group in facts.groups if group.task.kind == "attack"}
    for key, constraint in constraints.items():
        if constraint is None:
            notes += f" Strengths of `{key}` are arguments of the attack's function."
        elif constraint != LINF:
            notes += f" Strengths of `{key}` are {constraint.name} radii around images of pixels in [0, 1]."
    if any(group.is_measure for group in facts.groups):
        notes += " Measures have no strength; their column `strength` contains 0."
    for dataset, keys in facts.unevaluated_keys.items():
        notes += f" Not evaluated on {dataset}: {', '.join(f'`{key}`' for key in keys)}."
    return "\n".join([*lines, "", notes, ""])


def _protocol_section(facts: CardFacts) -> str:
    engines = sorted({str(protocol.payload.get("engine", "unknown")) for protocol in facts.protocols})
    precisions = sorted({str(protocol.payload.get("precision", "unknown")) for protocol in facts.protocols})
    return (
        "## Protocol\n\n"
        f"Engine {', '.join(engines) or 'unknown'}, precision {', '.join(precisions) or 'unknown'}. `sweep.json` holds "
        "everything that decided a number (attack parameters, image selection, hashes, seed), `sweep.yaml` the sweep "
        "to run again, `weights.json` the SHA-256 of each network's file of weights, `versions.json` the software that "
        "computed and wrote it.\n"
    )


def _layout_section(facts: CardFacts) -> str:
    parquet_files = facts.parquet_files
    json_sizes = [file.n_bytes for file in facts.files if "/" in file.name and not file.name.endswith(".parquet")]
    items = ["## Files\n"]
    if json_sizes:
        items.append(
            f"- `<dataset>/<key>_<measurement>.json`, {len(json_sizes)} files, {sum(json_sizes) / 1e6:,.1f} MB: "
            "`{dataset: {key: {measurement: {id: value}}}}`, a value for `clean`"
            f"{' and measures' if any(group.is_measure for group in facts.groups) else ''}, else a list by strength. "
            f"{facts.layout.meta_sentence}"
        )
    if facts.has_parquet:
        megabytes = sum(file.n_bytes for file in facts.files if file.name in parquet_files) / 1e6
        items.append(
            f"- `{parquet_name('<dataset>', '<key>')}`, {len(parquet_files)} files, {megabytes:,.1f} MB: one row per "
            f"evaluation, read by pandas, Polars, DuckDB, Spark and Hugging Face `datasets`:\n\n{_EXAMPLE}"
        )
    if CORRECT_BITS in facts.columns:
        items.append(
            f"- `{images_name('<dataset>')}`: the evaluated images, in the order of the bits of `{CORRECT_BITS}`, with "
            "their rows in the test split, labels and SHA-256 of the pixels"
        )
    return "\n".join([*items, ""])


def _columns_section(facts: CardFacts) -> str:
    if not facts.has_parquet:
        return ""
    lines = ["## Columns"]
    if facts.columns:
        lines += _column_table(facts.columns)
    for key, columns in facts.measures.items():
        lines += ["", f"Files of `{key}`:", *_column_table(columns)]
    return "\n".join([*lines, ""])


def _column_table(columns: Mapping[str, ParquetColumn]) -> list[str]:
    lines = ["", "| column | type | meaning |", "|---|---|---|"]
    return lines + [f"| `{name}` | `{column.type_name}` | {column.meaning} |" for name, column in columns.items()]


def _licence_section(facts: CardFacts) -> str:
    custom = ", ".join(f"`{name}`" for name in facts.datasets if name not in DATASETS)
    custom_note = f" The licence of the images of {custom} is not known." if custom else ""
    text = f"`{LICENCE}`. The images that the networks classified are no part of the dataset.{custom_note}"
    return f"## Licence\n\n{text}\n"


def _checksums_section(facts: CardFacts) -> str:
    lines = ["## Checksums", "", f"`sha256sum -c {CHECKSUM_FILE}` checks every file.", ""]
    lines += ["| file | bytes | SHA-256 |", "|---|---|---|"]
    lines += [f"| `{file.name}` | {file.n_bytes} | `{file.sha256}` |" for file in facts.files]
    return "\n".join([*lines, ""])
