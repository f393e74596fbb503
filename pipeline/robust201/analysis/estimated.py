"""Estimated accuracies from a sampled sweep, in rankings that also contain measured accuracies.

An estimate comes from a sample of the images. An accuracy is called measured if it comes from all images.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from robust201.reader.estimates import has_estimates, read_estimates
from robust201.reader.value_checks import parse_architecture_id
from robust201.statistics.intervals import NORMAL_QUANTILE

if TYPE_CHECKING:
    from robust201.analysis.dataset_results import DatasetResults


class EstimatedAccuracies(NamedTuple):
    """Estimated accuracies by architecture, under one evaluation or as means over several evaluations.

    Attributes:
        value: the estimates.
        standard_error: their standard errors.
        low: lower ends of their 95% intervals.
        high: upper ends of these intervals.
        n_seen: number of images in the smallest sample.
        n_images: number of all images.
    """

    value: "pd.Series[float]"
    standard_error: "pd.Series[float]"
    low: "pd.Series[float]"
    high: "pd.Series[float]"
    n_seen: int
    n_images: int


class EstimateTable:
    """The estimates of one dataset, which are read only once.

    Attributes:
        rows: the dataset's rows of `reader.estimates.read_estimates`; empty if there are no estimates.
    """

    def __init__(self, results: "DatasetResults") -> None:
        """Read the estimates of a dataset; it may have none.

        Raises:
            ResultsError: see `reader.estimates.read_estimates`.
        """
        self._results = results
        files = results.reader.files
        rows = read_estimates(files) if has_estimates(files) else pd.DataFrame(columns=["dataset"])
        rows = rows[rows["dataset"] == results.name]
        if not rows.empty:
            names = [parse_architecture_id(str(name)) for name in rows["architecture"]]
            rows = rows.assign(architecture=names, key=rows["key"].astype(str))
        self.rows = rows

    def find(self, evaluations: Sequence[tuple[str, float]]) -> EstimatedAccuracies | None:
        """Return the estimates under some evaluations, averaged over the evaluations; None if there are no estimates.

        The standard error of a mean is taken to be the mean of the standard errors. This is an upper bound for any
        correlation between the evaluations, which use the same images. Measured accuracies have no error.
        """
        if self.rows.empty:
            return None
        estimates = self.rows[pd.MultiIndex.from_frame(self.rows[["key", "strength"]]).isin(evaluations)]
        if estimates.empty:
            return None
        accuracies = self._results.accuracies
        by_evaluation = estimates.set_index(["architecture", "key", "strength"])
        columns = {}
        for name in ("value", "standard_error", "low", "high"):
            table = by_evaluation[name].unstack(["key", "strength"])
            for column in evaluations:
                if column not in table.columns:  # all networks are measured
                    measured_accuracies = accuracies[column].reindex(table.index)
                    table[column] = 0.0 if name == "standard_error" else measured_accuracies
            columns[name] = table[list(evaluations)].mean(axis=1, skipna=False).dropna()
        networks = columns["value"].index.intersection(accuracies.index)
        # The intervals account for the degrees of freedom, so they may be wider than normal intervals. The standard
        # error is raised accordingly, so that a normal test agrees with the intervals.
        half_width = (columns["high"] - columns["low"]) / 2
        standard_error = columns["standard_error"].clip(lower=half_width / NORMAL_QUANTILE)
        return EstimatedAccuracies(
            value=columns["value"].loc[networks],
            standard_error=standard_error.loc[networks],
            low=columns["low"].loc[networks],
            high=columns["high"].loc[networks],
            n_seen=int(estimates["n_seen"].min()),
            n_images=int(estimates["n_images"].max()),
        )

    def find_unmeasured(self, evaluation: tuple[str, float]) -> "tuple[EstimatedAccuracies, pd.Index[Any]] | None":
        """Return the estimates under an evaluation, and the networks that have an estimate but no measured accuracy.

        The result is None if there are no estimates.
        """
        estimates = self.find([evaluation])
        if estimates is None:
            return None
        is_unmeasured = self._results.accuracies[evaluation].loc[estimates.value.index].isna()
        return estimates, estimates.value.index[is_unmeasured.to_numpy()]


def describe_estimates(results: "DatasetResults", labels: Sequence[str], n_measured: Sequence[int]) -> str:
    """Describe which columns of a ranking contain estimates, and what their intervals refer to.

    Args:
        results: results of the networks.
        labels: labels of the columns that contain estimates.
        n_measured: number of networks in each of these columns whose accuracy was measured on all images.
    """
    rows = EstimateTable(results).rows
    min_measured, max_measured = min(n_measured), max(n_measured)
    n_measured_text = f"{min_measured:,}" if min_measured == max_measured else f"{min_measured:,} to {max_measured:,}"
    low, high = int(rows["n_seen"].min()), int(rows["n_seen"].max())
    n_seen_text = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return (
        f"Under {'; '.join(labels)}, accuracies marked ~ are estimates from {n_seen_text} "
        f"of {int(rows['n_images'].max()):,} images; the accuracies of {n_measured_text} networks were measured on all "
        "images. In these columns, 95% intervals and ties refer to the accuracy on all images, so measured accuracies "
        "have no error."
    )


def fill_in_estimates(results: "DatasetResults") -> tuple["DatasetResults", str]:
    """Replace missing measured accuracies by estimates.

    Returns:
        The results, and a note to show with them, which is empty if there are no estimates.
    """
    frame, table = results.accuracies.copy(), EstimateTable(results)
    n_filled: dict[str, int] = {}
    for key, strength in results.columns:
        if (estimates_and_networks := table.find_unmeasured((key, strength))) is not None:
            estimates, networks = estimates_and_networks
            frame.loc[networks, (key, strength)] = estimates.value.loc[networks]
            n_filled[key] = len(networks)
    if not n_filled:
        return results, ""
    filled = ", ".join(f"{key}: {count:,} of {len(frame):,}" for key, count in n_filled.items())
    note = (
        f"Some accuracies of {results.name} are estimates from samples of the images, because they were not measured "
        f"on all images ({filled} networks). The errors of the estimates weaken correlations."
    )
    return replace(results, accuracies=frame), note


def read_standard_errors(results: "DatasetResults") -> pd.DataFrame:
    """Return the standard errors of the accuracies that `fill_in_estimates` returns; 0 for measured accuracies."""
    errors = pd.DataFrame(0.0, index=results.accuracies.index, columns=results.accuracies.columns)
    table = EstimateTable(results)
    for evaluation in results.columns:
        if (estimates_and_networks := table.find_unmeasured(evaluation)) is not None:
            estimates, networks = estimates_and_networks
            errors.loc[networks, evaluation] = estimates.standard_error.loc[networks]
    return errors
