"""How well measures of a network rank architectures: their rank correlations with accuracies under every key.

The baseline is counting parameters: a measure that does not correlate better says nothing that the size of a network
does not say. Partial correlations hold sizes and clean accuracies fixed.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.labels import measure_label
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.value_checks import CLEAN
from robust201.statistics.rank_correlation import Coefficients, correlate_ranks

PARAMETERS = "parameters"
FLOPS = "FLOPs"

FEWEST = 8
"""Architectures that a correlation needs at least."""

_IMAGE_SIZE = 32
"""The order by multiply-accumulates does not depend on it."""

COEFFICIENTS = ("kendall", "spearman", "partial", "gain")

COLUMNS = (
    *("dataset", "measure", "key", "strength", "n"),
    *(f"{name}{end}" for name in COEFFICIENTS for end in ("", "_low", "_high")),
    "beats_parameters",
)


def collect_measures(results: DatasetResults, tables: Sequence[pd.DataFrame] = ()) -> pd.DataFrame:
    """Put side by side what is known of architectures besides their accuracies.

    Args:
        results: of a dataset.
        tables: joined tables, as `reader.joined_tables.read_joined` gives them.

    Returns:
        float64 by evaluated architecture: numbers of parameters and multiply-accumulates, where architectures are
        cells, the measures of the results, and the columns of the tables.
    """
    columns: dict[str, pd.Series] = {}
    if results.space is not None and results.n_classes is not None:
        size = ({} if results.reader.sweep is None else results.reader.sweep.get("sweep", {})).get("network")
        space = results.space if size is None else results.space.sized(**size)
        n_classes, index = results.n_classes, results.architectures
        sizes = [space.parameter_count(one, n_classes=n_classes) for one in index]
        costs = [space.macs(one, n_classes=n_classes, image_size=_IMAGE_SIZE) for one in index]
        columns[PARAMETERS] = pd.Series(sizes, results.accuracies.index, dtype=np.float64)
        columns[FLOPS] = pd.Series(costs, results.accuracies.index, dtype=np.float64)
    for place, numbers in results.measures.items():
        columns[measure_label(*place)] = numbers  # type: ignore[misc]
    for table in tables:
        own = table[table["dataset"] == results.name].drop(columns="dataset") if "dataset" in table else table
        for name, numbers in own.set_index("architecture").items():
            label = str(name)
            while label in columns:
                label += ", joined"
            columns[label] = numbers
    return pd.DataFrame(columns).reindex(results.accuracies.index)


def correlate_measures(
    results: DatasetResults, tables: Sequence[pd.DataFrame] = (), *, keys: Sequence[str] | None = None
) -> pd.DataFrame:
    """Correlate every measure with the accuracies under every key and strength.

    Architectures that lack a measure are left out of its rows. Intervals are over architectures, at 95 % (see
    `statistics.rank_correlation`).

    Args:
        results: of a dataset.
        tables: joined tables (see `collect_measures`).
        keys: only these, in the paper's style.

    Returns:
        One row per measure, key and strength: the columns of `COLUMNS`. `kendall` is tau-b; `partial` is tau with the
        number of parameters and the clean accuracy held fixed, where they are known and are not a side themselves;
        `gain` is by how much the absolute tau exceeds that of the number of parameters, and `beats_parameters` whether
        its interval lies above 0. Each of the four has its interval in `_low` and `_high`; NaN where a side is the same
        for all architectures, or there are fewer than `FEWEST`.
    """
    measures = collect_measures(results, tables)
    chosen = [column for column in results.columns if keys is None or column[0] in keys]
    targets = results.accuracies[chosen]
    targets.columns = pd.Index(range(len(chosen)))
    fixed = measures[[PARAMETERS]] if PARAMETERS in measures else pd.DataFrame(index=measures.index)
    if (CLEAN, CLEAN_STRENGTH) in results.columns:
        fixed = fixed.assign(**{CLEAN: results.column(CLEAN)})
    rows = []
    for names, group in _by_presence(measures):
        # Columns go by their place: a table's may have any name.
        held = pd.concat([group, fixed, targets], axis=1).dropna()
        if not chosen or len(held) < FEWEST:
            continue
        found = correlate_ranks(held.to_numpy(np.float64))
        controls = {one: len(names) + number for number, one in enumerate(fixed)}
        for measure, of_measure in enumerate(names):
            for target, (key, strength) in enumerate(chosen):
                given = [place for one, place in controls.items() if one not in (of_measure, key)]
                pair = measure, len(names) + len(controls) + target
                rows.append(
                    {"dataset": results.name, "measure": of_measure, "key": key, "strength": strength, "n": len(held)}
                    | _row(found.kendall, found.spearman, pair, given, controls.get(PARAMETERS))
                )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    order = {name: number for number, name in enumerate(measures.columns)}
    return frame.sort_values("measure", key=lambda names: names.map(order), kind="stable", ignore_index=True)


def _by_presence(measures: pd.DataFrame) -> list[tuple[list[str], pd.DataFrame]]:
    """Group measures that the same architectures have, so that each group is ranked once."""
    groups: dict[bytes, list[str]] = {}
    for name in measures:
        groups.setdefault(measures[name].isna().to_numpy().tobytes(), []).append(str(name))
    return [(names, measures[names]) for names in groups.values()]


def _row(
    kendall: Coefficients, spearman: Coefficients, pair: tuple[int, int], given: Sequence[int], baseline: int | None
) -> dict[str, object]:
    found = {
        "kendall": kendall.interval(*pair),
        "spearman": spearman.interval(*pair),
        "partial": kendall.partial(*pair, given),
        "gain": None if baseline is None else kendall.gain(pair[0], baseline, pair[1]),
    }
    row: dict[str, object] = {"beats_parameters": found["gain"] is not None and found["gain"].low > 0}
    for name, interval in found.items():
        ends = (np.nan,) * 3 if interval is None else interval
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
    return row
