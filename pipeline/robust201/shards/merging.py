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
    """The result of merging results folders.

    `added` is the number of copied shards, `present` the number of shards that the target already had, and `protocols`
    the number of copied protocols. `findings` lists the damaged shards of the sources (which are not copied) and of
    the target, and duplicates in the target with different values.
    """

    added: int
    present: int
    protocols: int
    findings: tuple[ShardFinding, ...]


def merge_folders(sources: Sequence[Path], target: Path) -> MergeReport:
    """Merge results folders into one target, which is created if it does not exist.

    The sources may have shards in common, and are not changed. Names of shards contain the hash of their content, so
    shards with the same name are equal. Each shard is verified, and then linked if both folders are on the same file
    system, or else copied. The folders may have different storage backends. If the disk becomes full, all shards that
    were already copied are complete.

    Raises:
        InputError: a source is not a results folder, or the target contains other files.
    """
    folders = [ResultsFolder(source) for source in sources]
    for folder in folders:
        folder.check_format()
    target_folder = ResultsFolder(target)
    target_folder.create()
    n_added = n_present = n_protocols = 0
    findings: list[ShardFinding] = []
    for folder in folders:
        if folder.root.resolve() == target_folder.root.resolve():
            continue
        inventory = scan(folder, verify="all", on_damage="report")
        findings += [ShardFinding.damaged(shard, message) for shard, message in inventory.damage.items()]
        n_protocols += _copy_protocols(folder, target_folder)
        present_names = {entry.name for entry in target_folder.backend.entries()}
        for shard in inventory.shards:
            if shard in present_names:
                n_present += 1
            else:
                _copy_shard(folder, target_folder, shard)
                n_added += 1
        if isinstance(target_folder.backend, LocalBackend):
            for dataset in {shard.partition("/")[0] for shard in inventory.shards}:
                fsync_folder(target_folder.backend.path(dataset))  # new links survive a crash only after this
    inventory = scan(target_folder, verify="unverified", on_damage="report")
    findings += [ShardFinding.damaged(shard, message) for shard, message in inventory.damage.items()]
    findings += find_unequal_duplicates(RowReader(target_folder), inventory)
    return MergeReport(added=n_added, present=n_present, protocols=n_protocols, findings=tuple(findings))


def _copy_shard(source: ResultsFolder, target: ResultsFolder, shard: str) -> None:
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
    with target.backend.open_new_shard(dataset) as new_file:
        stream, start = HashingStream(new_file.stream), 0
        while chunk := source.backend.read(shard, start, start + _COPY_BYTES):
            stream.write(chunk)
            start += len(chunk)
        source.check_hash(shard, stream.digest.hexdigest())
        new_file.name = name


def _copy_protocols(source: ResultsFolder, target: ResultsFolder) -> int:
    n_copied = 0
    for path in sorted(source.protocols.glob("*.json")):
        if not (target.protocols / path.name).exists():
            with atomic_write(target.protocols / path.name) as stream:
                stream.write(read_file(path, MAX_JSON_BYTES))
            n_copied += 1
    return n_copied
