"""Rank correlations of measures of networks with their accuracies under every key.

The baseline is the number of parameters: a measure that correlates with accuracies no better than this number may only
reflect the network's size. Partial correlations control for the number of parameters and the clean accuracy.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.network_costs import PARAMETERS
from robust201.analysis.terms import collect_measures, find_evaluations
from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import CLEAN
from robust201.statistics.rank_correlation import Coefficients, correlate_ranks

MIN_ARCHITECTURES = 8
"""Minimum number of architectures for a correlation."""

COEFFICIENTS = ("kendall", "partial", "gain")

CORRELATION_COLUMNS = (
    *("dataset", "measure", "key", "strength", "n"),
    *(f"{name}{suffix}" for name in COEFFICIENTS for suffix in ("", "_low", "_high")),
    "beats_parameters",
)


def correlate_measures(
    results: DatasetResults, table: pd.DataFrame | None = None, *, keys: Sequence[str] | None = None
) -> pd.DataFrame:
    """Correlate every measure with the accuracies under every key and strength.

    A correlation is over the architectures that have the measure, the accuracies at all of the key's (selected)
    strengths and, if known, the number of parameters and the clean accuracy. Rows with fewer than `MIN_ARCHITECTURES`
    architectures are left out. Intervals are 95% intervals over architectures (see `statistics.rank_correlation`).

    Args:
        results: results of a dataset.
        table: measures to use instead of the measures in `results` (see `collect_measures`).
        keys: names of accuracies: scores, keys or keys at a strength (see `terms.find_evaluations`); None for all.

    Returns:
        One row per measure, key and strength, with the columns of `CORRELATION_COLUMNS`. `kendall` is tau-b. `partial`
        is tau controlled for the number of parameters and the clean accuracy; a control is left out if it is
        unknown or is itself one of the two correlated quantities. `gain` is the absolute tau minus the absolute tau of
        the number of parameters, and `beats_parameters` is whether the interval of the gain lies above 0. The interval
        of each of the three coefficients is in the columns with the suffixes `_low` and `_high`. Coefficients and
        intervals are NaN if the measure or the accuracy is constant; `gain` also if no number of parameters is known.
    """
    measures = collect_measures(results, table)
    selected = None if keys is None else {column for name in keys for column in find_evaluations(results, name)}
    evaluations = [column for column in results.columns if selected is None or column in selected]
    rows = []
    # Keys are processed one by one, because memory grows with the square of the number of columns. Columns are
    # addressed by index, because measures may have any name.
    for (measure_names, group), key in product(_group_by_architectures(measures), dict(evaluations)):
        strengths = [strength for name, strength in evaluations if name == key]
        columns = [*group.items(), *((key, results.column(key, strength)) for strength in strengths)]
        parameters_index = clean_index = None
        if PARAMETERS in measures:
            parameters_index = len(columns)
            columns.append((PARAMETERS, measures[PARAMETERS]))
        if key != CLEAN and (CLEAN, CLEAN_STRENGTH) in results.columns:
            clean_index = len(columns)
            columns.append((CLEAN, results.column(CLEAN)))
        values = np.stack([column.to_numpy(np.float64) for _, column in columns], axis=1)
        complete_values = values[~np.isnan(values).any(axis=1)]
        if len(complete_values) < MIN_ARCHITECTURES:
            continue
        kendall = correlate_ranks(complete_values)
        for measure_index, measure in enumerate(measure_names):
            size_control = None if measure == PARAMETERS else parameters_index
            controls = [control for control in (size_control, clean_index) if control is not None]
            for target_index, strength in enumerate(strengths, start=len(measure_names)):
                identity = (results.name, measure, key, strength, len(complete_values))
                coefficients = _correlation_row(kendall, measure_index, target_index, controls, parameters_index)
                rows.append(dict(zip(CORRELATION_COLUMNS, identity, strict=False)) | coefficients)
    frame = pd.DataFrame(rows, columns=list(CORRELATION_COLUMNS))
    positions = {name: position for position, name in enumerate(measures.columns)}
    return frame.sort_values("measure", key=lambda names: names.map(positions), kind="stable", ignore_index=True)


def _group_by_architectures(measures: pd.DataFrame) -> list[tuple[list[str], pd.DataFrame]]:
    """Group measures that exist for the same architectures, so that each group is ranked only once."""
    groups: dict[bytes, list[str]] = {}
    for name in measures:
        groups.setdefault(measures[name].isna().to_numpy().tobytes(), []).append(str(name))
    return [(names, measures[names]) for names in groups.values()]


def _correlation_row(
    kendall: Coefficients, measure_index: int, target_index: int, controls: Sequence[int], parameters_index: int | None
) -> dict[str, object]:
    intervals = {
        "kendall": kendall.interval(measure_index, target_index),
        "partial": kendall.partial_correlation(measure_index, target_index, controls),
        "gain": kendall.gain(measure_index, parameters_index, target_index) if parameters_index is not None else None,
    }
    row: dict[str, object] = {"beats_parameters": intervals["gain"] is not None and intervals["gain"].low > 0}
    for name, interval in intervals.items():
        estimate_and_ends = (np.nan,) * 3 if interval is None else interval
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), estimate_and_ends, strict=True))
    return row
