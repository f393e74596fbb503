"""Other tables about the same architectures, put beside the results of a dataset (see `RobustnessDataset.join`).

A table names architectures in one of its columns (`NAMING_COLUMNS`): ids, cell strings or operations. It may have a
column `dataset`; else its numbers hold for every dataset. Published tables about cells are read in their own forms
(`CellSpace.read_json_table`, `read_pickle_table`).
"""

import ast
import gzip
import reprlib
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from robust201.core.errors import ArchitectureError, ConfigError, ResultsError, one_line
from robust201.core.files import open_file, read_file
from robust201.core.parquet_footer import parse_row_groups, read_footer_bytes
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.result_files import ResultFiles, evaluation_names
from robust201.reader.value_checks import architecture_of, parse_json

NAMING_COLUMNS = (
    "architecture",
    "index",
    "id",
    "arch_index",
    "arch_id",
    "cell",
    "spec",
    "arch_str",
    "operations",
    "op_tuple",
)
"""Columns that may say which architecture a row is of, the first that a table has."""

_DATASET = "dataset"

LARGEST_BYTES = 2 << 30

Resolve = Callable[[int | str], str]


def read_joined(source: "str | Path | pd.DataFrame", files: ResultFiles, resolve: Resolve) -> pd.DataFrame:
    """Read a table: a DataFrame, or a CSV, Parquet, JSON or pickle file.

    `resolve` is (id or cell string) → id as text, and raises an `ArchitectureError` where there is none. Of several
    rows of one isomorphism class that of the evaluated architecture counts, without one the mean over the others.

    Returns:
        One row per evaluated architecture (`architecture`) and, if the table has them, `dataset`, with its numbers.

    Raises:
        ConfigError: there is no such file, or no column of it names architectures or holds numbers.
        ResultsError: the file is damaged, or of no known form.
        ArchitectureError: a row names no architecture of the space.
    """
    frame, name = (source, "the table") if isinstance(source, pd.DataFrame) else (_read(Path(source), files), source)
    column = next((one for one in NAMING_COLUMNS if one in frame.columns), None)
    if column is None:
        shown = ", ".join(map(str, frame.columns[:12])) or "none"
        raise ConfigError(
            f"Joining failed for {name}: expected a column {', '.join(NAMING_COLUMNS)} that names architectures, "
            f"got {shown}. Rename the column."
        )
    numbers = [
        one
        for one in frame.columns
        if one not in {*NAMING_COLUMNS, _DATASET} and pd.api.types.is_numeric_dtype(frame[one])
    ]
    if not numbers or frame.empty:
        raise ConfigError(
            f"Joining failed for {name}: expected rows with a column of numbers, got "
            f"{'no row' if frame.empty else 'none'}. Give it one."
        )
    for one in numbers:
        infinite = np.isinf(frame[one].to_numpy(np.float64, na_value=np.nan))
        if infinite.any():
            raise ConfigError(
                f"Joining failed for {name}: expected finite numbers in the column {one}, or none, got infinity in row "
                f"{int(infinite.argmax()) + 1}. Correct it, or leave the cell empty."
            )
    if _DATASET in frame.columns and frame[_DATASET].isna().any():
        raise ConfigError(
            f"Joining failed for {name}: expected a name in every row of the column {_DATASET}, got rows without one. "
            "Name it there, or leave the column out."
        )
    given = [_identifier(value, files, resolve, str(name)) for value in frame[column]]
    isomorphs = [files.isomorph(one) for one in given]
    table = (
        frame[numbers]
        .astype(np.float64)
        .assign(
            architecture=[architecture_of(one) for one in isomorphs],
            own=[one == other for one, other in zip(given, isomorphs, strict=True)],
        )
    )
    by = ["architecture"]
    if _DATASET in frame.columns:
        table[_DATASET] = frame[_DATASET].astype(str)
        by.append(_DATASET)
    _refuse_repeats(table, frame[column], by, str(name))
    has_own = table.groupby(by)["own"].transform("any")
    return table[table["own"] | ~has_own].groupby(by, sort=True)[numbers].mean().reset_index()


def join_tables(accuracies: pd.DataFrame, table: pd.DataFrame, files: ResultFiles) -> pd.DataFrame:
    """Put a table (see `read_joined`) beside accuracies in the tidy form (see `RobustnessDataset.join`)."""
    pairs = accuracies[[_DATASET, "key"]].drop_duplicates().astype(str)
    repeating = {pair for pair in pairs.itertuples(index=False, name=None) if files.repeats_clean(*pair)}
    repeats = [pair in repeating for pair in zip(accuracies[_DATASET], accuracies["key"], strict=True)]
    own = accuracies[(accuracies["strength"] != CLEAN_STRENGTH) | ~np.array(repeats, dtype=np.bool_)]
    columns = list(zip(own["key"].astype(str), own["strength"].astype(float), strict=True))
    distinct = list(dict.fromkeys(columns))
    name_of = dict(zip(distinct, evaluation_names(distinct), strict=True))
    names = [name_of[column] for column in columns]
    order = list(name_of.values())
    by = ["architecture", _DATASET]
    wide = own.assign(column=names, dataset=own[_DATASET].astype(str)).set_index([*by, "column"])["value"]
    left = wide.unstack("column")[order].reset_index()
    numbers = [name for name in table.columns if name not in by]
    renamed = table.rename(columns={name: joined_name(name, order) for name in numbers})
    if _DATASET in table.columns:
        kept = renamed[renamed[_DATASET].isin(left[_DATASET].unique())]
        joined = left.merge(kept, on=by, how="outer")
    else:
        joined = left.merge(renamed, on="architecture", how="outer")
        joined = joined[joined[_DATASET].notna()]
    joined.insert(1, "spec", [files.spec(str(one)) for one in joined["architecture"]])
    joined.columns.name = None
    return joined.sort_values(by[::-1], kind="stable", ignore_index=True)


