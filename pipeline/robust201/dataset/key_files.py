"""Writing of all result files of one key on one dataset, in one pass over its rows, with one or several processes."""

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from robust201.core.errors import StorageError
from robust201.core.memory import reduce_gc_frequency
from robust201.core.records import Unit
from robust201.dataset.layout import parquet_name
from robust201.dataset.listing import HashedFile, open_hashed
from robust201.dataset.number_text import array_text, array_texts
from robust201.dataset.parquet_writer import KeyFormat, ParquetWriter
from robust201.dataset.shard_rows import RowBatch, UnitResults, iter_batches
from robust201.tasks.columns import COLUMNS, fields_of

ROW_GROUP_BYTES = 16 << 20
"""Minimum size in memory of each row group of a Parquet file, except the last; a row group is one batch."""

JSON_BATCH_BYTES = 2 << 20
"""Minimum size of a batch without Parquet files; in smaller batches, converting numbers to text takes longer."""

MAX_PROCESSES = 6
"""Maximum number of processes; each needs up to 220 MB (for 100 classes), so all of them need up to 1.3 GB."""

MIN_PARALLEL_EVALUATIONS = 20_000
"""Minimum number of evaluations for which an export with several processes is faster."""


@dataclass(frozen=True)
class KeyReport:
    """Report on the written files of a key.

    Attributes:
        key_format: format of the key's files.
        n_units: number of units.
        files: SHA-256 of the files, by name.
        provenances: distinct provenances of the results.
    """

    key_format: KeyFormat
    n_units: int
    files: Mapping[str, str]
    provenances: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, eq=False)
class KeyFiles:
    """The result files of a key, to be written; can be pickled, so that another process can write them.

    Attributes:
        folder: folder to which names of files are relative.
        key_format: format of the files.
        rows: the results.
        formats: ``"json"``, ``"parquet"`` or both.
        round_to: number of decimals in JSON; None for exact values.
    """

    folder: Path
    key_format: KeyFormat
    rows: UnitResults
    formats: Collection[str]
    round_to: int | None

    @property
    def json_names(self) -> dict[str, str]:
        """Name of the JSON file of each measurement."""
        names = self.key_format.measurements if "json" in self.formats else ()
        return {name: f"{self.key_format.dataset}/{self.key_format.key}_{name}.json" for name in names}

    @property
    def names(self) -> list[str]:
        """Names of all files; the Parquet file is the last."""
        parquet_file = parquet_name(self.key_format.dataset, self.key_format.key)
        return [*self.json_names.values(), *([parquet_file] if "parquet" in self.formats else [])]

    def write(self) -> KeyReport:
        """Write the files.

        Raises:
            IncompleteError: a result is missing.
            StorageError: a result is damaged, or contains a number that the format cannot represent.
        """
        key_format, n_units = self.key_format, 0
        with ExitStack() as stack:
            opened = {name: stack.enter_context(open_hashed(self.folder / name)) for name in self.names}
            writers: list[_JsonWriter | ParquetWriter] = [
                _JsonWriter(opened[name], key_format, measurement, self.round_to)
                for measurement, name in self.json_names.items()
            ]
            parquet = ParquetWriter(opened[self.names[-1]], key_format) if "parquet" in self.formats else None
            writers += [parquet] if parquet else []
            for batch in iter_batches(self.rows, ROW_GROUP_BYTES if parquet else JSON_BATCH_BYTES):
                n_units += len(batch.units)
                for writer in writers:
                    writer.add(batch)
            for writer in writers:
                writer.close()
            files = {name: file.sha256 for name, file in opened.items()}
        provenances = tuple(map(dict, self.rows.provenances))
        return KeyReport(key_format, n_units, files, provenances)


