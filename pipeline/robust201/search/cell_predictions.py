"""Predictions of accuracies of cells that were not evaluated, their quality, and the choice of cells to evaluate next.

Cells are evaluated and predicted by isomorphism class. Predictions are never stored as accuracies of a dataset. They
have a separate file, whose column names mark them as predictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.terms import require_evaluations
from robust201.core.csv_files import write_csv
from robust201.core.errors import ConfigError, ResultsError
from robust201.core.files import atomic_write
from robust201.reader.result_files import evaluation_names
from robust201.search.cell_features import make_cell_features
from robust201.spaces.cell_space import CellSpace
from robust201.statistics.prediction import GaussianProcess, choose_for_best, choose_for_ranking

_Floats = NDArray[np.float64]

MIN_CELLS = 10
"""Minimum number of evaluated cells for predictions."""

N_FOLDS = 5
WEAK_TAU = 0.5
"""Kendall's tau on left-out cells below which predictions are called weak."""

_MAX_ACCURACY = 0.995
"""Accuracies above this value, or below 1 minus this value, are clipped before their log-odds are computed."""

Aim = Literal["ranking", "best"]
AIMS: tuple[Aim, ...] = ("ranking", "best")

COLUMNS = (
    *("dataset", "key", "strength", "architecture", "cell", "predicted_accuracy", "predicted_low", "predicted_high"),
    "level",
)


class Quality(NamedTuple):
    """Quality of predictions of left-out cells, for one key and strength.

    Attributes:
        key: the key.
        strength: the strength.
        coverage: fraction of the intervals that contain the accuracy.
        half_width: median half-width of the intervals.
        kendall: Kendall's tau between predictions and accuracies; NaN if all predictions are equal.
        r_squared: 1 minus the ratio of the mean squared error to the variance of the accuracies.
    """

    key: str
    strength: float
    coverage: float
    half_width: float
    kendall: float
    r_squared: float


@dataclass(frozen=True, eq=False)
class CellPredictions:
    """Predictions for one dataset.

    Attributes:
        dataset: name of the dataset.
        n_evaluated: number of evaluated cells, from which the predictions are made.
        level: nominal coverage of the intervals.
        frame: table with the columns `COLUMNS`; one row per evaluation and per class of cells that was not evaluated.
        quality: quality for each evaluation, measured on left-out cells.
        constant_evaluations: key, strength and accuracy of evaluations that are not predicted, because all evaluated
            cells have the same accuracy.
    """

    dataset: str
    n_evaluated: int
    level: float
    frame: pd.DataFrame
    quality: tuple[Quality, ...]
    constant_evaluations: tuple[tuple[str, float, float], ...] = ()

    @property
    def is_weak(self) -> bool:
        """Whether the median over evaluations of Kendall's tau on left-out cells is below `WEAK_TAU` or unknown."""
        taus = [quality.kendall for quality in self.quality]
        return not np.nanmedian(taus) >= WEAK_TAU if not np.isnan(taus).all() else True


@dataclass(frozen=True, eq=False)
class _Problem:
    """A prediction problem: the features of all cells, and the accuracies of the evaluated cells.

    Attributes:
        space: the space.
        features: (n, F) features of all cells, by cell index.
        evaluated_cells: (m,) indices of the evaluated cells.
        accuracies: (m, E) accuracies of the evaluated cells.
        evaluations: (key, strength) of each column of the accuracies.
        variances: (m, E) squared standard errors of the accuracies, if known.
        constant_evaluations: see `CellPredictions`.
    """

    space: CellSpace
    features: _Floats
    evaluated_cells: NDArray[np.int64]
    accuracies: _Floats
    evaluations: list[tuple[str, float]]
    variances: _Floats | None
    constant_evaluations: tuple[tuple[str, float, float], ...]

    @property
    def targets(self) -> _Floats:
        return _to_log_odds(self.accuracies)

    @property
    def target_variances(self) -> _Floats | None:
        """Variances of the log-odds, by the delta method."""
        if self.variances is None:
            return None
        clipped = np.clip(self.accuracies, 1 - _MAX_ACCURACY, _MAX_ACCURACY)
        scaled: _Floats = self.variances / (clipped * (1 - clipped)) ** 2
        return scaled

    @property
    def unevaluated_classes(self) -> NDArray[np.int64]:
        """Indices that represent the classes of cells that were not evaluated."""
        return np.setdiff1d(np.asarray(self.space.isomorphs()), self.evaluated_cells)


