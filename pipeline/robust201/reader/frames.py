"""Results as pandas DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.overlay import NOWHERE, OverlaidFiles
from robust201.reader.result_files import ResultFiles, kind_of, values_by_strength

FRAME_COLUMNS = ("architecture", "isomorph", "spec", "dataset", "key", "strength", "value")
"""Columns of the tidy form; of several folders seen as one, `source` besides."""

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
        sources: of several folders seen as one, the folder of each value by id, None where none has it; else None.
    """

    dataset: str
    key: str
    strengths: tuple[float, ...]
    rows: Mapping[str, Sequence[Any]]
    sources: Mapping[str, Sequence[str | None]] | None = None


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
    rows, sources = _read_rows(files, dataset, key, measure)
    strengths = files.strengths(dataset, key)
    if kind_of(key) == "attack" and files.find(dataset, "clean", measure) is not None:
        clean, clean_sources = _read_rows(files, dataset, "clean", measure)
        rows = {i: [clean[i][0] if i in clean else None, *row] for i, row in rows.items()}
        if sources is not None and clean_sources is not None:
            sources = {i: [*clean_sources.get(i, [None]), *row] for i, row in sources.items()}
        strengths = (CLEAN_STRENGTH, *strengths)
    return Table(dataset, key, strengths, rows, sources)


def _read_rows(
    files: ResultFiles, dataset: str, key: str, measure: str
) -> tuple[dict[str, list[Any]], dict[str, list[str | None]] | None]:
    """Read the values of a key by id, one per strength, and where they are from (see `Table`)."""
    sources = None
    found: Mapping[str, Any]
    if isinstance(files, OverlaidFiles):
        found, layers = files.read_layers(dataset, key, measure)
        names = [str(layer.path) for layer in files.layers]
        sources = {
            i: [None if number == NOWHERE else names[number] for number in numbers] for i, numbers in layers.items()
        }
    elif measure == "accuracy":
        found = files.read_accuracies(dataset, key)
    else:
        found = files.read(dataset, key, measure)
    strengths = files.strengths(dataset, key)
    rows = {
        i: [row] if key == "clean" else values_by_strength(row, strengths, f"#{i} {dataset} {key} {measure}")
        for i, row in found.items()
    }
    return rows, sources


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
    empty = {name: np.empty(0) for name in FRAME_COLUMNS}
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(empty)
    architectures, places = np.unique(frame["architecture"].to_numpy(np.int64), return_inverse=True)
    specs = pd.Index([ids[str(index)]["nb201-string"] for index in architectures])
    frame["spec"] = pd.Categorical.from_codes(places, specs)
    for name in ("dataset", "key"):
        frame[name] = pd.Categorical(frame[name], list(dict.fromkeys(getattr(table, name) for table in tables)))
    frame = frame[[name for name in (*FRAME_COLUMNS, "source") if name in frame]]
    if not wide:
        return frame
    by_strength = frame.set_index(["architecture", "isomorph", "spec", "dataset", "key", "strength"])["value"]
    return by_strength.unstack(["key", "strength"]).sort_index(axis="columns")


def list_sources(
    files: ResultFiles, datasets: Sequence[str], keys: Sequence[str], measures: Sequence[str]
) -> pd.DataFrame:
    """Tell which folder answers for what (see `reader.dataset.RobustnessDataset.sources`)."""
    rows: list[tuple[str, str, tuple[float, ...], int, str]] = []
    for dataset in datasets:
        for key in keys:
            measure = next((name for name in measures if files.find(dataset, key, name) is not None), None)
            if measure is None:
                continue
            values, sources = _read_rows(files, dataset, key, measure)
            strengths = files.strengths(dataset, key)
            own: list[str | None] = [str(files.path)] * len(strengths)
            places = [own if sources is None else sources[i] for i in values]
            for folder in dict.fromkeys(name for row in places for name in row if name is not None):
                having = [row for row in places if folder in row]
                at = tuple(s for place, s in enumerate(strengths) if any(row[place] == folder for row in having))
                rows.append((dataset, key, at, len(having), folder))
    return pd.DataFrame(rows, columns=["dataset", "key", "strengths", "architectures", "folder"])


def rank_by_accuracy(frame: pd.DataFrame, strengths: Sequence[float]) -> "pd.Series[int]":
    """Rank architectures by the mean of the values they have at some strengths (see `RobustnessDataset.rank`)."""
    groups = frame[frame["strength"].isin(strengths)].groupby("architecture")["value"]
    # Of several folders, an architecture may lack a strength: its mean would be one of something else.
    accuracies = groups.mean()[groups.size() == len(strengths)].round(MEAN_DECIMALS)
    # One that lacks the clean value, which attacks begin with, has no rank by it.
    ranks = accuracies.dropna().rank(ascending=False, method="min").astype("int64")
    return ranks.sort_values(kind="stable").rename("rank")


def _table_frame(table: Table, members: Mapping[str, Sequence[int]], *, numeric: bool) -> pd.DataFrame:
    pairs = sorted((index, int(i), i) for i in table.rows for index in members.get(i, (int(i),)))
    n_strengths = len(table.strengths)
    values = [value for _, _, i in pairs for value in table.rows[i]]
    column = np.array(values, dtype=np.float64) if numeric else _objects(values)
    frame = pd.DataFrame(
        {
            "architecture": np.repeat(np.array([index for index, _, _ in pairs], dtype=np.int64), n_strengths),
            "isomorph": np.repeat(np.array([isomorph for _, isomorph, _ in pairs], dtype=np.int64), n_strengths),
            "dataset": table.dataset,
            "key": table.key,
            "strength": np.tile(np.array(table.strengths, dtype=np.float64), len(pairs)),
            "value": column,
        }
    )
    if table.sources is None:
        return frame
    # What no folder has is no row: another folder's strength, where this one's architectures have none.
    frame["source"] = [source for _, _, i in pairs for source in table.sources[i]]
    return frame[frame["source"].notna()]


def _objects(values: Sequence[Any]) -> "np.ndarray[Any, np.dtype[Any]]":
    column = np.empty(len(values), dtype=object)
    column[:] = list(values)
    return column
