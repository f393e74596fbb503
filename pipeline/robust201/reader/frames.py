"""Results as pandas DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.result_files import ResultFiles, kind_of, values_by_strength

COLUMNS = ("architecture", "isomorph", "spec", "dataset", "key", "strength", "value")
"""Columns of the tidy form."""

MEAN_DECIMALS = 12
"""Means of accuracies are rounded to this many decimals: sums of the same numbers in another order differ at the 16th,
and would hide ties."""


class Table(NamedTuple):
    """Values of one key on one dataset.

    Attributes:
        dataset: name of the dataset.
        key: the key, spelled as it was asked for.
        strengths: (S,) epsilons in units of 1/255 or severities; 0 is clean.
        rows: S values by id.
    """

    dataset: str
    key: str
    strengths: tuple[float, ...]
    rows: Mapping[str, Sequence[Any]]


def read_table(files: ResultFiles, dataset: str, key: str, measure: str) -> Table:
    """Read one key as a list of values per architecture, attacks with the clean value in front.

    Args:
        files: where there are files.
        dataset: name of the dataset.
        key: in either spelling.
        measure: name of the measurement; accuracies are kept, as look-ups ask for them again and again.

    Raises:
        ResultsError: a file is missing or damaged, or has more or fewer values than strengths.
    """
    read = files.read_kept if measure == "accuracy" else files.read
    found, strengths = read(dataset, key, measure), files.strengths(dataset, key)
    rows = {
        i: [row] if key == "clean" else values_by_strength(row, strengths, f"#{i} {dataset} {key} {measure}")
        for i, row in found.items()
    }
    if kind_of(key) == "attack" and files.find(dataset, "clean", measure) is not None:
        clean = read(dataset, "clean", measure)
        rows = {i: [clean.get(i), *row] for i, row in rows.items()}
        strengths = (CLEAN_STRENGTH, *strengths)
    return Table(dataset, key, strengths, rows)


def make_frame(
    tables: Sequence[Table],
    ids: Mapping[str, Mapping[str, str]],
    *,
    numeric: bool,
    wide: bool,
    isomorphs: bool,
) -> pd.DataFrame:
    """Put tables into one DataFrame (see `reader.dataset.RobustnessDataset.to_frame`).

    Args:
        tables: the values.
        ids: the ``ids`` of meta.json.
        numeric: whether values are numbers; else they stay the objects they are.
        wide: one row per architecture and dataset instead of one per value.
        isomorphs: give each value to every architecture of its isomorphism class.

    Returns:
        The DataFrame, sorted by dataset and key as given, architecture and strength.
    """
    members: dict[str, list[int]] = {}
    for i, row in ids.items():
        if isomorphs or row["isomorph"] == i:
            members.setdefault(row["isomorph"], []).append(int(i))
    parts = [_table_frame(table, members, numeric=numeric) for table in tables]
    empty = {name: np.empty(0) for name in COLUMNS}
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(empty)
    architectures, places = np.unique(frame["architecture"].to_numpy(np.int64), return_inverse=True)
    specs = pd.Index([ids[str(index)]["nb201-string"] for index in architectures])
    frame["spec"] = pd.Categorical.from_codes(places, specs)
    for name in ("dataset", "key"):
        frame[name] = pd.Categorical(frame[name], list(dict.fromkeys(getattr(table, name) for table in tables)))
    frame = frame[list(COLUMNS)]
    if not wide:
        return frame
    by_strength = frame.set_index(["architecture", "isomorph", "spec", "dataset", "key", "strength"])["value"]
    return by_strength.unstack(["key", "strength"]).sort_index(axis="columns")


def rank_by_accuracy(frame: pd.DataFrame, strengths: Sequence[float]) -> "pd.Series[int]":
    """Rank architectures by the mean of the values they have at some strengths (see `RobustnessDataset.rank`)."""
    accuracies = frame[frame["strength"].isin(strengths)].groupby("architecture")["value"].mean().round(MEAN_DECIMALS)
    # One that lacks the clean value, which attacks begin with, has no rank by it.
    ranks = accuracies.dropna().rank(ascending=False, method="min").astype("int64")
    return ranks.sort_values(kind="stable").rename("rank")


def _table_frame(table: Table, members: Mapping[str, Sequence[int]], *, numeric: bool) -> pd.DataFrame:
    pairs = sorted((index, int(i), i) for i in table.rows for index in members.get(i, (int(i),)))
    n_strengths = len(table.strengths)
    values = [value for _, _, i in pairs for value in table.rows[i]]
    column = np.array(values, dtype=np.float64) if numeric else _objects(values)
    return pd.DataFrame(
        {
            "architecture": np.repeat(np.array([index for index, _, _ in pairs], dtype=np.int64), n_strengths),
            "isomorph": np.repeat(np.array([isomorph for _, isomorph, _ in pairs], dtype=np.int64), n_strengths),
            "dataset": table.dataset,
            "key": table.key,
            "strength": np.tile(np.array(table.strengths, dtype=np.float64), len(pairs)),
            "value": column,
        }
    )


def _objects(values: Sequence[Any]) -> "np.ndarray[Any, np.dtype[Any]]":
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column