def predict_cells(
    results: DatasetResults,
    names: Sequence[str] | None = None,
    *,
    measures: pd.DataFrame | None = None,
    standard_errors: pd.DataFrame | None = None,
    level: float = 0.9,
    seed: int = 0,
) -> CellPredictions:
    """Predict the accuracies of all classes of cells that were not evaluated.

    Args:
        results: the evaluated cells.
        names: names of the evaluations to predict: scores, keys, or keys at a strength; by default all.
        measures: table with the column `architecture` and measures of all cells, which become additional features.
        standard_errors: standard errors by architecture and evaluation, like `results.accuracies`; 0 for exact
            accuracies. Accuracies with larger errors have less weight.
        level: nominal coverage of the intervals.
        seed: seed of the folds, and of the subset of cells to which the Gaussian process's kernel is fitted if there
            are many.

    Raises:
        ConfigError: the architectures are not cells, or a name matches no evaluation.
        ResultsError: too few cells were evaluated, or each evaluation has the same accuracy for all cells.
    """
    problem = _make_problem(results, names, measures, standard_errors)
    unevaluated_classes = problem.unevaluated_classes
    process = GaussianProcess(seed=seed)
    process.fit(problem.features[problem.evaluated_cells], problem.targets, problem.target_variances)
    predicted_log_odds = process.predict_intervals(problem.features[unevaluated_classes], level)
    specs, evaluations = problem.space.specs(), problem.evaluations
    value, low, high = (
        _to_accuracies(log_odds)
        for log_odds in (predicted_log_odds.value, predicted_log_odds.low, predicted_log_odds.high)
    )
    frames = [
        pd.DataFrame(
            {
                "dataset": results.name,
                "key": key,
                "strength": strength,
                "architecture": unevaluated_classes,
                "cell": [specs[cell] for cell in unevaluated_classes],
                "predicted_accuracy": value[:, column],
                "predicted_low": low[:, column],
                "predicted_high": high[:, column],
                "level": level,
            }
        )
        for column, (key, strength) in enumerate(evaluations)
    ]
    frame = pd.concat(frames, ignore_index=True)
    quality = _measure_quality(problem, level, seed)
    return CellPredictions(
        results.name, len(problem.evaluated_cells), level, frame, quality, problem.constant_evaluations
    )


def choose_next(
    results: DatasetResults,
    names: Sequence[str] | None,
    count: int,
    aim: Aim,
    *,
    allowed: Sequence[int] | None = None,
    standard_errors: pd.DataFrame | None = None,
    seed: int = 0,
) -> list[int]:
    """Choose the classes of cells to evaluate next, the most useful first.

    Args:
        results: the evaluated cells.
        names: names of evaluations, by default all. The best cell is the one with the highest mean of the standardised
            accuracies of these evaluations.
        count: number of cells to choose.
        aim: ``ranking`` to reduce the uncertainty of all cells, or ``best`` to look for the best cell.
        allowed: cells to choose from, such as the cells of a sweep; by default all.
        standard_errors: see `predict_cells`.
        seed: see `predict_cells`.

    Raises:
        ConfigError: see `predict_cells`; or fewer cells than `count` can be chosen.
        ResultsError: see `predict_cells`.
    """
    problem = _make_problem(results, names, None, standard_errors)
    unevaluated_classes = problem.unevaluated_classes
    selectable_classes = (
        unevaluated_classes if allowed is None else np.intersect1d(unevaluated_classes, np.asarray(allowed))
    )
    if len(selectable_classes) < count:
        raise ConfigError(
            f"Choosing cells failed for {results.name}: --next must be at most {len(selectable_classes):,}, the number "
            f"of cells that can be chosen, not {count:,}. Choose a smaller number."
        )
    process = GaussianProcess(seed=seed)
    process.fit(problem.features[problem.evaluated_cells], problem.targets, problem.target_variances)
    classes = np.unique(problem.space.isomorphs())
    covariance = process.posterior_covariance(problem.features[classes])
    is_candidate = np.isin(classes, selectable_classes)
    if aim == "ranking":
        chosen_positions = choose_for_ranking(covariance, is_candidate, process.noise, count)
    else:
        mean = process.standardise(process.predict(problem.features[classes])).mean(axis=1)
        chosen_positions = choose_for_best(mean, covariance, is_candidate, process.noise, count)
    return [int(classes[position]) for position in chosen_positions]


