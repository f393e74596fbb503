"""Merging of results folders, for example from several clusters."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robust201.core.files import MAX_JSON_BYTES, atomic_write, fsync_folder, read_file
from robust201.shards.backends import HashingStream, LocalBackend
from robust201.shards.folder import ResultsFolder
from robust201.shards.row_reader import RowReader
from robust201.shards.scan import scan
from robust201.shards.verification import ShardFinding, find_unequal_duplicates

_COPY_BYTES = 32 << 20


@dataclass(frozen=True)
class MergeReport:
    """The result of merging results folders: shards and protocols added to the target, and shards already present.

    Conflicts are damaged shards of the sources, which were not copied, and unequal duplicates in the target.
    """

    added: int
    present: int
    protocols: int
    conflicts: tuple[ShardFinding, ...]


def merge_folders(sources: Sequence[Path], target: Path) -> MergeReport:
    """Merge results folders into one, which is created if absent. Sources may overlap, and are not changed.

    Names of shards are hashes of their content, so shards of the same name are equal. Each is verified before it is
    linked (within a file system) or copied. The folders may have different storage backends. Raises InputError if a
    source is not a results folder. If the disk is full, every shard copied so far is complete.
    """
    folders = [ResultsFolder(source) for source in sources]
    for folder in folders:
        folder.check_format()
    receiver = ResultsFolder(target)
    receiver.create()
    added = present = protocols = 0
    conflicts: list[ShardFinding] = []
    for folder in folders:
        if folder.root.resolve() == receiver.root.resolve():
            continue
        inventory = scan(folder, verify="all", on_damage="report")
        conflicts += [ShardFinding.damaged(shard, message) for shard, message in inventory.damage.items()]
        protocols += _receive_protocols(folder, receiver)
        present_names = {entry.name for entry in receiver.backend.entries()}
        for shard in inventory.shards:
            if shard in present_names:
                present += 1
            else:
                _receive_shard(folder, receiver, shard)
                added += 1
        if isinstance(receiver.backend, LocalBackend):
            for dataset in {shard.partition("/")[0] for shard in inventory.shards}:
                fsync_folder(receiver.backend.path(dataset))  # links are durable only now
    inventory = scan(receiver, verify="none", on_damage="report")
    conflicts += [ShardFinding.damaged(shard, message) for shard, message in inventory.damage.items()]
    conflicts += find_unequal_duplicates(RowReader(receiver), inventory)
    return MergeReport(added=added, present=present, protocols=protocols, conflicts=tuple(conflicts))


def _receive_shard(source: ResultsFolder, target: ResultsFolder, shard: str) -> None:
    if isinstance(source.backend, LocalBackend) and isinstance(target.backend, LocalBackend):
        path = target.backend.path(shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.backend.path(shard), path)
        except FileExistsError:
            return
        except OSError:
            pass  # another file system, or one without hard links: copy below
        else:
            return
    dataset, _, name = shard.partition("/")
    with target.backend.writing(dataset) as new:
        stream, start = HashingStream(new.stream), 0
        while piece := source.backend.read(shard, start, start + _COPY_BYTES):
            stream.write(piece)
            start += len(piece)
        source.check_hash(shard, stream.digest.hexdigest())
        new.name = name


def _receive_protocols(source: ResultsFolder, target: ResultsFolder) -> int:
    received = 0
    for path in sorted(source.protocols.glob("*.json")):
        if not (target.protocols / path.name).exists():
            with atomic_write(target.protocols / path.name) as stream:
                stream.write(read_file(path, MAX_JSON_BYTES))
            received += 1
    return received
