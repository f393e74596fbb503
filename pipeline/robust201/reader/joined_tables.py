"""Other tables about the same architectures, joined with the results of a dataset (see `RobustnessDataset.join`).

A table identifies architectures in one of the columns `NAMING_COLUMNS`, by ids, cell strings or operations. It may have
a column `dataset`; otherwise its numbers are used for every dataset. Published tables about cells are read in their
original formats (`CellSpace.read_json_table`, `read_pickle_table`).
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
"""Columns that may identify the architecture of a row; the first one that a table has is used."""

_DATASET = "dataset"

MAX_TABLE_BYTES = 2 << 30

Resolve = Callable[[int | str], str]


def read_joined(source: "str | Path | pd.DataFrame", files: ResultFiles, resolve: Resolve) -> pd.DataFrame:
    """Read a table with one row per evaluated architecture.

    If a table has several rows of one isomorphism class, the row of the evaluated architecture is used, or without one
    the mean of the rows.

    Args:
        source: a DataFrame, or a CSV, Parquet, JSON or pickle file.
        files: the dataset's files.
        resolve: (id or cell string) → id as text; raises `ArchitectureError` for an unknown architecture.

    Returns:
        One row per evaluated architecture (`architecture`) and, if the table has the column, `dataset`, with the
        columns of numbers.

    Raises:
        ConfigError: there is no such file, or it has no column that identifies architectures or contains numbers.
        ResultsError: the file is damaged, or has an unknown format.
        ArchitectureError: a row's architecture is not in the space.
    """
    frame, name = (source, "the table") if isinstance(source, pd.DataFrame) else (_read(Path(source), files), source)
    column = next((column_name for column_name in NAMING_COLUMNS if column_name in frame.columns), None)
    if column is None:
        shown = ", ".join(map(str, frame.columns[:12])) or "none"
        raise ConfigError(
            f"Joining failed for {name}: expected a column that identifies architectures, one of "
            f"{', '.join(NAMING_COLUMNS)}, got {shown}. Rename the column."
        )
    numbers = [
        column_name
        for column_name in frame.columns
        if column_name not in {*NAMING_COLUMNS, _DATASET} and pd.api.types.is_numeric_dtype(frame[column_name])
    ]
    if not numbers or frame.empty:
        raise ConfigError(
            f"Joining failed for {name}: the table has {'no rows' if frame.empty else 'no column of numbers'}. "
            "Add what is missing."
        )
    for column_name in numbers:
        infinite = np.isinf(frame[column_name].to_numpy(np.float64, na_value=np.nan))
        if infinite.any():
            raise ConfigError(
                f"Joining failed for {name}: the column {column_name} contains infinity in row "
                f"{int(infinite.argmax()) + 1}. Correct the number, or leave the cell empty."
            )
    if _DATASET in frame.columns and frame[_DATASET].isna().any():
        raise ConfigError(
            f"Joining failed for {name}: some rows have no name in the column {_DATASET}. "
            "Name the dataset in every row, or leave the column out."
        )
    identifiers = [_identifier(value, files, resolve, str(name)) for value in frame[column]]
    isomorphs = [files.isomorph(identifier) for identifier in identifiers]
    table = (
        frame[numbers]
        .astype(np.float64)
        .assign(
            architecture=[architecture_of(isomorph) for isomorph in isomorphs],
            is_evaluated=[i == isomorph for i, isomorph in zip(identifiers, isomorphs, strict=True)],
        )
    )
    by = ["architecture"]
    if _DATASET in frame.columns:
        table[_DATASET] = frame[_DATASET].astype(str)
        by.append(_DATASET)
    _check_distinct_rows(table, frame[column], by, str(name))
    has_evaluated = table.groupby(by)["is_evaluated"].transform("any")
    return table[table["is_evaluated"] | ~has_evaluated].groupby(by, sort=True)[numbers].mean().reset_index()


def join_tables(accuracies: pd.DataFrame, table: pd.DataFrame, files: ResultFiles) -> pd.DataFrame:
    """Join a table (see `read_joined`) with accuracies in the tidy form (see `RobustnessDataset.join`)."""
    pairs = accuracies[[_DATASET, "key"]].drop_duplicates().astype(str)
    repeating = {pair for pair in pairs.itertuples(index=False, name=None) if files.repeats_clean(*pair)}
    repeats = [pair in repeating for pair in zip(accuracies[_DATASET], accuracies["key"], strict=True)]
    rows = accuracies[(accuracies["strength"] != CLEAN_STRENGTH) | ~np.array(repeats, dtype=np.bool_)]
    columns = list(zip(rows["key"].astype(str), rows["strength"].astype(float), strict=True))
    distinct = list(dict.fromkeys(columns))
    name_of = dict(zip(distinct, evaluation_names(distinct), strict=True))
    names = [name_of[column] for column in columns]
    order = list(name_of.values())
    by = ["architecture", _DATASET]
    wide = rows.assign(column=names, dataset=rows[_DATASET].astype(str)).set_index([*by, "column"])["value"]
    accuracies_table = wide.unstack("column")[order].reset_index()
    numbers = [name for name in table.columns if name not in by]
    renamed = table.rename(columns={name: unique_column_name(name, order) for name in numbers})
    if _DATASET in table.columns:
        table_of_datasets = renamed[renamed[_DATASET].isin(accuracies_table[_DATASET].unique())]
        joined = accuracies_table.merge(table_of_datasets, on=by, how="outer")
    else:
        joined = accuracies_table.merge(renamed, on="architecture", how="outer")
        joined = joined[joined[_DATASET].notna()]
    joined.insert(1, "spec", [files.spec(str(architecture)) for architecture in joined["architecture"]])
    joined.columns.name = None
    return joined.sort_values(by[::-1], kind="stable", ignore_index=True)


def unique_column_name(name: str, taken: Collection[str]) -> str:
    """Return a name for a table's column that is not taken, such as ``clean (joined)`` beside ``clean``."""
    while name in taken:
        name += " (joined)"
    return name