def _make_problem(
    results: DatasetResults,
    names: Sequence[str] | None,
    measures: pd.DataFrame | None,
    standard_errors: pd.DataFrame | None,
) -> _Problem:
    space = results.space
    if space is None:
        raise ConfigError(
            f"Predicting failed for {results.name}: its architectures are not cells, but accuracies are predicted from "
            "the operations of cells. Choose a dataset of cells."
        )
    requested_evaluations = [evaluation for name in names or () for evaluation in require_evaluations(results, name)]
    evaluations = list(dict.fromkeys(results.columns if names is None else requested_evaluations))
    accuracies = results.accuracies[evaluations].dropna()
    if len(accuracies) < MIN_CELLS:
        raise ResultsError(
            f"Predicting failed for {results.name}: expected at least {MIN_CELLS} cells with all accuracies, got "
            f"{len(accuracies)}. Evaluate more cells, or name fewer keys with --keys."
        )
    values = accuracies.to_numpy(np.float64)
    constant_columns = np.flatnonzero(np.ptp(_to_log_odds(values), axis=0) < 1e-9)
    if len(constant_columns) == len(evaluations):
        name = evaluation_names([evaluations[0]])[0]
        raise ResultsError(
            f"Predicting failed for {results.name}: all cells have the same accuracy under {name} ({values[0, 0]:g})"
            f"{' and under every other evaluation' if len(constant_columns) > 1 else ''}. Choose other keys or "
            "strengths."
        )
    varying_columns = np.setdiff1d(np.arange(len(evaluations)), constant_columns)
    constant_accuracies = tuple((*evaluations[column], float(values[0, column])) for column in constant_columns)
    evaluations = [evaluations[column] for column in varying_columns]
    variances = None
    if standard_errors is not None:
        errors = standard_errors.reindex(index=accuracies.index, columns=pd.MultiIndex.from_tuples(evaluations))
        variances = errors.fillna(0.0).to_numpy(np.float64) ** 2
    features = make_cell_features(space)
    if measures is not None:
        features = np.concatenate(
            [features, _make_measure_features(results, space, measures, accuracies.index)], axis=1
        )
    return _Problem(
        space,
        features,
        accuracies.index.to_numpy(np.int64),
        values[:, varying_columns],
        evaluations,
        variances,
        constant_accuracies,
    )


