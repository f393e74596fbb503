"""Which files of results an export has, and the work of writing each."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from robust201.dataset.groups import Group, KeyStyle, SweepPlan, names_of_weights
from robust201.dataset.json_files import JsonFile
from robust201.dataset.parquet_columns import describe_strength
from robust201.dataset.parquet_files import ParquetFile
from robust201.dataset.written_file import Compression, WrittenFile
from robust201.images import DATASETS
from robust201.reader.result_files import PARQUET_FOLDER, parquet_name
from robust201.shards import Inventory, RowSelection, ShardStore
from robust201.tasks.columns import COLUMNS

Format = Literal["json", "parquet"]


@dataclass(frozen=True, kw_only=True)
class FileForm:
    """How files of results are written (see `dataset.export.export_dataset`); row groups kept decoded are bounded."""

    key_style: KeyStyle
    round_to: int | None
    compression: Compression | None
    cache_bytes: int

    def file_name(self, group: Group, measurement: str) -> str:
        """Name of a file of `list_files`, relative to the export's folder."""
        key = group.spell(self.key_style)
        if measurement == PARQUET_FOLDER:
            return parquet_name(group.dataset, key)
        suffix = "" if self.compression is None else f".{self.compression}"
        return f"{group.dataset}/{key}_{measurement}.json{suffix}"


def list_files(groups: Iterable[Group], formats: Collection[Format]) -> list[tuple[Group, str]]:
    """List the files of an export: each a group and a measurement, or `PARQUET_FOLDER` for its Parquet file."""
    as_parquet = [PARQUET_FOLDER] if "parquet" in formats else []
    listed = [
        (group, content)
        for group in groups
        for content in (*(group.measurements if "json" in formats else ()), *as_parquet)
    ]
    return sorted(listed, key=_size, reverse=True)


def _size(file: tuple[Group, str]) -> int:
    """Numbers in a file, about: the largest come first, so that no process is left with one at the end."""
    group, measurement = file
    if group.is_measure:
        return len(group.complete_units) * len(group.strengths)
    specification = DATASETS.get(group.dataset)
    n_classes = 10 if specification is None else specification.n_classes
    held = [c for c in COLUMNS.values() if measurement in (c.measurement, PARQUET_FOLDER)]
    shapes = [column.shape(n_classes, group.units[0].n_images) for column in held]
    numbers = sum(shape[0] * shape[-1] if shape else 1 for shape in shapes)
    return numbers * len(group.complete_units) * len(group.strengths)


def make_files(
    listed: Iterable[tuple[Group, str]],
    form: FileForm,
    folder: Path,
    plan: SweepPlan,
    store: ShardStore,
    inventory: Inventory,
    earlier: Callable[[str], WrittenFile | None] = lambda _name: None,
) -> Iterator[JsonFile | ParquetFile]:
    """Make the files of `list_files`, ready to be written; `earlier` tells what an interrupted export noted of one."""
    selections: dict[tuple[str, str], RowSelection] = {}
    listed = list(listed)
    names = names_of_weights(unit for group, _ in listed for unit in group.units)
    weights = {name: plan.weights[name] for name in names} if len(names) > 1 else {}
    for group, measurement in listed:
        held = group.dataset, group.key
        if held not in selections:
            selections[held] = store.select(
                group.complete_units, inventory, group.measurements, cache_bytes=form.cache_bytes
            )
        name = form.file_name(group, measurement)
        shared: dict[str, Any] = {
            "folder": folder,
            "name": name,
            "dataset": group.dataset,
            "key": group.spell(form.key_style),
            "units": group.complete_units,
            "rows": selections[held],
            "earlier": earlier(name),
        }
        if measurement == PARQUET_FOLDER:
            yield ParquetFile(
                **shared,
                measurements=group.measurements,
                space=plan.space_name,
                strength=describe_strength(group.task),
                is_measure=group.is_measure,
                n_classes=plan.n_classes(group.dataset),
                weights=weights,
            )
        else:
            yield JsonFile(**shared, compression=form.compression, measurement=measurement, round_to=form.round_to)
