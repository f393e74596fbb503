"""Results as pandas DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.core.errors import ConfigError
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId
from robust201.reader.overlay import NO_LAYER, OverlaidFiles
from robust201.reader.result_files import ResultFiles, paper_key, values_by_strength
from robust201.reader.value_checks import architecture_of, show_id
from robust201.tasks.columns import MEASUREMENTS

FRAME_COLUMNS = ("architecture", "isomorph", "spec", "dataset", "key", "strength", "value")
"""Columns of the tidy form; for overlaid folders there is also `source`."""

MEAN_DECIMALS = 12
"""Number of decimals that means of accuracies are rounded to: sums of the same numbers in another order differ at the
16th decimal, which would hide ties."""


class Table(NamedTuple):
    """Values of one key on one dataset.

    Attributes:
        dataset: name of the dataset.
        key: the key, as spelled by the caller.
        strengths: the S strengths; 0 stands for clean images unless the attack was evaluated at 0.
        rows: S values by id.
        sources: for overlaid folders, the folder of each value by id; None for a value that no folder has.
    """

    dataset: str
    key: str
    strengths: tuple[float, ...]
    rows: Mapping[str, Sequence[Any]]
    sources: Mapping[str, Sequence[str | None]] | None = None


def read_table(files: ResultFiles, dataset: str, key: str, measure: str) -> Table:
    """Read a key's values, with the clean value in front for attacks that were not evaluated at strength 0."""
    files.check_protocols(dataset, key)
    rows, sources = _read_rows(files, dataset, key, measure)
    strengths = files.strengths(dataset, key)
    if files.repeats_clean(dataset, key) and files.find(dataset, "clean", measure) is not None:
        clean, clean_sources = _read_rows(files, dataset, "clean", measure)
        rows = {i: [clean[i][0] if i in clean else None, *row] for i, row in rows.items()}
        if sources is not None and clean_sources is not None:
            sources = {i: [*clean_sources.get(i, [None]), *row] for i, row in sources.items()}
        strengths = (CLEAN_STRENGTH, *strengths)
    return Table(dataset, key, strengths, rows, sources)


def read_frame(
    files: ResultFiles,
    datasets: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    measure: str = "accuracy",
    *,
    wide: bool = False,
    isomorphs: bool = False,
) -> pd.DataFrame:
    """Read a measurement of some or all datasets and keys (see `RobustnessDataset.to_frame`)."""
    explicit = datasets is not None and keys is not None
    chosen = files.datasets if datasets is None else datasets
    requested_keys = [key for group in files.keys_by_kind().values() for key in group] if keys is None else keys
    tables = [
        read_table(files, dataset, key, measure)
        for dataset in chosen
        for key in requested_keys
        if explicit or files.find(dataset, key, measure) is not None
    ]
    for name in () if datasets is None or not requested_keys else chosen:
        if name not in {table.dataset for table in tables}:
            raise files.absence(name, requested_keys[0], measure)
    for name in () if keys is None or not chosen else requested_keys:
        if name not in {table.key for table in tables}:
            raise files.absence(chosen[0], name, measure)
    return make_frame(tables, files, wide=wide, isomorphs=isomorphs)


def read_accuracies(files: ResultFiles, dataset: str) -> pd.DataFrame:
    """Read all accuracies of a dataset; the clean accuracies are not repeated for attacks.

    Returns:
        float64 by architecture (index, ascending) and (key, strength): keys in the paper's style and in the order of
        `TASKS`, strengths ascending. NaN for a missing evaluation; no columns if all evaluations are missing.
    """
    columns = {}
    for key in files.keys:
        if files.find(dataset, key, "accuracy") is None:
            continue
        strengths = files.strengths(dataset, key)
        rows, _ = _read_rows(files, dataset, key, "accuracy", use_cache=False)
        if not rows:  # the file has only networks that were not selected
            continue
        values = np.array(list(rows.values()), np.float64).reshape(len(rows), len(strengths))
        frame = pd.DataFrame(values, _id_array([architecture_of(i) for i in rows]), strengths)
        if isinstance(files, OverlaidFiles):  # evaluations that no folder has
            frame = frame.dropna(axis=0, how="all").dropna(axis=1, how="all")
        columns[paper_key(key)] = frame.sort_index(axis=1)
    if not columns:
        return pd.DataFrame()
    wide = pd.concat(columns, axis=1, names=["key", "strength"]).rename_axis("architecture").sort_index()
    # Keep an architecture's numbers contiguous, since the last bits of sums over them depend on the memory layout.
    return pd.DataFrame(np.ascontiguousarray(wide.to_numpy()), wide.index, wide.columns, copy=False)


def _read_rows(
    files: ResultFiles, dataset: str, key: str, measure: str, *, use_cache: bool = True
) -> tuple[dict[str, list[Any]], dict[str, list[str | None]] | None]:
    """Read a key's values by id, one per strength, and their sources (see `Table`).

    If `use_cache` is true, accuracies are cached.
    """
    sources = None
    values_by_id: Mapping[str, Any]
    if isinstance(files, OverlaidFiles):
        values_by_id, layers = files.read_layers(dataset, key, measure)
        names = [str(layer.path) for layer in files.layers]
        sources = {
            i: [None if number == NO_LAYER else names[number] for number in numbers] for i, numbers in layers.items()
        }
    elif measure == "accuracy" and use_cache:
        values_by_id = files.read_accuracies(dataset, key)
    else:
        values_by_id = files.read(dataset, key, measure)
    strengths, single = files.strengths(dataset, key), files.is_single(dataset, key)
    if single:
        return {i: [row] for i, row in values_by_id.items()}, sources
    n = len(strengths)
    rows = {
        i: row
        if type(row) is list and len(row) == n
        else values_by_strength(row, strengths, f"{show_id(i)} {dataset} {key} {measure}")
        for i, row in values_by_id.items()
    }
    return rows, sources