def _make_measure_features(
    results: DatasetResults, space: CellSpace, measures: pd.DataFrame, evaluated_cells: "pd.Index[Any]"
) -> _Floats:
    """Return features of all cells: the normal scores of each measure's ranks, or 0 if the measure is missing.

    Isomorphic cells have equal features.
    """
    from scipy.special import ndtri
    from scipy.stats import rankdata

    isomorphs = np.asarray(space.isomorphs())
    table = measures.set_index("architecture").reindex(np.unique(isomorphs))
    if table.shape[1] == 0:
        raise ConfigError(
            f"Predicting failed for {results.name}: the folders of --measures have no measures. Measure all cells "
            "(docs/measures.md), or omit --measures."
        )
    is_measured = table.notna().all(axis=1)
    if not is_measured.loc[evaluated_cells].all() or is_measured.mean() < 0.5:
        raise ConfigError(
            f"Predicting failed for {results.name}: --measures must cover all evaluated cells and at least half of "
            f"all cells, but covers {int(is_measured.sum()):,} of {len(is_measured):,}. Measure all cells "
            "(docs/measures.md), or omit --measures."
        )
    columns = []
    for column in (table[name] for name in table):
        measure_values = column.to_numpy(np.float64)
        normal_scores = np.zeros(len(measure_values))
        is_present = ~np.isnan(measure_values)
        normal_scores[is_present] = ndtri(rankdata(measure_values[is_present]) / (is_present.sum() + 1))
        columns.append(normal_scores)
    features_by_class = np.stack(columns, axis=1) / np.sqrt(len(columns))
    class_positions: NDArray[np.int64] = np.searchsorted(table.index.to_numpy(), isomorphs)
    features: _Floats = features_by_class[class_positions]
    return features


def _measure_quality(problem: _Problem, level: float, seed: int) -> tuple[Quality, ...]:
    """Predict each fold of the evaluated cells from the other folds, and compare the result with the accuracies."""
    from scipy.stats import kendalltau

    points, targets, variances = problem.features[problem.evaluated_cells], problem.targets, problem.target_variances
    fold_of_cell = np.random.default_rng(seed).permutation(len(points)) % N_FOLDS
    value, low, high = (np.empty_like(targets) for _ in range(3))
    for is_left_out in (fold_of_cell == fold for fold in range(N_FOLDS)):
        fitted_rows = np.flatnonzero(~is_left_out)
        is_varying = np.ptp(targets[fitted_rows], axis=0) > 1e-9
        if not is_varying.any():
            for array in (value, low, high):
                array[is_left_out] = targets[fitted_rows[0]]
            continue
        process = GaussianProcess(seed=seed)
        process.fit(
            points[fitted_rows],
            targets[fitted_rows][:, is_varying],
            None if variances is None else variances[fitted_rows][:, is_varying],
        )
        predicted_log_odds = process.predict_intervals(points[is_left_out], level)
        for array, predictions in (
            (value, predicted_log_odds.value),
            (low, predicted_log_odds.low),
            (high, predicted_log_odds.high),
        ):
            array[is_left_out] = targets[fitted_rows[0]]  # for columns that are constant in the other folds
            array[np.ix_(is_left_out, is_varying)] = predictions
    accuracies, predicted_accuracies = problem.accuracies, _to_accuracies(value)
    is_covered = (_to_accuracies(low) <= accuracies + 1e-12) & (accuracies - 1e-12 <= _to_accuracies(high))
    half_widths = np.median(_to_accuracies(high) - _to_accuracies(low), axis=0) / 2
    relative_errors = ((predicted_accuracies - accuracies) ** 2).mean(axis=0) / accuracies.var(axis=0)
    return tuple(
        Quality(
            *problem.evaluations[column],
            float(is_covered[:, column].mean()),
            float(half_widths[column]),
            float(kendalltau(predicted_accuracies[:, column], accuracies[:, column]).statistic),
            float(1 - relative_errors[column]),
        )
        for column in range(accuracies.shape[1])
    )


def _to_log_odds(accuracies: _Floats) -> _Floats:
    clipped = np.clip(accuracies, 1 - _MAX_ACCURACY, _MAX_ACCURACY)
    log_odds: _Floats = np.log(clipped / (1 - clipped))
    return log_odds


def _to_accuracies(log_odds: _Floats) -> _Floats:
    """Convert log-odds to accuracies; log-odds at or beyond the clipping bounds become accuracy 0 or 1."""
    from scipy.special import expit

    max_log_odds = np.log(_MAX_ACCURACY / (1 - _MAX_ACCURACY)) - 1e-9
    accuracies: _Floats = np.where(
        log_odds >= max_log_odds, 1.0, np.where(log_odds <= -max_log_odds, 0.0, expit(log_odds))
    )
    return accuracies


