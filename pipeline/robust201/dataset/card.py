"""The dataset card of an export, README.md, for the Hugging Face Hub.

If there are Parquet files, its YAML front matter has one configuration per dataset, and one per dataset and measure,
because all files of a configuration must have the same columns. The card contains neither a date nor an absolute path,
so that equal results give equal bytes.
"""

from collections.abc import Iterable
from typing import Any

import yaml

from robust201 import __version__
from robust201.core.citation import PAPER_BIBTEX
from robust201.dataset.groups import Export, Group
from robust201.dataset.layout import PARQUET_FOLDER, images_name, parquet_name
from robust201.dataset.listing import CHECKSUM_FILE
from robust201.dataset.published_layout import describe_strength, layout_of
from robust201.images import DATASETS
from robust201.tasks.columns import CORRECT_BITS

CARD_FILE = "README.md"

LICENCE = "mit"
"""Licence of the dataset, as an SPDX identifier."""

_EXAMPLE = """  ```python
  pandas.read_parquet("parquet", columns=["architecture", "key", "strength", "accuracy"])
  duckdb.sql("select key, avg(accuracy) from 'parquet/**/*.parquet' group by key")
  datasets.load_dataset("parquet", data_dir="parquet", split="train")
  ```"""


def card_text(export: Export) -> str:
    """Return the content of README.md."""
    title = f"{layout_of(export.facts.space).title}: {export.facts.record['name']}"
    sections = [
        _front_matter_section(export, title),
        f"# {title}\n",
        f"{_describe_results(export)} Written by robust201 {__version__}.\n",
        _contents_section(export),
        _layout_section(export),
        _licence_section(export),
        f"## Citation\n\nThe dataset follows the design of:\n\n```bibtex\n{PAPER_BIBTEX}\n```\n",
    ]
    return "\n".join(sections)


def _exported_datasets(export: Export) -> list[str]:
    return list(dict.fromkeys(group.dataset for group in export.exported_groups))


def _count_architectures(groups: Iterable[Group]) -> int:
    return len({unit.architecture for group in groups for unit in group.complete_units})


def _describe_results(export: Export) -> str:
    noun, datasets = layout_of(export.facts.space).architectures_noun, ", ".join(_exported_datasets(export))
    n_evaluations = sum(group.n_evaluations for group in export.exported_groups if not group.is_measure)
    results = [f"{', '.join(export.measurements)} of {n_evaluations:,} evaluations"] if n_evaluations else []
    measures = {group.key: ", ".join(group.measurements) for group in export.exported_groups if group.is_measure}
    results += [f"the measure {key} ({names})" for key, names in measures.items()]
    return f"Results of {_count_architectures(export.exported_groups):,} {noun} on {datasets}: {'; '.join(results)}."


def _front_matter_section(export: Export, title: str) -> str:
    n_evaluations = sum(group.n_evaluations for group in export.exported_groups)
    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    fields: dict[str, Any] = {
        "pretty_name": title,
        "license": LICENCE,
        "tags": list(layout_of(export.facts.space).tags),
        "size_categories": [next((name for limit, name in bounds if n_evaluations < limit), "1M<n<10M")],
    }
    if "parquet" in export.formats:
        files: dict[str, Any] = {}
        for group in export.exported_groups:
            key = export.spell_key(group)
            name = f"{group.dataset}-{key}" if group.is_measure else group.dataset
            files.setdefault(name, []).append(parquet_name(group.dataset, key))
        if not any(group.is_measure for group in export.exported_groups):
            files = {dataset: f"{PARQUET_FOLDER}/dataset={dataset}/**/*.parquet" for dataset in files}
        fields["configs"] = [{"config_name": name, "data_files": paths} for name, paths in files.items()]
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---\n"


def _contents_section(export: Export) -> str:
    lines = ["## What it holds", "", "| dataset | key | kind | strengths | architectures |", "|---|---|---|---|---|"]
    for group in export.exported_groups:
        strengths = ", ".join(f"{strength:g}" for strength in group.strengths)
        n_architectures = _count_architectures([group])
        lines.append(f"| {group.dataset} | `{group.key}` | {group.task.kind} | {strengths} | {n_architectures:,} |")
    keys: dict[str, list[str]] = {}
    for group in export.exported_groups:
        names = keys.setdefault(describe_strength(group.task), [])
        names += [] if group.key in names else [group.key]
    lines += [
        "",
        "The strengths are:",
        "",
        *(f"- {', '.join(f'`{key}`' for key in names)}: {text}" for text, names in keys.items()),
    ]
    evaluated = {(group.dataset, group.key) for group in export.groups}
    for dataset in dict.fromkeys(group.dataset for group in export.groups):
        if missing := [key for key in export.facts.tasks if (dataset, key) not in evaluated]:
            lines += ["", f"Not evaluated on {dataset}: {', '.join(f'`{key}`' for key in missing)}."]
    return "\n".join([*lines, ""])


def _layout_section(export: Export) -> str:
    items = ["## Files\n"]
    if "json" in export.formats:
        items.append(
            "- `<dataset>/<key>_<measurement>.json`: `{dataset: {key: {measurement: {id: value}}}}`, a value for "
            f"`clean`{' and measures' if any(group.is_measure for group in export.exported_groups) else ''}, else a "
            f"list by strength. {layout_of(export.facts.space).meta_sentence}"
        )
    if "parquet" in export.formats:
        items.append(
            f"- `{parquet_name('<dataset>', '<key>')}`: one row per evaluation, read by pandas, Polars, DuckDB, Spark "
            f"and Hugging Face `datasets`; the metadata of its schema describe each column:\n\n{_EXAMPLE}"
        )
    if export.outcomes is not None:
        items.append(
            f"- `{images_name('<dataset>')}`: the evaluated images, in the order of the bits of `{CORRECT_BITS}`, with "
            "their rows in the test split, labels and SHA-256 of the pixels"
        )
    items.append(
        "- `sweep.json` holds everything that decided a number (attack parameters, image selection, hashes, seed), "
        "`sweep.yaml` the sweep to run again, `weights.json` the SHA-256 of each network's file of weights, "
        "`versions.json` the software that computed and wrote it."
    )
    items.append(f"- `{CHECKSUM_FILE}`: the SHA-256 of every file, for `sha256sum -c {CHECKSUM_FILE}`")
    return "\n".join([*items, ""])


def _licence_section(export: Export) -> str:
    custom = ", ".join(f"`{name}`" for name in _exported_datasets(export) if name not in DATASETS)
    custom_note = f" The licence of the images of {custom} is not known." if custom else ""
    text = f"`{LICENCE}`. The images that the networks classified are no part of the dataset.{custom_note}"
    return f"## Licence\n\n{text}\n"
