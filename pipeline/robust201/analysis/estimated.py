"""Estimates from a sampled sweep next to full counts: the numbers that a ranking needs, and their description."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from robust201.reader.estimates import has_estimates, read_estimates
from robust201.reader.value_checks import architecture_of
from robust201.statistics.intervals import NORMAL_QUANTILE

if TYPE_CHECKING:
    from robust201.analysis.dataset_results import DatasetResults


class EstimatedAccuracies(NamedTuple):
    """Estimated accuracies of networks, by architecture: for one evaluation, or for the mean over several.

    Attributes:
        n_seen: size of the smallest sample among them.
        n_images: number of all images.
    """

    value: "pd.Series[float]"
    standard_error: "pd.Series[float]"
    low: "pd.Series[float]"
    high: "pd.Series[float]"
    n_seen: int
    n_images: int


def find_estimates(results: "DatasetResults", evaluations: Sequence[tuple[str, float]]) -> EstimatedAccuracies | None:
    """Return estimates for networks without counts, averaged over the evaluations; None if there are none.

    For a mean over evaluations on the same images, the mean of their standard errors is an upper bound and is used;
    counted evaluations have no error.
    """
    files = results.reader.files
    if not has_estimates(files):
        return None
    frame = read_estimates(files)
    frame = frame[frame["dataset"] == results.name]
    estimates = frame[pd.MultiIndex.from_frame(frame[["key", "strength"]].astype({"key": str})).isin(evaluations)]
    if estimates.empty:
        return None
    names = [architecture_of(str(name)) for name in estimates["architecture"]]
    by_architecture = estimates.assign(architecture=names, key=estimates["key"].astype(str)).set_index(["architecture"])
    columns = {}
    for name in ("value", "standard_error", "low", "high"):
        table = by_architecture.set_index(["key", "strength"], append=True)[name].unstack(["key", "strength"])
        for column in evaluations:
            if column not in table.columns:  # counted
                counts = results.accuracies[column].reindex(table.index)
                table[column] = 0.0 if name == "standard_error" else counts
        columns[name] = table[list(evaluations)].mean(axis=1, skipna=False).dropna()
    kept = columns["value"].index.intersection(results.accuracies.index)
    # The intervals allow for degrees of freedom; with this error, a normal test agrees with them.
    half_width = (columns["high"] - columns["low"]) / 2
    standard_error = columns["standard_error"].clip(lower=half_width / NORMAL_QUANTILE)
    return EstimatedAccuracies(
        value=columns["value"].loc[kept],
        standard_error=standard_error.loc[kept],
        low=columns["low"].loc[kept],
        high=columns["high"].loc[kept],
        n_seen=int(estimates["n_seen"].min()),
        n_images=int(estimates["n_images"].max()),
    )


def describe_estimates(results: "DatasetResults", labels: Sequence[str], n_counted: Sequence[int]) -> str:
    """Describe which columns of a ranking mix estimates with counts, and what their intervals refer to."""
    frame = read_estimates(results.reader.files)
    frame = frame[frame["dataset"] == results.name]
    min_counted, max_counted = min(n_counted), max(n_counted)
    n_counted_text = f"{min_counted:,}" if min_counted == max_counted else f"{min_counted:,} to {max_counted:,}"
    low, high = int(frame["n_seen"].min()), int(frame["n_seen"].max())
    n_seen_text = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return (
        f"Under {'; '.join(labels)}, accuracies marked ~ are estimates from {n_seen_text} "
        f"of {int(frame['n_images'].max()):,} images; {n_counted_text} networks were counted on all. There, intervals "
        "(95%) and ties refer to the accuracy on all these images, in which counts are certain."
    )


def fill_in_estimates(results: "DatasetResults") -> tuple["DatasetResults", str]:
    """Replace missing counts by estimates; return the results and the note to show with them.

    The note is empty if there are no estimates.
    """
    frame = results.accuracies.copy()
    n_filled: dict[str, int] = {}
    for key, strength in results.columns:
        estimates = find_estimates(results, [(key, strength)])
        if estimates is not None:
            is_missing = frame[(key, strength)].loc[estimates.value.index].isna()
            missing = estimates.value.index[is_missing.to_numpy()]
            frame.loc[missing, (key, strength)] = estimates.value.loc[missing]
            n_filled[key] = len(missing)
    if not n_filled:
        return results, ""
    filled = ", ".join(f"{key}: {count:,} of {len(frame):,}" for key, count in n_filled.items())
    note = (
        f"Some accuracies of {results.name} are estimates from samples of the images, because they were not counted "
        f"({filled} networks); their errors weaken correlations."
    )
    return replace(results, accuracies=frame), note


def read_standard_errors(results: "DatasetResults") -> pd.DataFrame:
    """Return the standard errors of the accuracies that `fill_in_estimates` returns; 0 for counts."""
    errors = pd.DataFrame(0.0, index=results.accuracies.index, columns=results.accuracies.columns)
    for evaluation in results.columns:
        estimates = find_estimates(results, [evaluation])
        if estimates is not None:
            is_missing = results.accuracies[evaluation].loc[estimates.value.index].isna()
            names = estimates.value.index[is_missing.to_numpy()]
            errors.loc[names, evaluation] = estimates.standard_error.loc[names]
    return errors