class _JsonWriter:
    """Writes a JSON file with one measurement (see `dataset.export.write_dataset` for rounding)."""

    def __init__(self, stream: HashedFile, key_format: KeyFormat, measurement: str, round_to: int | None) -> None:
        self._stream, self._measurement, self._round_to = stream, measurement, round_to
        self._separator = b""
        names = key_format.dataset, key_format.key, measurement
        stream.write(("{" + "".join(f"{json.dumps(name)}: {{" for name in names)).encode())

    def add(self, batch: RowBatch) -> None:
        texts = iter_unit_texts(self._measurement, batch, self._round_to)
        for unit, text in zip(batch.units, texts, strict=True):
            self._stream.write(b'%s"%s": %s' % (self._separator, str(unit.architecture).encode(), text))
            self._separator = b", "

    def close(self) -> None:
        self._stream.write(b"}}}}")


def iter_unit_texts(measurement: str, batch: RowBatch, round_to: int | None = None) -> Iterator[bytes]:
    """Yield each unit's JSON text: one value for ``clean`` and measures, or a list with one value per strength.

    Raises:
        StorageError: a number is infinite, or an accuracy is NaN.
    """
    fields = fields_of(measurement)
    column_texts = [_column_texts(measurement, batch, column, round_to) for column in fields.values()]
    if "" in fields:
        evaluation_texts = column_texts[0]
    else:
        template = b"{" + b", ".join(b'"%s": %%s' % name.encode() for name in fields) + b"}"
        evaluation_texts = [template % texts for texts in zip(*column_texts, strict=True)]
    first_row = 0
    for unit in batch.units:
        end_row = first_row + len(unit.strengths)
        texts = evaluation_texts[first_row:end_row]
        yield texts[0] if _has_single_value(unit) else b"[" + b", ".join(texts) + b"]"
        first_row = end_row


def _column_texts(measurement: str, batch: RowBatch, name: str, round_to: int | None) -> list[bytes]:
    """Return the JSON texts of a column, one per evaluation. Raises the same errors as `iter_unit_texts`."""
    values = batch.columns[name]
    # In columns that are computed from `cm`, NaN is an error. In others, it stands for an undefined mean or measure.
    is_from_counts = name in COLUMNS and COLUMNS[name].value_from_counts is not None
    try:
        if is_from_counts and np.isnan(values).any():
            raise ValueError(f"{name} is NaN")  # noqa: TRY301
        if isinstance(values, list):
            return [array_text(array, round_to) for array in values]
        return array_texts(values, round_to)
    except ValueError as error:
        first, last = batch.units[0].label, batch.units[-1].label
        raise StorageError(
            f"Exporting failed for {measurement} of {first} to {last}: {error}. Run `robust201 verify` on the results "
            "folder."
        ) from error


def _has_single_value(unit: Unit) -> bool:
    return unit.key == "clean" or (bool(unit.columns) and len(unit.strengths) == 1)


def choose_n_processes(n_evaluations: int) -> int:
    """Return the number of processes for an export: one per usable CPU up to `MAX_PROCESSES`; 1 for few evaluations."""
    return 1 if n_evaluations < MIN_PARALLEL_EVALUATIONS else min(len(os.sched_getaffinity(0)), MAX_PROCESSES)


def write_files(keys: Sequence[KeyFiles], processes: int) -> Iterator[KeyReport]:
    """Write the files of keys with several processes, or in this process if `processes` is 1.

    Raises:
        StorageError: a process died, or writing failed. Temporary files may remain.
    """
    if processes == 1:
        yield from map(KeyFiles.write, keys)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    stop_reader, stop_writer = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare_process, initargs=(stop_reader,))
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the processes inherit this mask
    try:
        futures = [pool.submit(KeyFiles.write, key) for key in keys]
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise StorageError(
            "Exporting failed for a worker process: it died before its file was complete, possibly because memory ran "
            "out. Free some memory, and run the same command again."
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        stop_writer.close()  # ends the processes, whatever they are writing
        pool.shutdown(cancel_futures=True)


def _prepare_process(stop_reader: Connection) -> None:
    """Make this process end when the exporting process closes the pipe or dies, even if it is killed.

    Otherwise, an orphaned process could write into a folder that another export uses by then.
    """
    reduce_gc_frequency()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes
    threading.Thread(target=lambda: (wait([stop_reader]), os._exit(1)), daemon=True).start()
