"""Variation of accuracies over training seeds."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def summarise_seeds(accuracies: ArrayLike) -> tuple[NDArray[np.float64], float]:
    """Summarise accuracies (A, S) of A architectures over S training seeds; NaN means a missing training run.

    The deviation over seeds is due both to the seeds and to the sampling of the images.

    Returns:
        The standard deviation (A,) of each architecture over its seeds (ddof 1), and the pooled standard deviation of
        all architectures. The first is NaN for an architecture with fewer than two seeds, and the second is NaN if
        there are only such architectures.
    """
    accuracy_array = np.asarray(accuracies, np.float64)
    n_runs = (~np.isnan(accuracy_array)).sum(axis=1)
    mean = np.nansum(accuracy_array, axis=1) / np.maximum(n_runs, 1)
    squares = np.nansum((accuracy_array - mean[:, None]) ** 2, axis=1)
    df = int(np.maximum(n_runs - 1, 0).sum())
    deviation = np.sqrt(np.where(n_runs > 1, squares / np.maximum(n_runs - 1, 1), np.nan))
    return deviation, float(np.sqrt(squares.sum() / df)) if df else float("nan")
