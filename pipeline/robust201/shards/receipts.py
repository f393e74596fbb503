"""Receipts that nobody heard: shards of a worker that died between committing and telling."""

from collections.abc import Collection, Sequence

from robust201.core.errors import ShardDamagedError
from robust201.core.records import Part, Receipt
from robust201.shards.facts import parse_footer, read_rows
from robust201.shards.folder import ResultsFolder, has_stem, network_of, stem_of
from robust201.shards.inventory import columns_of


def find_receipts(folder: ResultsFolder, parts: Sequence[Part], measurements: Collection[str]) -> tuple[Receipt, ...]:
    """Look for parts, or some of their strengths, among the shards as they are now.

    Args:
        folder: the results folder.
        parts: what a lost worker had been given; compacted shards, which no worker writes, are not looked at.
        measurements: names of the measurements that a shard must have.

    Returns:
        What the worker would have told, in the order of the shards' names. Damaged shards tell nothing.
    """
    networks = {(part.unit.dataset, part.unit.architecture) for part in parts}
    stems = {stem_of(part.unit.architecture, part.unit.key) for part in parts}
    open_strengths = {(part.unit.id, part.start, part.stop): set(part.strengths) for part in parts}
    columns = columns_of(measurements)
    found = []
    for entry in folder.place.entries():
        shard = entry.name
        if network_of(shard) not in networks or not any(has_stem(shard, stem) for stem in stems):
            continue
        try:
            footer = parse_footer(folder.read_verified(shard), folder.place.label(shard))
            rows = read_rows(folder.place, shard, footer)
        except (FileNotFoundError, ShardDamagedError):
            continue  # gone or unusable: the part is computed again, and a scan deals with the shard
        place = rows.units[0].id, int(rows.start[0]), int(rows.stop[0])
        strengths = tuple(rows.strength.tolist())
        if columns <= set(footer.columns) and open_strengths.get(place, set()).intersection(strengths):
            found.append(Receipt(place[0], strengths, place[1], place[2], shard, float(rows.seconds.sum())))
    return tuple(found)
