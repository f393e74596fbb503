"""Reading of results as pandas DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.core.errors import ConfigError
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import ResultFiles, list_values_per_strength, paper_key
from robust201.reader.value_checks import format_id, parse_architecture_id

FRAME_COLUMNS = ("architecture", "isomorph", "spec", "dataset", "key", "strength", "value")
"""Columns of a DataFrame in the tidy form."""

MEAN_DECIMALS = 12
"""Number of decimals to which means of accuracies are rounded.

Without rounding, means of equal numbers in a different order could differ at the 16th decimal, which would hide ties.
"""


class Table(NamedTuple):
    """Values of one key on one dataset.

    Attributes:
        dataset: name of the dataset.
        key: the key, in the caller's spelling.
        strengths: the S strengths; 0 means clean images, unless the attack was evaluated at 0.
        rows: S values for each id.
    """

    dataset: str
    key: str
    strengths: tuple[float, ...]
    rows: Mapping[str, Sequence[Any]]


def read_table(files: ResultFiles, dataset: str, key: str, measurement: str) -> Table:
    """Read a key's values. The values of attacks begin with the clean value, unless the attack was evaluated at 0."""
    files.check_protocols(dataset, key)
    rows = read_rows(files, dataset, key, measurement)
    strengths = files.strengths(dataset, key)
    if files.uses_clean_at_zero(dataset, key) and files.find(dataset, "clean", measurement) is not None:
        clean_rows = read_rows(files, dataset, "clean", measurement)
        rows = {
            identifier: [clean_rows[identifier][0] if identifier in clean_rows else None, *values]
            for identifier, values in rows.items()
        }
        strengths = (CLEAN_STRENGTH, *strengths)
    return Table(dataset, key, strengths, rows)


def read_frame(
    files: ResultFiles,
    datasets: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    measurement: str = "accuracy",
    *,
    wide: bool = False,
    isomorphs: bool = False,
) -> pd.DataFrame:
    """Read a measurement of some or all datasets and keys (see `RobustnessDataset.to_frame`)."""
    has_explicit_selection = datasets is not None and keys is not None
    requested_datasets = files.datasets if datasets is None else datasets
    requested_keys = (
        [key for keys_of_kind in files.keys_by_kind().values() for key in keys_of_kind] if keys is None else keys
    )
    tables = [
        read_table(files, dataset, key, measurement)
        for dataset in requested_datasets
        for key in requested_keys
        if has_explicit_selection or files.find(dataset, key, measurement) is not None
    ]
    for name in () if datasets is None or not requested_keys else requested_datasets:
        if name not in {table.dataset for table in tables}:
            raise files.missing_file_error(name, requested_keys[0], measurement)
    for name in () if keys is None or not requested_datasets else requested_keys:
        if name not in {table.key for table in tables}:
            raise files.missing_file_error(requested_datasets[0], name, measurement)
    return make_frame(tables, files, wide=wide, isomorphs=isomorphs)


def read_accuracies(files: ResultFiles, dataset: str) -> pd.DataFrame:
    """Read all accuracies of a dataset; attacks do not include the clean accuracies.

    Returns:
        float64 by architecture (index, ascending) and (key, strength). Keys are in the paper's style and in the order
        of `TASKS`, and strengths are ascending. Missing evaluations are NaN. There are no columns if all are missing.
    """
    columns = {}
    for key in files.keys:
        if files.find(dataset, key, "accuracy") is None:
            continue
        strengths = files.strengths(dataset, key)
        values_by_id = read_rows(files, dataset, key, "accuracy", use_cache=False)
        if not values_by_id:  # the file contains none of the selected networks
            continue
        values = np.array(list(values_by_id.values()), np.float64).reshape(len(values_by_id), len(strengths))
        frame = pd.DataFrame(
            values, _make_id_array([parse_architecture_id(identifier) for identifier in values_by_id]), strengths
        )
        if isinstance(files, OverlaidFiles):  # some evaluations may be missing in all folders
            frame = frame.dropna(axis=0, how="all").dropna(axis=1, how="all")
        columns[paper_key(key)] = frame.sort_index(axis=1)
    if not columns:
        return pd.DataFrame()
    wide_frame = pd.concat(columns, axis=1, names=["key", "strength"]).rename_axis("architecture").sort_index()
    # The numbers of an architecture must be contiguous, because the last bits of their sum depend on the memory layout.
    return pd.DataFrame(np.ascontiguousarray(wide_frame.to_numpy()), wide_frame.index, wide_frame.columns, copy=False)