def _check_distinct_rows(
    table: pd.DataFrame, architecture_column: "pd.Series[Any]", by: Sequence[str], name: str
) -> None:
    keyed = table[[column_name for column_name in by if column_name != "architecture"]].assign(
        architecture_column=architecture_column.map(str)
    )
    repeated = keyed.duplicated()
    if repeated.any():
        raise ConfigError(
            f"Joining failed for {name}: expected one row per architecture{' and dataset' if len(by) > 1 else ''}, got "
            f"several of {keyed['architecture_column'][repeated].iloc[0]}. Aggregate them first."
        )


def _read(path: Path, files: ResultFiles) -> pd.DataFrame:
    if not path.is_file():
        raise ConfigError(f"Joining failed for {path}: expected a file, got none. Check the path.")
    _check_size(path, path.stat().st_size)
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            with open_file(path, MAX_TABLE_BYTES) as stream:
                groups = parse_row_groups(read_footer_bytes(stream))
            _check_size(path, sum(8 * chunk.n_values + chunk.n_bytes for group in groups for chunk in group.chunks))
            return pd.read_parquet(path)
        if suffix in {".csv", ".gz"}:
            return _read_csv(path)
    except (ValueError, OSError, EOFError, zlib.error, NotImplementedError) as error:
        raise _damaged_table(path, error) from error
    if files.space is not None and suffix == ".json":
        try:
            content = parse_json(read_file(path, MAX_TABLE_BYTES))
        except ValueError as error:
            raise _damaged_table(path, error) from error
        nested_table = files.space.read_json_table(content)
        if nested_table is not None:
            return _frame_of(nested_table)
    elif files.space is not None and suffix in {".pickle", ".pkl"}:
        return _frame_of(files.space.read_pickle_table(path))
    raise ResultsError(
        f"Joining failed for {path}: the file is neither CSV, Parquet nor a published table about this space. "
        "Convert it to CSV with a column `architecture`."
    )


def _read_csv(path: Path) -> pd.DataFrame:
    if path.suffix.lower() != ".gz":
        with open_file(path, MAX_TABLE_BYTES) as text:
            return pd.read_csv(text)
    with open_file(path, MAX_TABLE_BYTES) as packed, gzip.open(packed) as stream:
        size = 0
        while chunk := stream.read(1 << 20):
            size += len(chunk)
            _check_size(path, size)
        stream.seek(0)
        return pd.read_csv(stream)


def _check_size(path: Path, n_bytes: int) -> None:
    if n_bytes > MAX_TABLE_BYTES:
        raise ConfigError(
            f"Joining failed for {path}: expected at most {MAX_TABLE_BYTES:,} bytes, also decompressed, got "
            f"{n_bytes:,}. Write the columns that you need to a smaller file."
        )


def _damaged_table(path: Path, error: Exception) -> ResultsError:
    return ResultsError(
        f"Joining failed for {path}: the file is damaged and cannot be decoded ({one_line(error)}). Write or download "
        "it again."
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
            return resolve(files.space.format_spec([str(operation) for operation in value]))
        if files.space is not None and isinstance(value, str) and value.startswith(("(", "[")):
            return resolve(files.space.format_spec([str(operation) for operation in ast.literal_eval(value)]))
        return resolve(int(value) if isinstance(value, float) and value.is_integer() else value)
    except (ArchitectureError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        operations = "" if files.space is None else f", or six names such as {files.space.operations[0]!r}"
        raise ArchitectureError(
            f"Joining failed for {name}: expected an id or a cell string of this dataset's space{operations}, got "
            f"{reprlib.repr(value)}. Check the column that identifies architectures."
        ) from error
