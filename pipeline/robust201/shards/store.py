"""The store of finished evaluations: the face of a results folder to the rest of the program."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from robust201.core.errors import EvaluationError
from robust201.core.files import write_text
from robust201.core.records import EvaluationResult, Part, Protocol, Receipt, Unit, canonical_json, is_imported
from robust201.shards import merging, verification
from robust201.shards.compaction import Compaction, CompactReport
from robust201.shards.folder import ResultsFolder, stem_of
from robust201.shards.imported import write_imported
from robust201.shards.inventory import Inventory
from robust201.shards.merging import MergeReport
from robust201.shards.parquet import ROW_GROUP_BYTES, encode
from robust201.shards.provenance import read_provenances
from robust201.shards.reading import RowReader, iterate_values
from robust201.shards.receipts import find_receipts
from robust201.shards.requeue import requeue
from robust201.shards.scan import OnDamage, Verify, scan
from robust201.shards.selection import CACHE_BYTES, Selection, select
from robust201.shards.verification import Finding
from robust201.tasks.measurements import check_values

TARGET_BYTES = 192 << 20
GRACE_SECONDS = 24 * 3600.0
"""How long replaced shards stay: longer than any export or status that may still read them."""


class ShardStore:
    """Finished evaluations in one results folder.

    Any number of processes on any number of hosts may commit to one folder at once; nothing is ever changed in place.

    Args:
        root: the results folder; use `create` or `open`, which check it.
        on_step: called at each step of writing a shard (`core.files.WRITE_STEPS`), for crash tests.
    """

    def __init__(self, root: Path, *, on_step: Callable[[str], None] | None = None) -> None:
        self.folder = ResultsFolder(root) if on_step is None else ResultsFolder(root, on_step)
        self._reader = RowReader(self.folder)

    @classmethod
    def create(cls, root: Path, *, shards: str | None = None) -> "ShardStore":
        """Open a results folder, or make an empty one.

        Args:
            root: the folder.
            shards: URL below which its shards shall lie, ``""`` for the folder itself; None takes what an existing
                folder says, and the folder itself for a new one.

        Raises:
            InputError: the path is taken by something else, or the shards lie elsewhere.
            StorageError: the URL cannot be reached.
            FormatVersionError: another version made it.
            StorageFullError: no space is left.
        """
        store = cls(root)
        store.folder.create(shards)
        return store

    @classmethod
    def open(cls, root: Path, *, shards: str | None = None) -> "ShardStore":
        """Open an existing results folder.

        Args:
            root: the folder.
            shards: where its shards are expected (see `create`); None for anywhere.

        Raises:
            InputError: it is none, or its shards lie elsewhere.
            FormatVersionError: another version made it.
        """
        store = cls(root)
        store.folder.check_format(shards)
        return store

    @property
    def root(self) -> Path:
        """The results folder."""
        return self.folder.root

    @property
    def shards_url(self) -> str:
        """URL below which the shards lie; empty where they lie in the results folder."""
        return self.folder.shards_url

    def save_protocol(self, protocol: Protocol) -> None:
        """Store a protocol's payload, so that rows which name its digest can be explained."""
        path = self.folder.protocols / f"{protocol.digest}.json"
        if not path.exists():
            write_text(path, canonical_json(protocol.payload) + "\n")

    def commit(self, results: Sequence[EvaluationResult]) -> Receipt:
        """Store results as one shard; when this returns they are done and on the disk.

        Args:
            results: of one part (or of some of its strengths), one a strength, with the same measurement columns.

        Returns:
            What the driver needs to know.

        Raises:
            EvaluationError: the results break an invariant (see `tasks.measurements.check_values`) or belong to
                different parts.
            StorageFullError: no space is left; nothing is left behind.
        """
        _check_results(results)
        part, unit = results[0].part, results[0].part.unit
        shard = self.folder.publish(unit.dataset, stem_of(unit.architecture, unit.key), encode(results))
        return Receipt(
            unit.id,
            tuple(result.strength for result in results),
            part.start,
            part.stop,
            shard,
            sum(result.seconds for result in results),
        )

    def add_imported(self, dataset: str, units: Iterable[Sequence[EvaluationResult]]) -> int:
        """Store results that were read from a dataset's files as one shard (see `shards.imported`)."""
        return write_imported(self.folder, dataset, units)

    def remove_other_imports(self, kept: Collection[str]) -> tuple[str, ...]:
        """Delete the imported shards whose protocols are no longer wanted: later imports took their place.

        Args:
            kept: digests of the imported protocols whose rows stay; computed rows stay anyway.

        Returns:
            Names of the shards that were deleted.
        """
        inventory = self.inventory(on_damage="report")
        others = tuple(
            shard
            for number, shard in enumerate(inventory.shards)
            if all(map(is_imported, protocols := _protocols_of(inventory, number))) and not protocols & set(kept)
        )
        self.folder.place.delete(others)
        return others

    def find_receipts(self, parts: Sequence[Part], measurements: Collection[str]) -> tuple[Receipt, ...]:
        """Find shards of parts whose worker died before it could tell of them (see `shards.receipts`)."""
        return find_receipts(self.folder, parts, measurements)

    def inventory(
        self,
        *,
        verify: Verify = "none",
        on_damage: OnDamage = "raise",
        networks: Collection[tuple[str, int]] | None = None,
    ) -> Inventory:
        """Find out what the folder holds.

        Args:
            verify: which shards to hash and compare with their names: ``"all"``, as an export must; ``"unverified"``,
                those that were not found right before at their present size and time of change, as a resume does; or
                ``"none"``, where only damage that hinders reading is noticed.
            on_damage: raise; set damaged shards aside into ``damaged/``; or leave and report them.
            networks: (dataset, architecture) pairs; with ``"unverified"``, only uncompacted shards of these are hashed.

        Returns:
            Rows of all intact shards that no compacted shard replaces, and what was damaged.

        Raises:
            ShardDamagedError: a shard is damaged, and `on_damage` is ``"raise"``.
            FormatVersionError: another format version wrote a shard.
        """
        return scan(self.folder, verify=verify, on_damage=on_damage, networks=networks)

    def values(
        self, unit: Unit, strength: float, inventory: Inventory, measurements: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        """Read one evaluation, merged over its parts.

        Reading in the order of (dataset, key, architecture) is cheap, from compacted shards too; memory stays bounded.

        Args:
            unit: the unit.
            strength: one of its strengths.
            inventory: what the folder holds.
            measurements: names of the measurements wanted.

        Returns:
            Measurement columns (see `tasks.columns.COLUMNS`); `accuracy` and `cm` are always among them.

        Raises:
            IncompleteError: images are missing.
            ShardDamagedError: a shard cannot be read.
            StorageError: a shard vanished after the inventory was made.
        """
        return self._reader.values(unit, strength, inventory, measurements)

    def iter_values(
        self, units: Iterable[Unit], inventory: Inventory, measurements: Collection[str]
    ) -> Iterator[tuple[Unit, dict[float, dict[str, NDArray[Any]]]]]:
        """Read units one by one (see `values`).

        Yields:
            Each unit, with the columns of its complete evaluations by strength.
        """
        yield from iterate_values(self._reader, units, inventory, measurements)

    def select(
        self,
        units: Sequence[Unit],
        inventory: Inventory,
        measurements: Collection[str],
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> Selection:
        """Choose the rows of units, to read them later or in another process.

        Args:
            units: complete units, in the order in which they will be read.
            inventory: what the folder holds.
            measurements: names of the measurements that will be read.
            cache_bytes: bound on decoded row groups kept while reading.

        Returns:
            Where the rows are.

        Raises:
            IncompleteError: images are missing.
        """
        return select(self.root, units, inventory, measurements, cache_bytes)

    def provenances(self, inventory: Inventory) -> list[Mapping[str, str]]:
        """List every different provenance of the rows in an inventory (see `EvaluationResult.provenance`)."""
        return read_provenances(self.folder, inventory)

    def verify(
        self,
        inventory: Inventory | None = None,
        *,
        on_progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> list[Finding]:
        """Check every byte, every row and every duplicate.

        Args:
            inventory: what the folder holds, read with ``verify="all"``; read anew where None.
            on_progress: told after each shard how many of how many are checked.

        Returns:
            What is wrong; empty if nothing is.
        """
        if inventory is None:
            inventory = self.inventory(verify="all", on_damage="report")
        return list(verification.verify(self.folder, inventory, on_progress))

    def requeue(self, inventory: Inventory, findings: Collection[Finding]) -> tuple[str, ...]:
        """Move what `verify` found wrong into ``damaged/``: the next run computes it again, and nothing else.

        Args:
            inventory: what was verified.
            findings: what is wrong.

        Returns:
            Names of the shards that were moved.
        """
        return requeue(self.folder, inventory, findings)

    def set_aside(self, shard: str) -> str:
        """Move a shard into ``damaged/``; its evaluations then count as missing.

        Args:
            shard: its name, such as ``cifar10/000021-pgd-0123456789abcdef.parquet``.

        Returns:
            Where it lies now: a path or URL.
        """
        return self.folder.place.set_aside(shard)

    def compact(
        self,
        *,
        target_bytes: int = TARGET_BYTES,
        row_group_bytes: int = ROW_GROUP_BYTES,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> CompactReport:
        """Merge small shards into large ones, sorted as an export reads them; safe while others commit.

        Args:
            target_bytes: size that compacted shards aim at, on disk: two to four thirds of it, but for a remainder.
            row_group_bytes: bound on their row groups, in memory.
            grace_seconds: age of a compacted shard from which the shards that it replaced are deleted.
            clock: wall clock in seconds since the epoch.

        Returns:
            What was done.

        Raises:
            StorageFullError: no space is left; nothing is lost.
        """
        compaction = Compaction(
            self.folder,
            target_bytes=target_bytes,
            row_group_bytes=row_group_bytes,
            grace_seconds=grace_seconds,
            clock=clock,
        )
        return compaction.run()

    @staticmethod
    def merge(sources: Sequence[Path], target: Path) -> MergeReport:
        """Join results folders (see `shards.merging.merge`)."""
        return merging.merge(sources, target)


def _protocols_of(inventory: Inventory, number: int) -> set[str]:
    rows = inventory.rows_of_shard(number)
    return {inventory.units[unit].protocol for unit in set(inventory.row_column("unit")[rows].tolist())}


def _check_results(results: Sequence[EvaluationResult]) -> None:
    if not results:
        raise EvaluationError("Committing failed: expected at least one result, got none. This is a bug in the worker.")
    first = results[0]
    for result in results:
        part = result.part
        if (part.unit.id, part.start, part.stop) != (first.part.unit.id, first.part.start, first.part.stop):
            raise EvaluationError(
                f"Committing failed for {part.label}: expected results of {first.part.label} only, got both. "
                "This is a bug in the worker."
            )
        if set(result.values) != set(first.values):
            raise EvaluationError(
                f"Committing failed for {part.label}: expected columns {sorted(first.values)} at each strength, got "
                f"{sorted(result.values)} at {result.strength:g}. This is a bug in the worker."
            )
        check_values(result.values, part.stop - part.start, name=f"{part.label} at {result.strength:g}")
    strengths = [result.strength for result in results]
    if len(set(strengths)) != len(strengths) or not set(strengths) <= set(first.part.unit.strengths):
        raise EvaluationError(
            f"Committing failed for {first.part.label}: expected different strengths of {first.part.unit.strengths}, "
            f"got {strengths}. This is a bug in the worker."
        )
