"""The dataset card of an export, README.md, for the Hugging Face Hub.

Its YAML front matter has one configuration per dataset. The card contains neither a date nor an absolute path, so that
equal results give equal bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml

from robust201 import __version__
from robust201.core.citation import PAPER_BIBTEX
from robust201.dataset.groups import Export, Group
from robust201.dataset.key_files import KeyReport
from robust201.dataset.layout import PARQUET_FOLDER, images_name, parquet_name
from robust201.dataset.listing import CHECKSUM_FILE
from robust201.dataset.published_layout import ParquetColumn, SpaceLayout, describe_strength, layout_of, parquet_columns
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
class _Card:
    """An export, and what its card says about it.

    Attributes:
        export: the export.
        layout: layout of the search space.
        files: all files that were written before the card.
        measures: columns of each measure's Parquet files, by key in the export's spelling.
    """

    export: Export
    layout: SpaceLayout
    files: Sequence[WrittenFile]
    measures: Mapping[str, Mapping[str, ParquetColumn]]

    @property
    def groups(self) -> Sequence[Group]:
        return self.export.exported

    @property
    def title(self) -> str:
        return f"{self.layout.title}: {self.export.facts.record['name']}"

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.dataset for group in self.groups))

    @cached_property
    def columns(self) -> dict[str, ParquetColumn]:
        """Columns of the Parquet files of all keys but measures; empty if there are no such files."""
        export, groups = self.export, self.export.groups
        strengths = dict.fromkeys(describe_strength(group.task) for group in groups if not group.is_measure)
        if not strengths or "parquet" not in export.formats:
            return {}
        return parquet_columns(
            export.measurements,
            self.layout.columns,
            " ".join(strengths),
            weights=export.weights.values(),
            has_outcomes=export.outcomes is not None,
            n_classes=max(export.facts.n_classes.get(group.dataset, 0) for group in groups),
        )

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
            f"Robustness of {networks}: {', '.join(self.export.measurements)} of {n_evaluations:,} evaluations, clean, "
            "under attacks and under common corruptions."
        )
        return f"{sentence} And measures of the networks: {measures_text}." if measurements_by_key else sentence


def card_text(export: Export, reports: Iterable[KeyReport], files: Sequence[WrittenFile]) -> str:
    """Return the content of README.md, after all other files were written."""
    measures = {report.form.key: report.columns for report in reports if report.form.is_measure and report.columns}
    card = _Card(export, layout_of(export.facts.space), files, dict(sorted(measures.items())))
    sections = [
        _front_matter_section(card),
        f"# {card.title}\n",
        f"{card.description} Written by robust201 {__version__}.\n",
        _contents_section(card),
        _protocol_section(card),
        _layout_section(card),
        _columns_section(card),
        _licence_section(card),
        f"## Citation\n\nThe dataset follows the design of:\n\n```bibtex\n{PAPER_BIBTEX}\n```\n",
        _checksums_section(card),
    ]
    return "\n".join(section for section in sections if section)


def _front_matter_section(card: _Card) -> str:
    n_evaluations = sum(group.n_evaluations for group in card.groups)
    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    fields: dict[str, Any] = {
        "pretty_name": card.title,
        "license": LICENCE,
        "tags": list(card.layout.tags),
        "size_categories": [next((name for limit, name in bounds if n_evaluations < limit), "1M<n<10M")],
    }
    if card.has_parquet:
        fields["configs"] = _make_configurations(card)
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n"


def _make_configurations(card: _Card) -> list[dict[str, Any]]:
    """Return one configuration per dataset and one per measure.

    Measures need their own configurations, because all files of a configuration must have the same columns.
    """
    if not card.measures:
        return [
            {"config_name": dataset, "data_files": f"{PARQUET_FOLDER}/dataset={dataset}/**/*.parquet"}
            for dataset in card.datasets
        ]
    configurations = []
    for dataset in card.datasets:
        files_by_key = {
            key: file_name for file_name, (file_dataset, key) in card.parquet_files.items() if file_dataset == dataset
        }
        image_key_files = [file_name for key, file_name in files_by_key.items() if key not in card.measures]
        measure_files = {key: file_name for key, file_name in files_by_key.items() if key in card.measures}
        if image_key_files:
            configurations.append({"config_name": dataset, "data_files": image_key_files})
        configurations += [
            {"config_name": f"{dataset}-{key}", "data_files": file_name} for key, file_name in measure_files.items()
        ]
    return configurations


def _contents_section(card: _Card) -> str:
    lines = ["## What it holds", "", "| dataset | key | kind | strengths | architectures |", "|---|---|---|---|---|"]
    for group in card.groups:
        strengths = ", ".join(f"{strength:g}" for strength in group.strengths)
        n_architectures = len({unit.architecture for unit in group.complete_units})
        lines.append(f"| {group.dataset} | `{group.key}` | {group.task.kind} | {strengths} | {n_architectures:,} |")
    notes = "Strengths of attacks are Linf radii in units of 1/255 of the pixel range, those of corruptions severities."
    constraints = {group.key: group.task.constraint for group in card.groups if group.task.kind == "attack"}
    for key, constraint in constraints.items():
        if constraint is None:
            notes += f" Strengths of `{key}` are arguments of the attack's function."
        elif constraint != LINF:
            notes += f" Strengths of `{key}` are {constraint.name} radii around images of pixels in [0, 1]."
    if any(group.is_measure for group in card.groups):
        notes += " Measures have no strength; their column `strength` contains 0."
    evaluated = {(group.dataset, group.key) for group in card.export.groups}
    for dataset in dict.fromkeys(group.dataset for group in card.export.groups):
        if keys := [key for key in card.export.facts.tasks if (dataset, key) not in evaluated]:
            notes += f" Not evaluated on {dataset}: {', '.join(f'`{key}`' for key in keys)}."
    return "\n".join([*lines, "", notes, ""])


def _protocol_section(card: _Card) -> str:
    protocols = card.export.facts.record["protocols"]
    engines, precisions = (
        sorted({str(protocol.get(name, "unknown")) for protocol in protocols}) for name in ("engine", "precision")
    )
    return (
        "## Protocol\n\n"
        f"Engine {', '.join(engines) or 'unknown'}, precision {', '.join(precisions) or 'unknown'}. `sweep.json` holds "
        "everything that decided a number (attack parameters, image selection, hashes, seed), `sweep.yaml` the sweep "
        "to run again, `weights.json` the SHA-256 of each network's file of weights, `versions.json` the software that "
        "computed and wrote it.\n"
    )


def _layout_section(card: _Card) -> str:
    parquet_files = card.parquet_files
    json_sizes = [file.n_bytes for file in card.files if "/" in file.name and not file.name.endswith(".parquet")]
    items = ["## Files\n"]
    if json_sizes:
        items.append(
            f"- `<dataset>/<key>_<measurement>.json`, {len(json_sizes)} files, {sum(json_sizes) / 1e6:,.1f} MB: "
            "`{dataset: {key: {measurement: {id: value}}}}`, a value for `clean`"
            f"{' and measures' if any(group.is_measure for group in card.groups) else ''}, else a list by strength. "
            f"{card.layout.meta_sentence}"
        )
    if card.has_parquet:
        megabytes = sum(file.n_bytes for file in card.files if file.name in parquet_files) / 1e6
        items.append(
            f"- `{parquet_name('<dataset>', '<key>')}`, {len(parquet_files)} files, {megabytes:,.1f} MB: one row per "
            f"evaluation, read by pandas, Polars, DuckDB, Spark and Hugging Face `datasets`:\n\n{_EXAMPLE}"
        )
    if CORRECT_BITS in card.columns:
        items.append(
            f"- `{images_name('<dataset>')}`: the evaluated images, in the order of the bits of `{CORRECT_BITS}`, with "
            "their rows in the test split, labels and SHA-256 of the pixels"
        )
    return "\n".join([*items, ""])


def _columns_section(card: _Card) -> str:
    if not card.has_parquet:
        return ""
    lines = ["## Columns"]
    if card.columns:
        lines += _column_table(card.columns)
    for key, columns in card.measures.items():
        lines += ["", f"Files of `{key}`:", *_column_table(columns)]
    return "\n".join([*lines, ""])


def _column_table(columns: Mapping[str, ParquetColumn]) -> list[str]:
    lines = ["", "| column | type | meaning |", "|---|---|---|"]
    return lines + [f"| `{name}` | `{column.type_name}` | {column.meaning} |" for name, column in columns.items()]


def _licence_section(card: _Card) -> str:
    custom = ", ".join(f"`{name}`" for name in card.datasets if name not in DATASETS)
    custom_note = f" The licence of the images of {custom} is not known." if custom else ""
    text = f"`{LICENCE}`. The images that the networks classified are no part of the dataset.{custom_note}"
    return f"## Licence\n\n{text}\n"


def _checksums_section(card: _Card) -> str:
    lines = ["## Checksums", "", f"`sha256sum -c {CHECKSUM_FILE}` checks every file.", ""]
    lines += ["| file | bytes | SHA-256 |", "|---|---|---|"]
    lines += [f"| `{file.name}` | {file.n_bytes} | `{file.sha256}` |" for file in card.files]
    return "\n".join([*lines, ""])
