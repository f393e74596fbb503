"""Joining a dataset's results with other tables about the same architectures (see `RobustnessDataset.join`).

A table identifies architectures by ids, cell strings or operations, in one of the columns `IDENTIFIER_COLUMNS`. It may
have a column `dataset`. Without this column, its numbers are used for every dataset. Published tables about cells are
read in their original formats (see `CellSpace.read_json_table` and `read_pickle_table`).
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
from robust201.reader.value_checks import parse_architecture_id, parse_json

IDENTIFIER_COLUMNS = (
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
"""Names of columns that may identify the architecture of a row. If a table has several, the first in this order is
used.
"""

_DATASET_COLUMN = "dataset"

MAX_TABLE_BYTES = 2 << 30

ResolveId = Callable[[int | str], str]
"""Function that returns the id, as text, of an architecture, given its id or cell string. It raises ArchitectureError
for an unknown architecture."""


def read_joined(source: "str | Path | pd.DataFrame", files: ResultFiles, resolve: ResolveId) -> pd.DataFrame:
    """Read a table about architectures, and reduce it to one row per evaluated architecture.

    If a table has several rows for one isomorphism class, the row of the evaluated architecture is used. If this row is
    missing, the mean of the rows is used.

    Args:
        source: a DataFrame, or a CSV, Parquet, JSON or pickle file.
        files: the dataset's files.
        resolve: function that finds an architecture's id (see `ResolveId`).

    Returns:
        The columns of numbers, with one row per evaluated architecture (`architecture`), and per dataset if the table
        has a column `dataset`.

    Raises:
        ConfigError: the file does not exist, or has no column that identifies architectures, or no column of numbers.
        ResultsError: the file is damaged, or has an unknown format.
        ArchitectureError: a row's architecture is not in the space.
    """
    frame, table_name = (
        (source, "the table") if isinstance(source, pd.DataFrame) else (_read_table_file(Path(source), files), source)
    )
    identifier_column = next((column_name for column_name in IDENTIFIER_COLUMNS if column_name in frame.columns), None)
    if identifier_column is None:
        listed_columns = ", ".join(map(str, frame.columns[:12])) or "none"
        raise ConfigError(
            f"Joining failed for {table_name}: no column identifies the architectures (columns: "
            f"{listed_columns}). Rename a column to {', '.join(IDENTIFIER_COLUMNS[:-1])} or {IDENTIFIER_COLUMNS[-1]}."
        )
    number_columns = [
        column_name
        for column_name in frame.columns
        if column_name not in {*IDENTIFIER_COLUMNS, _DATASET_COLUMN}
        and pd.api.types.is_numeric_dtype(frame[column_name])
    ]
    if not number_columns or frame.empty:
        raise ConfigError(
            f"Joining failed for {table_name}: the table has {'no rows' if frame.empty else 'no column of numbers'}. "
            f"Add {'rows' if frame.empty else 'a column of numbers'}."
        )
    for column_name in number_columns:
        is_infinite = np.isinf(frame[column_name].to_numpy(np.float64, na_value=np.nan))
        if is_infinite.any():
            raise ConfigError(
                f"Joining failed for {table_name}: the column {column_name} contains infinity in row "
                f"{int(is_infinite.argmax()) + 1}. Correct the number, or leave the cell empty."
            )
    if _DATASET_COLUMN in frame.columns and frame[_DATASET_COLUMN].isna().any():
        raise ConfigError(
            f"Joining failed for {table_name}: some rows have no name in the column {_DATASET_COLUMN}. "
            "Fill in the dataset in every row, or omit the column."
        )
    identifiers = [
        _resolve_identifier(identifier, files, resolve, str(table_name)) for identifier in frame[identifier_column]
    ]
    isomorphs = [files.isomorph(identifier) for identifier in identifiers]
    table = (
        frame[number_columns]
        .astype(np.float64)
        .assign(
            architecture=[parse_architecture_id(isomorph) for isomorph in isomorphs],
            is_evaluated=[identifier == isomorph for identifier, isomorph in zip(identifiers, isomorphs, strict=True)],
        )
    )
    identity_columns = ["architecture"]
    if _DATASET_COLUMN in frame.columns:
        table[_DATASET_COLUMN] = frame[_DATASET_COLUMN].astype(str)
        identity_columns.append(_DATASET_COLUMN)
    _check_distinct_rows(table, frame[identifier_column], identity_columns, str(table_name))
    group_has_evaluated_row = table.groupby(identity_columns)["is_evaluated"].transform("any")
    return (
        table[table["is_evaluated"] | ~group_has_evaluated_row]
        .groupby(identity_columns, sort=True)[number_columns]
        .mean()
        .reset_index()
    )


def join_tables(accuracies: pd.DataFrame, table: pd.DataFrame, files: ResultFiles) -> pd.DataFrame:
    """Join a table (see `read_joined`) with accuracies in the tidy form (see `RobustnessDataset.join`)."""
    dataset_keys = accuracies[[_DATASET_COLUMN, "key"]].drop_duplicates().astype(str)
    pairs_that_use_clean_at_zero = {
        pair for pair in dataset_keys.itertuples(index=False, name=None) if files.uses_clean_at_zero(*pair)
    }
    row_uses_clean_at_zero = [
        pair in pairs_that_use_clean_at_zero
        for pair in zip(accuracies[_DATASET_COLUMN], accuracies["key"], strict=True)
    ]
    rows = accuracies[(accuracies["strength"] != CLEAN_STRENGTH) | ~np.array(row_uses_clean_at_zero, dtype=np.bool_)]
    row_evaluations = list(zip(rows["key"].astype(str), rows["strength"].astype(float), strict=True))
    evaluations = list(dict.fromkeys(row_evaluations))
    name_of_evaluation = dict(zip(evaluations, evaluation_names(evaluations), strict=True))
    row_names = [name_of_evaluation[evaluation] for evaluation in row_evaluations]
    evaluation_columns = list(name_of_evaluation.values())
    identity_columns = ["architecture", _DATASET_COLUMN]
    accuracy_series = rows.assign(column=row_names, dataset=rows[_DATASET_COLUMN].astype(str)).set_index(
        [*identity_columns, "column"]
    )["value"]
    accuracies_table = accuracy_series.unstack("column")[evaluation_columns].reset_index()
    number_columns = [column_name for column_name in table.columns if column_name not in identity_columns]
    renamed_table = table.rename(
        columns={column_name: unique_column_name(column_name, evaluation_columns) for column_name in number_columns}
    )
    if _DATASET_COLUMN in table.columns:
        matching_rows = renamed_table[renamed_table[_DATASET_COLUMN].isin(accuracies_table[_DATASET_COLUMN].unique())]
        joined = accuracies_table.merge(matching_rows, on=identity_columns, how="outer")
    else:
        joined = accuracies_table.merge(renamed_table, on="architecture", how="outer")
        joined = joined[joined[_DATASET_COLUMN].notna()]
    joined.insert(1, "spec", [files.spec(str(architecture)) for architecture in joined["architecture"]])
    joined.columns.name = None
    return joined.sort_values(identity_columns[::-1], kind="stable", ignore_index=True)


def unique_column_name(name: str, used_names: Collection[str]) -> str:
    """Return an unused name for a table's column, such as ``clean (joined)`` if ``clean`` is used."""
    while name in used_names:
        name += " (joined)"
    return name


