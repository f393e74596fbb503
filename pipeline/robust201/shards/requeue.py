"""What verification found wrong, out of the way: the next run computes it again, and nothing else."""

from collections import defaultdict
from collections.abc import Collection, Mapping

import numpy as np

from robust201.shards.backends import Entry
from robust201.shards.folder import ResultsFolder, is_compacted
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import ROW_GROUP_BYTES, Footer, write_tables
from robust201.shards.row_identity import read_footer, read_shard_rows
from robust201.shards.row_reader import RowReader, read_row_groups
from robust201.shards.verification import ShardFinding


def requeue_shards(folder: ResultsFolder, inventory: Inventory, findings: Collection[ShardFinding]) -> tuple[str, ...]:
    """Move what is wrong into ``damaged/``, so that it counts as missing, and name the shards that were moved.

    A shard of one unit moves whole. A compacted shard that is intact but for some rows is written again without them
    first; the new one lists the old one and what that replaced, so nothing wrong comes back.
    """
    rows_of: defaultdict[str, set[int | None]] = defaultdict(set)
    for finding in findings:
        for shard, position in finding.locations:
            rows_of[shard].add(position)
    moved: list[str] = []
    entries = {entry.name: entry for entry in folder.backend.entries()}
    for shard, positions in sorted(rows_of.items()):
        if shard not in entries or shard in moved:
            continue
        wrong = {position for position in positions if position is not None}
        if is_compacted(shard) and len(wrong) == len(positions):
            moved += _write_without(folder, entries, inventory, shard, wrong)
        folder.backend.set_aside(shard)
        moved.append(shard)
    return tuple(sorted(moved))


def _write_without(
    folder: ResultsFolder, entries: Mapping[str, Entry], inventory: Inventory, shard: str, positions: Collection[int]
) -> list[str]:
    """Write a compacted shard again without some rows; move replaced shards that still hold these rows."""
    rows = inventory.rows_of_shard(inventory.shards.index(shard))
    left_out = np.isin(inventory.row_column("position")[rows], list(positions))
    wrong = {inventory.units[number].id for number in inventory.row_column("unit")[rows[left_out]].tolist()}
    rows = rows[~left_out]
    if not len(rows):
        return []
    footer = read_footer(folder.backend, entries[shard])
    replaced = [name for name in footer.inputs if name in entries]
    reader = RowReader(folder)
    with folder.publishing_compacted(shard.partition("/")[0]) as stream:
        tables = read_row_groups(reader, inventory, rows, ROW_GROUP_BYTES)
        write_tables(stream, tables, Footer("compacted", footer.columns, tuple(sorted({*replaced, shard}))))
    reader.close()
    holding = []
    for name in replaced:
        rows_there = read_shard_rows(folder.backend, name, read_footer(folder.backend, entries[name]))
        if wrong & {rows_there.units[number].id for number in set(rows_there.unit.tolist())}:
            folder.backend.set_aside(name)
            holding.append(name)
    return holding
