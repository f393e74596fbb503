"""An export compared with its listing and with the shards that it was made of."""

import gzip
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.analysis.result_files import SWEEP_FILE, read_json
from pipeline.errors import ResultsError, StorageError
from pipeline.export.compression import Compression
from pipeline.export.dataset import FileForm, Format, ResultInventory, ResultStore, files_of, group_units, make_tasks
from pipeline.export.files import FileTask
from pipeline.export.folder import CHECKSUM_FILE
from pipeline.export.parquet_files import ParquetTask
from pipeline.export.side_files import SweepPlan
from pipeline.files import sha256_of

_CACHE_BYTES = 256 << 20
_AGAIN = "Export it again."


def check_export(plan: SweepPlan, store: ResultStore, inventory: ResultInventory, out: Path) -> Iterator[str]:
    """Compare every file of an export with its listing, and every file of results with the shards.

    Args:
        plan: what was exported.
        store: the finished evaluations.
        inventory: what the store holds.
        out: the folder of the export.

    Yields:
        What is wrong: which file, from which unit on, and what to do.

    Raises:
        ResultsError: the folder is no export of robust201.
    """
    names = read_listing(out)
    for name, digest in names.items():
        path = out / name
        if not path.is_file():
            yield f"Verifying failed for {path}: expected a file, got none. {_AGAIN}"
        elif sha256_of(path) != digest:
            yield f"Verifying failed for {path}: expected the SHA-256 of {CHECKSUM_FILE}, got another. {_AGAIN}"
    sweep = read_json(out / SWEEP_FILE)
    compression = next((suffix for suffix in ("gz", "zst") if any(name.endswith(f".{suffix}") for name in names)), None)
    form = FileForm(sweep["key_style"], sweep["round_to"], compression, _CACHE_BYTES)  # type: ignore[arg-type]
    formats: list[Format] = ["json"] if any(".json" in name and "/" in name for name in names) else []
    formats += ["parquet"] if any(name.endswith(".parquet") for name in names) else []
    groups = [group for group in group_units(plan, inventory) if group.complete_units]
    files = files_of(groups, plan.measurements, formats)
    expected = {form.file_name(*file) for file in files}
    for name in sorted(expected.symmetric_difference(name for name in names if "/" in name)):
        got = "none" if name in expected else "one that the shards do not have"
        yield f"Verifying failed for {out / name}: expected it as the shards have it, got {got}. {_AGAIN}"
    present = [file for file in files if (out / form.file_name(*file)).is_file()]
    for task in make_tasks(present, form, out, plan, store, inventory):
        difference = _differs(task)
        if difference is not None:
            yield (
                f"Verifying failed for {out / task.name}: expected the values of the shards, got others {difference}. "
                f"{_AGAIN}"
            )


def read_listing(out: Path) -> dict[str, str]:
    """SHA-256 by name of the files that an export listed.

    Raises:
        ResultsError: there is no listing.
    """
    try:
        lines = (out / CHECKSUM_FILE).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ResultsError(
            f"Verifying failed for {out}: expected a whole export with {CHECKSUM_FILE}, got none. Export it again."
        ) from error
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _differs(task: FileTask | ParquetTask) -> str | None:
    try:
        return _text_differs(task) if isinstance(task, FileTask) else _table_differs(task)
    except (OSError, EOFError, pa.ArrowException) as error:
        return f"(reading it failed: {error})"


@contextmanager
def open_text(path: Path, compression: Compression | None) -> Iterator[BinaryIO]:
    """Open a file of results for reading, decompressed."""
    if compression == "gz":
        with gzip.open(path) as stream:
            yield stream  # type: ignore[misc]
    elif compression == "zst":
        with pa.CompressedInputStream(str(path), "zstd") as stream:
            yield stream
    else:
        with path.open("rb") as stream:
            yield stream


def _text_differs(task: FileTask) -> str | None:
    with open_text(task.folder / task.name, task.compression) as stream:
        for unit, pieces in task.texts():
            text = b"".join(pieces)
            if bytes(stream.read(len(text))) != text:
                return f"from {unit.label} on" if unit is not None else "before its first or after its last unit"
        return "after its last unit" if stream.read(1) else None


def _table_differs(task: ParquetTask) -> str | None:
    with pq.ParquetFile(task.folder / task.name) as file:
        groups: Iterator[Any] = (file.read_row_group(number) for number in range(file.num_row_groups))
        for got, expected in itertools.zip_longest(groups, task.tables()):
            if got is None or expected is None:
                return "after its last unit"
            if not got.equals(expected):
                return _first_row(got, expected)
    return None


def _first_row(got: pa.Table, expected: pa.Table) -> str:
    if got.schema != expected.schema:
        return "in its columns"
    for row in range(min(len(got), len(expected))):
        if not got.slice(row, 1).equals(expected.slice(row, 1)):
            return f"from #{expected['architecture'][row]} at strength {expected['strength'][row]} on"
    raise StorageError("Verifying failed for a table: expected a row that differs, got none. This is a bug.")