def _check_distinct_rows(
    table: pd.DataFrame, architecture_column: "pd.Series[Any]", identity_columns: Sequence[str], table_name: str
) -> None:
    identities = table[[column_name for column_name in identity_columns if column_name != "architecture"]].assign(
        architecture_column=architecture_column.map(str)
    )
    is_repeated = identities.duplicated()
    if is_repeated.any():
        raise ConfigError(
            f"Joining failed for {table_name}: several rows are for the architecture "
            f"{identities['architecture_column'][is_repeated].iloc[0]}. Write one row per "
            f"architecture{' and dataset' if len(identity_columns) > 1 else ''}."
        )


def _read_table_file(path: Path, files: ResultFiles) -> pd.DataFrame:
    if not path.is_file():
        raise ConfigError(f"Joining failed for {path}: the file does not exist. Check the path.")
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
        raise _damaged_table_error(path, error) from error
    if files.space is not None and suffix == ".json":
        try:
            content = parse_json(read_file(path, MAX_TABLE_BYTES))
        except ValueError as error:
            raise _damaged_table_error(path, error) from error
        nested_table = files.space.read_json_table(content)
        if nested_table is not None:
            return _make_frame(nested_table)
    elif files.space is not None and suffix in {".pickle", ".pkl"}:
        return _make_frame(files.space.read_pickle_table(path))
    raise ResultsError(
        f"Joining failed for {path}: the file is neither CSV, Parquet nor a published table about this space. "
        "Convert it to CSV with a column `architecture`."
    )


def _read_csv(path: Path) -> pd.DataFrame:
    if path.suffix.lower() != ".gz":
        with open_file(path, MAX_TABLE_BYTES) as stream:
            return pd.read_csv(stream)
    with open_file(path, MAX_TABLE_BYTES) as compressed, gzip.open(compressed) as stream:
        n_bytes = 0
        while chunk := stream.read(1 << 20):
            n_bytes += len(chunk)
            _check_size(path, n_bytes)
        stream.seek(0)
        return pd.read_csv(stream)


def _check_size(path: Path, n_bytes: int) -> None:
    if n_bytes > MAX_TABLE_BYTES:
        raise ConfigError(
            f"Joining failed for {path}: expected at most {MAX_TABLE_BYTES:,} bytes after decompression, got "
            f"{n_bytes:,}. Write a smaller file that has only the columns you need."
        )


def _damaged_table_error(path: Path, error: Exception) -> ResultsError:
    return ResultsError(
        f"Joining failed for {path}: the file is damaged and cannot be decoded ({one_line(error)}). Write or download "
        "it again."
    )


def _make_frame(table: Mapping[str, Mapping[int, Mapping[str, float]]]) -> pd.DataFrame:
    rows = [
        {"architecture": index, _DATASET_COLUMN: dataset, **numbers}
        for dataset, rows_by_index in table.items()
        for index, numbers in rows_by_index.items()
    ]
    return pd.DataFrame(rows)


def _resolve_identifier(identifier: Any, files: ResultFiles, resolve: ResolveId, table_name: str) -> str:
    try:
        if files.space is not None and isinstance(identifier, np.ndarray | list | tuple):
            return resolve(files.space.format_spec([str(operation) for operation in identifier]))
        if files.space is not None and isinstance(identifier, str) and identifier.startswith(("(", "[")):
            return resolve(files.space.format_spec([str(operation) for operation in ast.literal_eval(identifier)]))
        return resolve(int(identifier) if isinstance(identifier, float) and identifier.is_integer() else identifier)
    except (ArchitectureError, ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        operations = (
            ""
            if files.space is None
            else f", or the operations on the six edges, such as {files.space.operations[0]!r}"
        )
        raise ArchitectureError(
            f"Joining failed for {table_name}: expected an id or a cell string of this dataset's space{operations}, "
            f"got {reprlib.repr(identifier)}. Check the column that identifies architectures."
        ) from error
