"""How well measures of a network rank architectures: their rank correlations with accuracies under every key.

The baseline is counting parameters: a measure that does not correlate better says nothing that the size of a network
does not say. Partial correlations hold sizes and clean accuracies fixed.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.network_costs import PARAMETERS
from robust201.analysis.terms import collect_measures, find_evaluations
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.value_checks import CLEAN
from robust201.statistics.rank_correlation import Coefficients, correlate_ranks

FEWEST = 8
"""Architectures that a correlation needs at least."""

COEFFICIENTS = ("kendall", "spearman", "partial", "gain")

CORRELATION_COLUMNS = (
    *("dataset", "measure", "key", "strength", "n"),
    *(f"{name}{end}" for name in COEFFICIENTS for end in ("", "_low", "_high")),
    "beats_parameters",
)


def correlate_measures(
    results: DatasetResults,
    tables: Sequence[pd.DataFrame] = (),
    *,
    keys: Sequence[str] | None = None,
    with_own: bool = True,
) -> pd.DataFrame:
    """Correlate every measure with the accuracies under every key and strength.

    Architectures that lack a measure or an accuracy under a key are left out of the rows of both; where fewer than
    `FEWEST` are left, there are no rows. Intervals are over architectures, at 95 % (see `statistics.rank_correlation`).

    Args:
        results: of a dataset.
        tables: joined tables (see `collect_measures`).
        keys: only the accuracies under these scores, keys and keys at strengths (see `terms.find_evaluations`).
        with_own: whether the measures of the results are correlated, beside those of the tables.

    Returns:
        One row per measure, key and strength: the columns of `CORRELATION_COLUMNS`. `kendall` is tau-b; `partial` is
        tau with the number of parameters and the clean accuracy held fixed, where they are known and not a side;
        `gain` is by how much the absolute tau exceeds that of the number of parameters, and `beats_parameters` whether
        its interval lies above 0. Each of the four has its interval in `_low` and `_high`; NaN where a side is the same
        for all architectures.
    """
    measures = collect_measures(results, tables, with_own=with_own)
    wanted = None if keys is None else {column for name in keys for column in find_evaluations(results, name)}
    chosen = [column for column in results.columns if wanted is None or column in wanted]
    rows = []
    # Key by key: memory grows with the square of the columns. Columns are known by their places, as measures may have
    # any name.
    for (names, group), key in product(_by_presence(measures), dict.fromkeys(key for key, _ in chosen)):
        strengths = [strength for name, strength in chosen if name == key]
        columns = [*group.items(), *((key, results.column(key, strength)) for strength in strengths)]
        size = clean = None
        if PARAMETERS in measures:
            size = len(columns)
            columns.append((PARAMETERS, measures[PARAMETERS]))
        if key != CLEAN and (CLEAN, CLEAN_STRENGTH) in results.columns:
            clean = len(columns)
            columns.append((CLEAN, results.column(CLEAN)))
        numbers = np.stack([column.to_numpy(np.float64) for _, column in columns], axis=1)
        numbers = numbers[~np.isnan(numbers).any(axis=1)]
        if len(numbers) < FEWEST:
            continue
        found = correlate_ranks(numbers)
        for place, measure in enumerate(names):
            given = [control for control in (None if measure == PARAMETERS else size, clean) if control is not None]
            for target, strength in enumerate(strengths, start=len(names)):
                rows.append(
                    {"dataset": results.name, "measure": measure, "key": key, "strength": strength, "n": len(numbers)}
                    | _row(found.kendall, found.spearman, (place, target), given, size)
                )
    frame = pd.DataFrame(rows, columns=list(CORRELATION_COLUMNS))
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