def write_predictions(path: Path, frame: pd.DataFrame) -> None:
    """Write predictions as Parquet or CSV, according to the suffix of the path."""
    check_prediction_file(path)
    if path.suffix == ".csv":
        write_csv(path, frame)
        return
    with atomic_write(path) as stream:
        frame.to_parquet(stream, index=False)


def check_prediction_file(path: Path) -> None:
    """Raise ConfigError unless the suffix of a path is .parquet or .csv."""
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(
            f"Writing predictions failed for {path}: expected the suffix .parquet or .csv, got "
            f"{path.suffix or 'none'}. Choose another name."
        )


def read_predictions(path: Path, dataset: str) -> pd.DataFrame:
    """Read the predicted accuracies for a dataset: one row per architecture, one column per (key, strength).

    Raises:
        ResultsError: the file is missing or was not written by `write_predictions`, or it has invalid accuracies or
            several predictions of the same accuracy.
        ConfigError: the file has no predictions for the dataset.
    """
    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise ResultsError(
            f"Reading predictions failed for {path}: expected a file that robust201 predict wrote, got "
            f"{'no file' if isinstance(error, FileNotFoundError) else 'other content'}. Write it with: "
            "robust201 predict"
        ) from error
    if not set(COLUMNS) <= set(frame.columns):
        raise ResultsError(
            f"Reading predictions failed for {path}: expected a file that robust201 predict wrote, got a table without "
            f"{', '.join(name for name in COLUMNS if name not in frame.columns)}. Write it with: robust201 predict"
        )
    rows = frame[frame["dataset"] == dataset]
    if rows.empty and not frame.empty:  # an empty file means that all cells had been evaluated
        predicted_datasets = ", ".join(map(str, frame["dataset"].unique()))
        raise ConfigError(
            f"Reading predictions failed for {path}: expected predictions for {dataset}, got predictions for "
            f"{predicted_datasets}. Choose another file or dataset."
        )
    try:
        rows = rows.astype({"architecture": np.int64, "strength": np.float64, "predicted_accuracy": np.float64})
        predicted_accuracies = rows.pivot(
            index="architecture", columns=["key", "strength"], values="predicted_accuracy"
        )
    except (TypeError, ValueError) as error:  # `pivot` raises an error for duplicates
        raise ResultsError(
            f"Reading predictions failed for {path}: it must contain numbers, and one row per cell, key and strength "
            f"({error}). Write the file again with: robust201 predict"
        ) from error
    if not rows["predicted_accuracy"].between(0, 1).all():
        raise ResultsError(
            f"Reading predictions failed for {path}: some accuracies are not between 0 and 1. Write the file again "
            "with: robust201 predict"
        )
    return predicted_accuracies


def fill_accuracies(accuracies: pd.DataFrame, path: Path, dataset: str) -> pd.DataFrame:
    """Return the accuracies, with a file's predictions for cells that have none (see `DatasetResults.accuracies`).

    Raises:
        ResultsError: see `read_predictions`.
        ConfigError: see `read_predictions`, or the file predicts none of the dataset's evaluations.
    """
    predicted_accuracies = read_predictions(path, dataset)
    if predicted_accuracies.empty:
        return accuracies
    common_columns = [column for column in accuracies.columns if column in predicted_accuracies.columns]
    if not common_columns:
        columns: list[Any] = list(predicted_accuracies.columns)
        raise ConfigError(
            f"Reading predictions failed for {path}: {dataset} has none of the predicted evaluations "
            f"({', '.join(evaluation_names(columns)[:5])}). Use predictions that were made from this dataset."
        )
    is_missing = ~predicted_accuracies.index.isin(accuracies.index)
    added_accuracies = predicted_accuracies.loc[is_missing, common_columns]
    return pd.concat([accuracies, added_accuracies.reindex(columns=accuracies.columns)]).sort_index()
