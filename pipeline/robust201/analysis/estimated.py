"""Estimates of a sampled sweep beside counts: what a ranking needs of them, and the words that say so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from robust201.reader.estimates import has_estimates, read_estimates
from robust201.reader.value_checks import architecture_of

if TYPE_CHECKING:
    from robust201.analysis.dataset_results import DatasetResults


NORMAL_QUANTILE = 1.959963984540054
"""Of 97.5%."""


class EstimatedAccuracies(NamedTuple):
    """Estimates of networks, by architecture: of one evaluation, or of the mean over several.

    Attributes:
        n_seen: images of the smallest sample among them.
        n_images: all images.
    """

    value: "pd.Series[float]"
    standard_error: "pd.Series[float]"
    low: "pd.Series[float]"
    high: "pd.Series[float]"
    n_seen: int
    n_images: int


def find_estimates(results: "DatasetResults", evaluations: Sequence[tuple[str, float]]) -> EstimatedAccuracies | None:
    """Find the estimates of some evaluations, for networks that lack counts; None where there are none.

    Of a mean over evaluations that share their images, the standard error is at most the mean of theirs, which is
    taken; evaluations that were counted have none.
    """
    files = results.reader.files
    if not has_estimates(files):
        return None
    frame = read_estimates(files)
    frame = frame[frame["dataset"] == results.name]
    wanted = frame[pd.MultiIndex.from_frame(frame[["key", "strength"]].astype({"key": str})).isin(evaluations)]
    if wanted.empty:
        return None
    names = [architecture_of(str(name)) for name in wanted["architecture"]]
    by_name = wanted.assign(architecture=names, key=wanted["key"].astype(str)).set_index(["architecture"])
    columns = {}
    for name in ("value", "standard_error", "low", "high"):
        table = by_name.set_index(["key", "strength"], append=True)[name].unstack(["key", "strength"])
        for column in evaluations:
            if column not in table.columns:  # counted
                counts = results.accuracies[column].reindex(table.index)
                table[column] = 0.0 if name == "standard_error" else counts
        columns[name] = table[list(evaluations)].mean(axis=1, skipna=False).dropna()
    kept = columns["value"].index.intersection(results.accuracies.index)
    # Degrees of freedom are in the interval: a test with the error that it stands for agrees with it.
    half_width = (columns["high"] - columns["low"]) / 2
    standard_error = columns["standard_error"].clip(lower=half_width / NORMAL_QUANTILE)
    return EstimatedAccuracies(
        value=columns["value"].loc[kept],
        standard_error=standard_error.loc[kept],
        low=columns["low"].loc[kept],
        high=columns["high"].loc[kept],
        n_seen=int(wanted["n_seen"].min()),
        n_images=int(wanted["n_images"].max()),
    )


def describe_estimates(results: "DatasetResults", labels: Sequence[str], n_counted: Sequence[int]) -> str:
    """Say which columns of a ranking hold estimates beside how many counts, and what their intervals mean."""
    frame = read_estimates(results.reader.files)
    frame = frame[frame["dataset"] == results.name]
    least, most = min(n_counted), max(n_counted)
    counted = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    low, high = int(frame["n_seen"].min()), int(frame["n_seen"].max())
    seen = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return (
        f"Under {'; '.join(labels)}, accuracies marked ~ are estimates from {seen} "
        f"of {int(frame['n_images'].max()):,} images; {counted} networks were counted on all. There, intervals (95%) "
        "and ties are of the accuracy on all these images, in which counts are certain."
    )


def fill_in_estimates(results: "DatasetResults") -> tuple["DatasetResults", str]:
    """Put estimates where networks lack counts; return the results, and the sentence that must stand beside them.

    The sentence is empty where there are no estimates.
    """
    frame = results.accuracies.copy()
    n_filled: dict[str, int] = {}
    for key, strength in results.columns:
        found = find_estimates(results, [(key, strength)])
        if found is not None:
            is_missing = frame[(key, strength)].loc[found.value.index].isna()
            lacking = found.value.index[is_missing.to_numpy()]
            frame.loc[lacking, (key, strength)] = found.value.loc[lacking]
            n_filled[key] = len(lacking)
    if not n_filled:
        return results, ""
    shown = ", ".join(f"{key}: {count:,} of {len(frame):,}" for key, count in n_filled.items())
    said = (
        f"Estimates from samples of the images stand for accuracies of {results.name} that were not counted ({shown} "
        "networks); their errors weaken correlations."
    )
    return replace(results, accuracies=frame), said


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