def make_frame(tables: Sequence[Table], files: ResultFiles, *, wide: bool, isomorphs: bool) -> pd.DataFrame:
    """Concatenate tables to a DataFrame (see `reader.dataset.RobustnessDataset.to_frame`)."""
    members: dict[str, list[ArchitectureId]] = {}
    for i in files.meta["ids"]:
        isomorph = files.isomorph(i)
        if isomorphs or isomorph == i:
            members.setdefault(isomorph, []).append(architecture_of(i))
    parts = [_table_frame(table, members) for table in tables]
    empty = {name: np.empty(0) for name in FRAME_COLUMNS}
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(empty)
    architectures, codes = np.unique(frame["architecture"].to_numpy(), return_inverse=True)
    specs = pd.Index([files.spec(str(architecture)) for architecture in architectures])
    frame["spec"] = pd.Categorical.from_codes(codes, specs)
    for name in ("dataset", "key"):
        frame[name] = pd.Categorical(frame[name], list(dict.fromkeys(getattr(table, name) for table in tables)))
    frame = frame[[name for name in (*FRAME_COLUMNS, "source") if name in frame]]
    if not wide:
        return frame
    by_strength = frame.set_index(["architecture", "isomorph", "spec", "dataset", "key", "strength"])["value"]
    return by_strength.unstack(["key", "strength"]).sort_index(axis="columns")


def list_sources(files: ResultFiles, datasets: Sequence[str], keys: Sequence[str]) -> pd.DataFrame:
    """Return the folder of each dataset's and key's results (see `reader.dataset.RobustnessDataset.sources`)."""
    rows: list[tuple[str, str, tuple[float, ...], int, str]] = []
    for dataset in datasets:
        for key in keys:
            measures = (*files.measurements_of(dataset, key), *MEASUREMENTS)
            measure = next((name for name in measures if files.find(dataset, key, name) is not None), None)
            if measure is None:
                continue
            values, sources = _read_rows(files, dataset, key, measure)
            strengths = files.strengths(dataset, key)
            sources_of_folder: list[str | None] = [str(files.path)] * len(strengths)
            source_rows = [sources_of_folder if sources is None else sources[i] for i in values]
            for folder in dict.fromkeys(name for row in source_rows for name in row if name is not None):
                rows_with_folder = [row for row in source_rows if folder in row]
                at = tuple(
                    s
                    for position, s in enumerate(strengths)
                    if any(row[position] == folder for row in rows_with_folder)
                )
                rows.append((dataset, key, at, len(rows_with_folder), folder))
    return pd.DataFrame(rows, columns=["dataset", "key", "strengths", "architectures", "folder"])


def rank_by_value(
    frame: pd.DataFrame, strengths: Sequence[float], *, lowest_first: bool, what: str
) -> "pd.Series[int]":
    """Rank architectures by the mean of their values at some strengths (see `RobustnessDataset.rank`)."""
    chosen = frame[frame["strength"].isin(strengths)]
    if chosen["value"].dtype.kind != "f":
        raise ConfigError(
            f"Ranking failed for {what}: expected numbers, got values of type {chosen['value'].dtype}. "
            "Rank by another measurement."
        )
    groups = chosen.groupby("architecture")["value"]
    # In overlaid folders an architecture may lack a strength, and its mean would not be comparable.
    means = groups.mean()[groups.size() == len(strengths)]
    # Only means are rounded: a measure's numbers may be small.
    means = means.round(MEAN_DECIMALS) if len(strengths) > 1 else means
    # An architecture without the clean value that attacks begin with is not ranked.
    ranks = means.dropna().rank(ascending=lowest_first, method="min").astype("int64")
    return ranks.sort_values(kind="stable").rename("rank")


def _table_frame(table: Table, members: Mapping[str, Sequence[ArchitectureId]]) -> pd.DataFrame:
    pairs: list[tuple[Any, Any, str]] = sorted(
        (member, architecture_of(i), i) for i in table.rows for member in members.get(i, (architecture_of(i),))
    )
    n_strengths = len(table.strengths)
    values = [value for _, _, i in pairs for value in table.rows[i]]
    frame = pd.DataFrame(
        {
            "architecture": np.repeat(_id_array([member for member, _, _ in pairs]), n_strengths),
            "isomorph": np.repeat(_id_array([isomorph for _, isomorph, _ in pairs]), n_strengths),
            "dataset": table.dataset,
            "key": table.key,
            "strength": np.tile(np.array(table.strengths, dtype=np.float64), len(pairs)),
            "value": _value_array(values),
        }
    )
    if table.sources is None:
        return frame
    # Drop values that no folder has, at strengths at which other architectures were evaluated.
    frame["source"] = [source for _, _, i in pairs for source in table.sources[i]]
    return frame[frame["source"].notna()]


def _id_array(architectures: Sequence[ArchitectureId]) -> "np.ndarray[Any, np.dtype[Any]]":
    text = any(isinstance(architecture, str) for architecture in architectures)
    return np.array(architectures, dtype=object if text else np.int64)


def _value_array(values: Sequence[Any]) -> "np.ndarray[Any, np.dtype[Any]]":
    """Convert numbers and None to float64; anything else to an array of objects."""
    if all(value is None or isinstance(value, (float, int)) for value in values):
        return np.array(values, dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column
