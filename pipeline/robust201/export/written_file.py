"""Files of an export: atomic writing with hashes, and the base class of JSON and Parquet result files."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from robust201.core.errors import ConfigError, EvaluationError, StorageError, did_you_mean
from robust201.core.files import atomic_write
from robust201.core.records import Unit
from robust201.shards import RowBatch
from robust201.shards.backends import HashingStream


@dataclass(frozen=True)
class WrittenFile:
    """A complete file of an export, whose name is relative to the export's folder."""

    name: str
    sha256: str
    n_bytes: int


def parse_choice(choice_name: str, choice: str, valid_choices: Sequence[str]) -> Any:
    """Return a user's choice if it is valid.

    Args:
        choice_name: noun for the choice in the error message.
        choice: the user's choice.
        valid_choices: the valid choices.

    Raises:
        ConfigError: the choice is not valid.
    """
    if choice in valid_choices:
        return choice
    raise ConfigError(
        f"Reading a {choice_name} failed: expected {' or '.join(valid_choices)}, got {choice!r}."
        f"{did_you_mean(choice, valid_choices)}"
    )


@contextmanager
def open_hashed_file(path: Path) -> Iterator[tuple[BinaryIO, HashingStream]]:
    """Open a file for atomic writing: it appears under its name when the block ends without an error.

    Yields:
        The stream to write to, and the stream that counts and hashes the file's bytes.
    """
    with atomic_write(path) as stream:
        hashing_stream = HashingStream(stream)
        yield cast(BinaryIO, hashing_stream), hashing_stream


class ExportStoppedError(EvaluationError):
    """Writing a file stopped because the export was interrupted, or failed for another file."""


class RowSource(Protocol):
    """Source of a file's rows: a `shards.RowSelection`, or the JSON files of a conversion."""

    def iter_batches(self, measurement: str | None) -> Iterator[RowBatch]:
        """Yield the columns of one measurement, or of all measurements if it is None, in batches of units."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ResultFile(ABC):
    """A result file to write. Objects can be pickled, so that another process can write the file.

    Attributes:
        folder: folder of the export.
        name: name relative to the folder.
        dataset: name of the dataset.
        key: the key as it is spelled in the file.
        units: the units, in the order of the rows.
        row_source: source of the rows.
    """

    folder: Path
    name: str
    dataset: str
    key: str
    units: Sequence[Unit]
    row_source: RowSource

    @abstractmethod
    def _write_content(self, stream: BinaryIO, on_units: Callable[[int], None]) -> None:
        """Write the content, and call `on_units` after each batch with the batch's number of units."""

    def write(self, on_units: Callable[[int], None] = lambda _n_units: None) -> WrittenFile:
        """Write the file.

        `on_units` is called after each batch with the batch's number of units. If it raises an exception, no file is
        written.

        Raises:
            StorageError: the rows do not belong to the units, or contain a number that the format cannot represent.
        """
        with open_hashed_file(self.folder / self.name) as (stream, hashing_stream):
            self._write_content(stream, on_units)
        return WrittenFile(self.name, hashing_stream.digest.hexdigest(), hashing_stream.n_bytes)

    def read_batches(self, measurement: str | None) -> Iterator[RowBatch]:
        """Yield the columns of one or all measurements, after checking that the rows belong to the units."""
        n_done = 0
        for batch in self.row_source.iter_batches(measurement):
            for unit, expected in zip_longest(batch.units, self.units[n_done : n_done + len(batch.units)]):
                if expected is None or unit.id != expected.id:
                    expected_text = "no further network" if expected is None else expected.label
                    raise _unexpected_rows_error(unit, expected_text, unit.label)
            if any(len(column) != batch.n_evaluations for column in batch.columns.values()):
                n_values = len(next(iter(batch.columns.values())))
                raise _unexpected_rows_error(batch.units[0], f"{batch.n_evaluations} evaluations", f"{n_values}")
            n_done += len(batch.units)
            yield batch
        if n_done < len(self.units):
            raise _unexpected_rows_error(self.units[n_done], "its rows in the store", "none")


def _unexpected_rows_error(unit: Unit, expected: str, got: str) -> StorageError:
    return StorageError(
        f"Exporting failed for {unit.label}: expected {expected}, got {got}. "
        "Run `robust201 verify` on the results folder."
    )
