"""The store of finished evaluations: the interface through which the rest of the program uses a results folder."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, ShardDamagedError
from robust201.core.files import MAX_JSON_BYTES, IrregularFileError, read_file, write_text
from robust201.core.records import (
    ArchitectureId,
    EvaluationProtocol,
    EvaluationResult,
    Part,
    Receipt,
    Unit,
    canonical_json,
)
from robust201.shards.compaction import Compaction, CompactReport
from robust201.shards.folder import OnWriteStep, ResultsFolder, has_stem, network_of, stem_of
from robust201.shards.inventory import Inventory, required_unit_columns
from robust201.shards.parquet import encode, parse_provenance
from robust201.shards.row_identity import parse_footer, read_shard_rows
from robust201.shards.row_reader import SELECTION_CACHE_BYTES, RowReader, RowSelection
from robust201.shards.scan import OnDamage, Verify, scan
from robust201.shards.verification import OnProgress, ShardFinding, check_rows, verify_shards
from robust201.tasks.measurements import check_values


class ShardStore:
    """Finished evaluations in one results folder. Construct it with `create` or `open`, which check the folder.

    Any number of processes on any number of hosts may commit to a folder simultaneously; files are never changed in
    place. A unit is all evaluations of one network on one dataset under one key; a part is a slice of a unit (some
    strengths and a range of images), whose results are stored together.

    Args:
        root: the results folder.
        on_step: called at each step of writing a shard, for crash tests.
    """

    def __init__(self, root: Path, *, on_step: OnWriteStep = lambda _step: None) -> None:
        self.folder = ResultsFolder(root, on_step)
        self._reader = RowReader(self.folder)

    @classmethod
    def create(cls, root: Path, *, shards: str | None = None) -> "ShardStore":
        store = cls(root)
        store.folder.create(shards)
        return store

    @classmethod
    def open(cls, root: Path, *, shards: str | None = None) -> "ShardStore":
        store = cls(root)
        store.folder.check_format(shards)
        return store

    @property
    def root(self) -> Path:
        return self.folder.root

    def save_protocol(self, protocol: EvaluationProtocol) -> None:
        """Store the payload of a protocol that rows refer to, replacing a damaged file."""
        path = self.folder.protocols / f"{protocol.digest}.json"
        content = canonical_json(protocol.payload) + "\n"
        try:
            is_stored = read_file(path, MAX_JSON_BYTES) == content.encode()
        except (FileNotFoundError, IsADirectoryError, IrregularFileError):
            is_stored = False
        if not is_stored:
            write_text(path, content)

    def commit(self, results: Sequence[EvaluationResult]) -> Receipt:
        """Store results as one shard. When the method returns, the results survive a crash.

        Args:
            results: results of one part, at most one per strength, all with the same columns.

        Raises:
            EvaluationError: the results break an invariant (see `tasks.measurements.check_values`) or belong to
                different parts.
            StorageFullError: the disk is full; no partial file remains.
        """
        _check_results(results)
        part, unit = results[0].part, results[0].part.unit
        shard = self.folder.publish(unit.dataset, stem_of(unit.architecture, unit.key), encode(results))
        strengths, seconds = tuple(result.strength for result in results), sum(result.seconds for result in results)
        return Receipt(unit.id, strengths, part.start, part.stop, shard, seconds=seconds)

    def find_receipts(self, parts: Sequence[Part], measurements: Collection[str]) -> tuple[Receipt, ...]:
        """Return a record (`Receipt`) of each committed shard with results of some parts, in the order of the shards.

        This finds shards whose worker died before it reported them. A shard may have only some of a part's strengths.
        Damaged shards are skipped, and so are compacted shards, which workers never write.
        """
        networks = {(part.unit.dataset, part.unit.architecture) for part in parts}
        stems = {stem_of(part.unit.architecture, part.unit.key) for part in parts}
        requested_strengths = {(part.unit.id, part.start, part.stop): set(part.strengths) for part in parts}
        columns_of_unit = {part.unit.id: required_unit_columns(part.unit, measurements) for part in parts}
        backend, receipts = self.folder.backend, []
        for entry in backend.entries():
            shard = entry.name
            if network_of(shard) not in networks or not any(has_stem(shard, stem) for stem in stems):
                continue
            try:
                footer = parse_footer(self.folder.read_verified(shard), backend.label(shard))
                rows = read_shard_rows(backend, shard, footer)
            except (FileNotFoundError, ShardDamagedError):
                continue  # the part is computed again, and the next scan handles a damaged shard
            slice_id = unit_id, start, stop = rows.units[0].id, int(rows.start[0]), int(rows.stop[0])
            strengths = tuple(rows.strength.tolist())
            has_requested_strengths = not requested_strengths.get(slice_id, set()).isdisjoint(strengths)
            if has_requested_strengths and columns_of_unit[unit_id] <= set(footer.columns):
                receipts.append(Receipt(unit_id, strengths, start, stop, shard, seconds=float(rows.seconds.sum())))
        return tuple(receipts)

    def inventory(
        self,
        *,
        verify: Verify = "none",
        on_damage: OnDamage = "raise",
        networks: Collection[tuple[str, ArchitectureId]] | None = None,
    ) -> Inventory:
        """Return the inventory of the folder (see `shards.scan.scan`)."""
        return scan(self.folder, verify=verify, on_damage=on_damage, networks=networks)

    def values(
        self, unit: Unit, strength: float, inventory: Inventory, measurements: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        """Return one evaluation's columns, merged over its parts.

        The columns are the measurements' columns, `accuracy`, and counts of images. Reading evaluations in the order of
        dataset, key and architecture is fast and takes bounded memory, even from compacted shards. Raises
        IncompleteError if images are missing, and the errors of `RowReader`.
        """
        columns = required_unit_columns(unit, measurements)
        rows = [inventory.locate(image_slice.row) for image_slice in inventory.slices(unit, strength, columns)]
        return self._reader.read_merged(rows, {*columns, *self._reader.find_count_columns(rows[0][0])})

    def select(
        self,
        units: Sequence[Unit],
        inventory: Inventory,
        measurements: Collection[str],
        *,
        cache_bytes: int = SELECTION_CACHE_BYTES,
    ) -> RowSelection:
        """Return the locations of units' measurements, for reading them in this order later or in another process.

        Raises IncompleteError if images are missing.
        """
        column_sets = {required_unit_columns(unit, measurements) for unit in units}
        rows = inventory.find_single_rows(units, *column_sets) if len(column_sets) == 1 else None
        if rows is None:
            rows_of_evaluations = [
                [
                    image_slice.row
                    for image_slice in inventory.slices(unit, strength, required_unit_columns(unit, measurements))
                ]
                for unit in units
                for strength in unit.strengths
            ]
            offsets = np.cumsum([0, *map(len, rows_of_evaluations)])
            rows = np.array([row for evaluation_rows in rows_of_evaluations for row in evaluation_rows], dtype=np.int64)
        else:
            offsets = np.arange(len(rows) + 1)
        shard_names, shard_index, row_position = inventory.locate_rows(rows)
        return RowSelection(
            root=self.root,
            units=tuple(units),
            measurements=tuple(measurements),
            shard_names=shard_names,
            offsets=offsets.astype(np.int32),
            shard_index=shard_index,
            row_position=row_position,
            cache_bytes=cache_bytes,
        )

    def check_rows(self, inventory: Inventory) -> list[Mapping[str, str]]:
        """Check every row of an inventory as `verify` does, and return the rows' distinct provenances, sorted.

        See `EvaluationResult.provenance`. Raises ShardDamagedError for the first invalid row.
        """
        provenances: set[str] = set()
        for finding in check_rows(self.folder, inventory, provenances=provenances):
            raise ShardDamagedError(
                f"Checking results failed for {self.root}: there are faulty results. The first fault is of the kind "
                f"{finding.kind!r}: {finding.message} List all with robust201 verify {self.root}; with --requeue, the "
                "next run recomputes them."
            )
        return [parse_provenance(text) for text in sorted(provenances)]

    def verify(
        self,
        inventory: Inventory | None = None,
        *,
        on_progress: OnProgress = lambda _done, _all: None,
    ) -> list[ShardFinding]:
        """Check every byte, every row and every duplicate, and return all faults.

        An `inventory` must have been read with ``verify="all"``. If it is None, the folder is scanned.
        """
        if inventory is None:
            inventory = self.inventory(verify="all", on_damage="report")
        return list(verify_shards(self.folder, inventory, on_progress))

    def compact(self, **options: Any) -> CompactReport:
        """Merge small shards into large ones, sorted for an export; `options` are fields of `Compaction`."""
        return Compaction(self.folder, **options).run()


def _check_results(results: Sequence[EvaluationResult]) -> None:
    """Check that results can be committed as one shard (see `ShardStore.commit`)."""
    if not results:
        raise EvaluationError("Committing failed: expected at least one result, got none. This is a bug in the worker.")
    first = results[0]
    for result in results:
        part = result.part
        if (part.unit.id, part.start, part.stop) != (
            first.part.unit.id,
            first.part.start,
            first.part.stop,
        ):
            raise EvaluationError(
                f"Committing failed for {part.label}: all results must belong to {first.part.label}. "
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
            f"Committing failed for {first.part.label}: expected distinct strengths from {first.part.unit.strengths}, "
            f"got {strengths}. This is a bug in the worker."
        )
