"""Packing and merging of results. Both copy immutable files, so nothing is lost if a process is killed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from robust201.core.errors import InputError, ShardDamagedError
from robust201.core.files import visible_entries
from robust201.store.events import copy_failures
from robust201.store.folder import ResultsFolder
from robust201.store.names import Names, ShardName, merge_names, names_of, shard_name
from robust201.store.packs import PACK_BYTES, PACKS, Pack, contains, write_packs

GRACE_SECONDS = 24 * 3600.0
"""Minimum age of a pack at which copies of its shards are deleted; no command reads copies so long after a listing."""


@dataclass
class PackReport:
    """Result of packing or merging.

    Attributes:
        n_shards: number of packed or copied shards.
        n_packs: number of written packs.
        n_deleted: number of deleted files; their shards are in packs.
        damaged: messages about files that were moved to ``damaged/``.
    """

    n_shards: int = 0
    n_packs: int = 0
    n_deleted: int = 0
    damaged: list[str] = field(default_factory=list)


def pack(folder: ResultsFolder, *, pack_bytes: int = PACK_BYTES, grace_seconds: float = GRACE_SECONDS) -> PackReport:
    """Copy loose shards and small packs to large packs; delete files whose shards an old pack has. Safe during runs."""
    report = PackReport()
    listing = folder.list()
    folder.remove_leftovers()
    for dataset, names in listing.items():
        _delete_copies(folder, dataset, grace_seconds, report)
        _pack_dataset(folder, dataset, names, pack_bytes, report)
    return report


def _delete_copies(folder: ResultsFolder, dataset: str, grace_seconds: float, report: PackReport) -> None:
    """Delete loose shards and packs whose shards are all in an old, intact pack; of equal packs, keep the first."""
    loose, packs, paths = folder.loose_names(dataset), list(folder.packs(dataset).values()), set[str]()
    for pack in packs:
        copies = {shard_name(dataset, row).path for row in loose[contains(pack.names, loose)]}
        copies |= {other.path for other in packs if _replaces(pack, other)}
        if copies - paths and _age(folder, pack) >= grace_seconds and _is_intact(folder, pack, report):
            paths |= copies
    folder.storage.delete(sorted(paths))
    folder.refresh_packs(dataset)
    report.n_deleted += len(paths)


def _is_intact(folder: ResultsFolder, pack: Pack, report: PackReport) -> bool:
    try:
        folder.check_pack(pack)
    except ShardDamagedError as error:
        report.damaged.append(str(error))
        return False
    except FileNotFoundError:  # another process has replaced it
        return False
    return True


def _age(folder: ResultsFolder, pack: Pack) -> float:
    try:
        return folder.storage.age(pack.path)
    except FileNotFoundError:  # another process has replaced it
        return 0.0


def _replaces(pack: Pack, other: Pack) -> bool:
    is_larger = (len(pack.names), other.path) > (len(other.names), pack.path)
    return is_larger and bool(contains(pack.names, other.names).all())


def _pack_dataset(folder: ResultsFolder, dataset: str, names: Names, pack_bytes: int, report: PackReport) -> None:
    """Pack the shards that no large pack has, unless there is only one, or one small pack has all of them."""
    packs = folder.packs(dataset).values()
    names_in_large_packs = merge_names([pack.names for pack in packs if pack.n_bytes >= pack_bytes // 2])
    pending = names[~contains(names_in_large_packs, names)]
    if len(pending) > 1 and not any(contains(pack.names, pending).all() for pack in packs):
        _write(folder, folder, dataset, pending, pack_bytes, report)


def _write(
    source: ResultsFolder, target: ResultsFolder, dataset: str, names: Names, pack_bytes: int, report: PackReport
) -> None:
    contents = _read(source, dataset, names, report)
    for count in write_packs(contents, lambda: target.storage.new_file(dataset, PACKS), pack_bytes):
        report.n_shards += count
        report.n_packs += 1


def _read(folder: ResultsFolder, dataset: str, names: Names, report: PackReport) -> Iterator[tuple[ShardName, bytes]]:
    """Yield the undamaged shards."""
    for name, content in folder.read_ahead(dataset, names):
        if isinstance(content, bytes):
            yield name, content
        else:
            report.damaged.append(str(content))


def merge(sources: Sequence[ResultsFolder], out: Path) -> PackReport:
    """Copy shards, records and failures of folders with equal slice formats to a folder, which may be new or empty.

    Raises:
        InputError: the folders have different slice formats, or `out` is not a results folder; nothing was written.
    """
    is_new = not out.exists() or (out.is_dir() and not visible_entries(out))
    first = sources[0] if is_new else ResultsFolder.open(out)
    for folder in sources:
        if folder.slices != first.slices:
            raise InputError(
                f"Merging failed for {folder.root}: expected {first.slices}, as in {first.root}, got {folder.slices}. "
                "Merge folders that were created with the same batch_size, device, threads and gmacs_per_second."
            )
    target = ResultsFolder.create(out, first.slices, "" if is_new else first.url)
    report = PackReport()
    for folder in sources:
        folder.copy_records(target)
        copy_failures(folder.root, target.root)
        for dataset, names in folder.list().items():
            _copy(folder, target, dataset, names[~contains(names_of(target.list(), dataset), names)], report)
    return report


def _copy(source: ResultsFolder, target: ResultsFolder, dataset: str, names: Names, report: PackReport) -> None:
    """Copy shards; packed shards stay packed."""
    is_packed = np.array([source.is_packed(shard_name(dataset, row)) for row in names], bool)
    _write(source, target, dataset, names[is_packed], PACK_BYTES, report)
    for name, content in _read(source, dataset, names[~is_packed], report):
        target.write(name, content)
        report.n_shards += 1