def joined_name(name: str, taken: Collection[str]) -> str:
    """Name a table's column among others: ``clean (joined)`` where there is ``clean`` already."""
    while name in taken:
        name += " (joined)"
    return name


def _refuse_repeats(table: pd.DataFrame, named: "pd.Series[Any]", by: Sequence[str], name: str) -> None:
    keyed = table[[one for one in by if one != "architecture"]].assign(named=named.map(str))
    repeated = keyed.duplicated()
    if repeated.any():
        raise ConfigError(
            f"Joining failed for {name}: expected one row per architecture{' and dataset' if len(by) > 1 else ''}, got "
            f"several of {keyed['named'][repeated].iloc[0]}. Aggregate them first."
        )


def _read(path: Path, files: ResultFiles) -> pd.DataFrame:
    if not path.is_file():
        raise ConfigError(f"Joining failed for {path}: expected a file, got none. Check the path.")
    _refuse_large(path, path.stat().st_size)
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            with open_file(path, LARGEST_BYTES) as stream:
                groups = parse_row_groups(read_footer_bytes(stream))
            _refuse_large(path, sum(8 * chunk.n_values + chunk.n_bytes for group in groups for chunk in group.chunks))
            return pd.read_parquet(path)
        if suffix in {".csv", ".gz"}:
            return _read_csv(path)
    except (ValueError, OSError, EOFError, zlib.error, NotImplementedError) as error:
        raise _undecodable(path, error) from error
    if files.space is not None and suffix == ".json":
        try:
            content = parse_json(read_file(path, LARGEST_BYTES))
        except ValueError as error:
            raise _undecodable(path, error) from error
        found = files.space.read_json_table(content)
        if found is not None:
            return _frame_of(found)
    elif files.space is not None and suffix in {".pickle", ".pkl"}:
        return _frame_of(files.space.read_pickle_table(path))
    raise ResultsError(
        f"Joining failed for {path}: expected CSV, Parquet or a table that is published for this space, got another "
        "form. Write it as CSV with a column `architecture`."
    )


def _read_csv(path: Path) -> pd.DataFrame:
    if path.suffix.lower() != ".gz":
        with open_file(path, LARGEST_BYTES) as text:
            return pd.read_csv(text)
    with open_file(path, LARGEST_BYTES) as packed, gzip.open(packed) as stream:
        size = 0
        while chunk := stream.read(1 << 20):
            size += len(chunk)
            _refuse_large(path, size)
        stream.seek(0)
        return pd.read_csv(stream)


def _refuse_large(path: Path, n_bytes: int) -> None:
    if n_bytes > LARGEST_BYTES:
        raise ConfigError(
            f"Joining failed for {path}: expected at most {LARGEST_BYTES:,} bytes, unpacked too, got {n_bytes:,}. "
            "Write the columns that you need to a smaller file."
        )


def _undecodable(path: Path, error: Exception) -> ResultsError:
    return ResultsError(
        f"Joining failed for {path}: expected a sound file, got one that cannot be decoded ({one_line(error)}). Write "
        "or download it again."
    )


def _frame_of(table: Mapping[str, Mapping[int, Mapping[str, float]]]) -> pd.DataFrame:
    rows = [
        {"architecture": index, _DATASET: dataset, **row}
        for dataset, by_index in table.items()
        for index, row in by_index.items()
    ]
    return pd.DataFrame(rows)


def _identifier(value: Any, files: ResultFiles, resolve: Resolve, name: str) -> str:
    try:
        if files.space is not None and isinstance(value, np.ndarray | list | tuple):
            return resolve(files.space.format_spec([str(one) for one in value]))
        if files.space is not None and isinstance(value, str) and value.startswith(("(", "[")):
            return resolve(files.space.format_spec([str(one) for one in ast.literal_eval(value)]))
        return resolve(int(value) if isinstance(value, float) and value.is_integer() else value)
    except (ArchitectureError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        operations = "" if files.space is None else f", or six names such as {files.space.operations[0]!r}"
        raise ArchitectureError(
            f"Joining failed for {name}: expected an id or a cell string of this dataset's space{operations}, got "
            f"{reprlib.repr(value)}. Check the column that names architectures."
        ) from error
