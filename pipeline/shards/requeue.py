"""What verification found wrong, out of the way: the next run computes it again, and nothing else."""

from collections import defaultdict
from collections.abc import Collection

import numpy as np

from pipeline.shards.compaction import read_row_groups
from pipeline.shards.folder import ResultsFolder, is_compacted
from pipeline.shards.identity import UnitFacts
from pipeline.shards.inventory import Inventory
from pipeline.shards.parquet import Footer, read_footer, read_rows, write_tables
from pipeline.shards.reading import RowReader
from pipeline.shards.verification import Finding

ROW_GROUP_BYTES = 16 << 20


def requeue(folder: ResultsFolder, inventory: Inventory, findings: Collection[Finding]) -> tuple[str, ...]:
    """Move what is wrong into ``damaged/``, so that it counts as missing.

    A shard of one unit moves whole. A compacted shard that is intact but for some rows is written again without them
    first; the new one lists the old one and what that replaced, so nothing wrong comes back.

    Args:
        folder: the results folder.
        inventory: what the findings are about.
        findings: what is wrong.

    Returns:
        Names of the shards that were moved, sorted.
    """
    rows_of: defaultdict[str, set[int | None]] = defaultdict(set)
    for finding in findings:
        for shard, position in finding.places:
            rows_of[shard].add(position)
    moved: list[str] = []
    for shard, positions in sorted(rows_of.items()):
        if not folder.path(shard).exists():
            continue
        wrong = {position for position in positions if position is not None}
        if is_compacted(shard) and len(wrong) == len(positions):
            moved += _write_without(folder, inventory, shard, wrong)
        folder.set_aside(shard)
        moved.append(shard)
    return tuple(sorted(moved))


def _write_without(folder: ResultsFolder, inventory: Inventory, shard: str, positions: Collection[int]) -> list[str]:
    """Write a compacted shard again without some rows; move replaced shards that still hold these rows."""
    rows = inventory.rows_of_shard(inventory.shards.index(shard))
    left_out = np.isin(inventory.row_column("position")[rows], list(positions))
    wrong = {inventory.units[number].id for number in inventory.row_column("unit")[rows[left_out]].tolist()}
    rows = rows[~left_out]
    if not len(rows):
        return []
    footer = read_footer(folder.path(shard))
    replaced = [name for name in footer.inputs if folder.path(name).exists()]
    reader = RowReader(folder)
    with folder.publishing_compacted(shard.partition("/")[0]) as stream:
        tables = read_row_groups(reader, inventory, rows, ROW_GROUP_BYTES)
        write_tables(stream, tables, Footer("compacted", footer.columns, tuple(sorted({*replaced, shard}))))
    reader.close()
    holding = [name for name in replaced if wrong & {unit.id for unit in _units(folder, name)}]
    for name in holding:
        folder.set_aside(name)
    return holding


def _units(folder: ResultsFolder, shard: str) -> Collection[UnitFacts]:
    path = folder.path(shard)
    return read_rows(path, read_footer(path)).units