def read_rows(
    files: ResultFiles, dataset: str, key: str, measurement: str, *, use_cache: bool = True
) -> dict[str, list[Any]]:
    """Read a key's values, one per strength for each id. Accuracies are cached if `use_cache` is true."""
    values_by_id: Mapping[str, Any]
    if measurement == "accuracy" and use_cache:
        values_by_id = files.read_accuracies(dataset, key)
    else:
        values_by_id = files.read(dataset, key, measurement)
    strengths, is_single = files.strengths(dataset, key), files.has_single_value(dataset, key)
    if is_single:
        return {identifier: [value] for identifier, value in values_by_id.items()}
    n_strengths = len(strengths)
    return {
        identifier: value
        if type(value) is list and len(value) == n_strengths
        else list_values_per_strength(value, strengths, f"{format_id(identifier)} {dataset} {key} {measurement}")
        for identifier, value in values_by_id.items()
    }


def make_frame(tables: Sequence[Table], files: ResultFiles, *, wide: bool, isomorphs: bool) -> pd.DataFrame:
    """Concatenate tables as a DataFrame (see `reader.dataset.RobustnessDataset.to_frame`)."""
    architectures_by_isomorph: dict[str, list[ArchitectureId]] = {}
    for identifier in files.meta["ids"]:
        isomorph = files.isomorph(identifier)
        if isomorphs or isomorph == identifier:
            architectures_by_isomorph.setdefault(isomorph, []).append(parse_architecture_id(identifier))
    frames = [_make_table_frame(table, architectures_by_isomorph) for table in tables]
    if isinstance(files, OverlaidFiles):
        # Values are missing at strengths at which only other architectures were evaluated.
        frames = [frame[frame["value"].notna()] for frame in frames]
    empty_columns = {name: np.empty(0) for name in FRAME_COLUMNS}
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(empty_columns)
    architectures, codes = np.unique(frame["architecture"].to_numpy(), return_inverse=True)
    specs = pd.Index([files.spec(str(architecture)) for architecture in architectures])
    frame["spec"] = pd.Categorical.from_codes(codes, specs)
    for name in ("dataset", "key"):
        frame[name] = pd.Categorical(frame[name], list(dict.fromkeys(getattr(table, name) for table in tables)))
    frame = frame[list(FRAME_COLUMNS)]
    if not wide:
        return frame
    indexed_values = frame.set_index(["architecture", "isomorph", "spec", "dataset", "key", "strength"])["value"]
    return indexed_values.unstack(["key", "strength"]).sort_index(axis="columns")


def rank_by_value(
    frame: pd.DataFrame, strengths: Sequence[float], *, lowest_first: bool, label: str
) -> "pd.Series[int]":
    """Rank architectures by the mean of their values at some strengths (see `RobustnessDataset.rank`)."""
    selected_rows = frame[frame["strength"].isin(strengths)]
    if selected_rows["value"].dtype.kind != "f":
        raise ConfigError(
            f"Ranking failed for {label}: expected numbers, got values of type {selected_rows['value'].dtype}. "
            "Rank by another measurement."
        )
    groups = selected_rows.groupby("architecture")["value"]
    # In overlaid folders, an architecture may lack a strength, so that its mean would not be comparable.
    means = groups.mean()[groups.size() == len(strengths)]
    # Only means are rounded, because single numbers of a measure may be very small.
    means = means.round(MEAN_DECIMALS) if len(strengths) > 1 else means
    # An architecture that lacks the clean value, which is the first value of attacks, is not ranked.
    ranks = means.dropna().rank(ascending=lowest_first, method="min").astype("int64")
    return ranks.sort_values(kind="stable").rename("rank")


def _make_table_frame(table: Table, architectures_by_isomorph: Mapping[str, Sequence[ArchitectureId]]) -> pd.DataFrame:
    members_and_ids: list[tuple[Any, Any, str]] = sorted(
        (member, parse_architecture_id(identifier), identifier)
        for identifier in table.rows
        for member in architectures_by_isomorph.get(identifier, (parse_architecture_id(identifier),))
    )
    n_strengths = len(table.strengths)
    values = [value for _, _, identifier in members_and_ids for value in table.rows[identifier]]
    return pd.DataFrame(
        {
            "architecture": np.repeat(_make_id_array([member for member, _, _ in members_and_ids]), n_strengths),
            "isomorph": np.repeat(_make_id_array([isomorph for _, isomorph, _ in members_and_ids]), n_strengths),
            "dataset": table.dataset,
            "key": table.key,
            "strength": np.tile(np.array(table.strengths, dtype=np.float64), len(members_and_ids)),
            "value": _make_value_array(values),
        }
    )


def _make_id_array(architectures: Sequence[ArchitectureId]) -> "np.ndarray[Any, np.dtype[Any]]":
    has_names = any(isinstance(architecture, str) for architecture in architectures)
    return np.array(architectures, dtype=object if has_names else np.int64)


def _make_value_array(values: Sequence[Any]) -> "np.ndarray[Any, np.dtype[Any]]":
    """Convert numbers and None to a float64 array, and other values to an array of objects."""
    if all(value is None or isinstance(value, (float, int)) for value in values):
        return np.array(values, dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column
