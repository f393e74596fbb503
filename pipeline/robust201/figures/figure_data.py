"""The numbers in the figures, as DataFrames. The module `specifications` draws them.

Functions that compute a frame from `results` return an empty frame if the results do not suffice for the figure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from robust201.analysis.class_summaries import CLASS_CONFIDENCES, CONFIDENCES
from robust201.analysis.dataset_results import ADVERSARIAL, SCORE_KINDS, SCORES, DatasetResults, quartiles
from robust201.analysis.labels import column_label, dataset_label, key_label, measure_label, strength_label
from robust201.analysis.measure_correlations import correlate_measures
from robust201.analysis.measure_folders import read_measure_folders
from robust201.analysis.network_costs import MACS
from robust201.analysis.ranking import nearest_strength, order_networks
from robust201.analysis.terms import measure_name
from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import CLEAN
from robust201.networks.spaces import CellSpace
from robust201.statistics.intervals import NORMAL_QUANTILE, accuracy_intervals, mean_intervals
from robust201.statistics.pareto import non_dominated_mask
from robust201.statistics.rank_correlation import kendall_taus

FENCE = 1.5
"""Whiskers end at the most extreme accuracy within this many interquartile ranges of the box (Tukey)."""

MAX_SHOWN_OUTLIERS = 15
"""Maximum number of outliers that are shown at either end of a box."""

FAR_POINT_FENCE = 3.0
"""A point is far from the others if it lies more than this many interquartile ranges from the quartiles (Tukey)."""

MAX_FAR_FRACTION = 0.1
"""Maximum fraction of far points that an axis may leave out; if more points are far, the axis shows all points."""

MIN_SHORTENING = 1.25
"""Minimum factor by which leaving out far points must shorten an axis."""

AXIS_STEP = 0.05
"""Axes of box plots begin and end at multiples of this accuracy."""

MAX_TOP_CELLS = 20
"""Maximum number of cells that `top_cells` returns for a score."""

FAR_STRENGTH = 4.0
"""The largest strength is far from the others if it is more than this many times the second largest."""

SHOWN_CLASS = 0
"""Class in the figure of the confidences in a single class."""

ALL_CELLS = "all evaluated cells"

KeyStrength = tuple[str, float]


def accuracy_boxes(results: DatasetResults, kind: str) -> pd.DataFrame:
    """Summarise accuracies for box plots.

    Returns:
        One row per box: `key`, `strength` (0 means clean images; a clean box precedes the boxes of every key that was
        not itself evaluated at 0), `low` and `high` (ends of the whiskers, see `FENCE`), `q1`, `median`, `q3`,
        `outliers` (a tuple of distinct accuracies beyond the whiskers, at most `MAX_SHOWN_OUTLIERS` at either end),
        `n`, `n_below` and `n_above` (numbers of architectures outside `box_range`).
    """
    clean: list[KeyStrength] = [(CLEAN, CLEAN_STRENGTH)] if results.keys("clean") else []
    groups: dict[tuple[object, ...], pd.Series] = {
        (key, strength): results.column(evaluated_key, strength)
        for key in results.keys(kind)
        for evaluated_key, strength in (clean if results.starts_with_clean(key) else [])
        + [(key, strength) for strength in results.strengths(key)]
    }
    return _summarise_boxes(groups, ["key", "strength"])


def accuracy_curves(results: DatasetResults, kind: str) -> pd.DataFrame:
    """Return the accuracies of all networks at the strengths of each key.

    Returns:
        One row per point: `network` (see `DatasetResults.network_label`), `key`, `strength` (0 means clean images; a
        clean point precedes the points of every key that was not itself evaluated at 0), `accuracy`, and the ends
        `low` and `high` of its 95% interval (see `accuracy_intervals`), NaN if the number of images is unknown.
    """
    has_clean = bool(results.keys("clean"))
    columns = [
        (key, strength, results.column(*evaluation))
        for key in results.keys(kind)
        for strength, evaluation in (
            ([(CLEAN_STRENGTH, (CLEAN, CLEAN_STRENGTH))] if has_clean and results.starts_with_clean(key) else [])
            + [(strength, (key, strength)) for strength in results.strengths(key)]
        )
    ]
    names = [results.network_label(architecture) for architecture in results.architectures]
    frames = [
        pd.DataFrame({"network": names, "key": key, "strength": strength, "accuracy": accuracies.to_numpy()})
        for key, strength, accuracies in columns
    ]
    if not frames:
        return pd.DataFrame(columns=["network", "key", "strength", "accuracy", "low", "high"])
    frame = pd.concat(frames, ignore_index=True).dropna()
    if results.n_images is None:
        return frame.assign(low=np.nan, high=np.nan)
    low, high = accuracy_intervals(frame["accuracy"], results.n_images)
    return frame.assign(low=low, high=high)


def accuracy_by_kernel_parameters(results: DatasetResults) -> pd.DataFrame:
    """Summarise mean adversarial accuracies by the cell's number of kernel parameters, for box plots.

    Returns:
        One row per box as in `accuracy_boxes`, with `kernel_parameters` (ascending) instead of key and strength. The
        columns `mean`, `mean_low` and `mean_high` are the mean over the cells and its 95% interval (Student's t).
    """
    names = ["kernel_parameters"]
    if results.space is None or ADVERSARIAL not in results.scores:
        return _summarise_boxes({}, names)
    sizes = np.array([results.space.kernel_parameters(results.spec(index)) for index in results.architectures])
    means = results.scores[ADVERSARIAL]
    boxes = _summarise_boxes({(int(size),): means[sizes == size] for size in np.unique(sizes)}, names)
    intervals = [mean_intervals(means[sizes == size].dropna()) for size in boxes["kernel_parameters"]]
    return boxes.assign(
        **dict(zip(("mean", "mean_low", "mean_high"), np.array(intervals, np.float64).reshape(-1, 3).T, strict=True))
    )


def box_range(boxes: pd.DataFrame) -> tuple[float, float]:
    """Return axis limits that include all whiskers of `boxes` (see `accuracy_boxes`).

    They also include all outliers if that makes the axis little longer.

    Returns:
        (low, high) in [0, 1], multiples of `AXIS_STEP`.
    """
    low, high = float(boxes["low"].min()), float(boxes["high"].max())
    outliers = [value for box_outliers in boxes["outliers"] for value in box_outliers]
    lowest, highest = min([low, *outliers]), max([high, *outliers])
    if highest - lowest < MIN_SHORTENING * (high - low):
        low, high = lowest, highest
    # The tolerance prevents a rounding error from adding a step.
    step_limits = math.floor(low / AXIS_STEP + 1e-9), math.ceil(high / AXIS_STEP - 1e-9)
    if step_limits[0] == step_limits[1]:
        step_limits = step_limits[0] - 1, step_limits[1] + 1
    return max(0.0, round(step_limits[0] * AXIS_STEP, 6)), min(1.0, round(step_limits[1] * AXIS_STEP, 6))


def curve_range(curves: pd.DataFrame) -> tuple[float, float]:
    """Return axis limits that include all points of `curves` (see `accuracy_curves`), as multiples of `AXIS_STEP`."""
    low, high = float(curves["low"].min()), float(curves["high"].max())
    return max(0.0, round(math.floor(low / AXIS_STEP) * AXIS_STEP, 6)), min(
        1.0, round(math.ceil(high / AXIS_STEP) * AXIS_STEP, 6)
    )


def has_far_strength(strengths: Sequence[float]) -> bool:
    """Return whether the largest strength is so large that the others would be crowded together on a linear axis."""
    return len(strengths) > 2 and strengths[-1] > FAR_STRENGTH * strengths[-2]


def bulk_range(values: ArrayLike, *, is_logarithmic: bool = False) -> tuple[float, float]:
    """Return the axis limits of points: the range of all points, or of all near points.

    Far points are left out if there are only a few and the axis becomes much shorter (see `FAR_POINT_FENCE`,
    `MAX_FAR_FRACTION` and `MIN_SHORTENING`).
    """
    points = np.asarray(values, np.float64)
    scaled = np.log(points) if is_logarithmic else points
    q1, _, q3 = quartiles(scaled)
    if q1 == q3:  # more than half of the numbers are equal
        q1, q3 = np.quantile(scaled, (0.1, 0.9))
    is_near = (scaled >= q1 - FAR_POINT_FENCE * (q3 - q1)) & (scaled <= q3 + FAR_POINT_FENCE * (q3 - q1))
    near_values = scaled[is_near]
    omits_far_points = (~is_near).mean() <= MAX_FAR_FRACTION and np.ptp(scaled) > MIN_SHORTENING * np.ptp(
        near_values
    ) > 0
    points_in_range = points[is_near] if omits_far_points else points
    return float(points_in_range.min()), float(points_in_range.max())


def scatter_limits(frame: pd.DataFrame) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the axis limits of clean accuracies and of other accuracies for rows of `clean_and_key_accuracies`.

    All keys share the limits, at the strength that figures show. Few far points are left out (see `bulk_range`).
    """
    clean_range = bulk_range(frame["clean"])
    # Points beyond the limits of the axis of clean accuracies must not extend the vertical axis.
    near = frame[frame["clean"].between(*clean_range)]
    shown = set(reference_columns(list(dict.fromkeys(zip(frame["key"], frame["strength"], strict=True)))))
    ranges = [
        bulk_range(rows["accuracy"])
        for column, rows in near.groupby(["key", "strength"], sort=False)
        if column in shown
    ]
    lows, highs = zip(*ranges, strict=True)
    return _add_margin(*clean_range), _add_margin(min(lows), max(highs))


def _add_margin(low: float, high: float) -> tuple[float, float]:
    margin = max(0.01, 0.05 * (high - low))
    return round(max(0.0, low - margin), 5), round(min(1.0, high + margin), 5)


def move_to_axes(points: pd.DataFrame, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> pd.DataFrame:
    """Move points beyond the axes to the border.

    Args:
        points: points with the coordinates `x` and `y`.
        x_limits: limits of the horizontal axis.
        y_limits: limits of the vertical axis.

    Returns:
        The points inside the limits, and `side`: ◀, ▶, ▼ or ▲ for points that were moved, an empty text for others.
    """
    x, y = points["x"], points["y"]
    beyond = [x < x_limits[0], x > x_limits[1], y < y_limits[0], y > y_limits[1]]
    side = np.select(beyond, list("◀▶▼▲"), "")
    return points.assign(x=x.clip(*x_limits), y=y.clip(*y_limits), side=side)


def pareto_front(first_scores: pd.Series, second_scores: pd.Series) -> NDArray[np.bool_]:
    """Return which architectures are on the Pareto front of two scores, both of which should be high.

    Returns:
        (N) bool; False for architectures that lack a score. Architectures with equal scores have equal values.
    """
    return non_dominated_mask(np.stack([first_scores.to_numpy(np.float64), second_scores.to_numpy(np.float64)], axis=1))


def rank_correlations(accuracies: pd.DataFrame) -> pd.DataFrame:
    """Compute Kendall's tau-b between each pair of columns.

    Returns:
        (K, K) float64 in [-1, 1]; NaN if a column is constant.
    """
    names = accuracies.columns
    return pd.DataFrame(kendall_taus(accuracies), index=names, columns=names)


def key_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the rankings of networks under all keys, each at one strength (see `reference_columns`).

    Returns:
        Square frame (see `rank_correlations`) with rows and columns labelled by key and strength. The index level
        `view` is always the empty string.
    """
    return _correlate(results, [("", reference_columns(results.columns))])


def attack_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the rankings on clean images and under every attack at every epsilon (see `key_correlations`)."""
    columns = [column for column in results.columns if results.reader.kind_of(column[0]) in ("clean", "attack")]
    return _correlate(results, [("", columns)] if results.keys("attack") else [])


def dataset_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the rankings on clean images and under every attack at every epsilon, across the folder's datasets.

    Returns:
        Square frame (see `rank_correlations`), with rows and columns labelled by dataset, key and strength.
    """
    accuracies_by_dataset = {}
    for other_results in results.folder:
        kinds = {key: other_results.reader.kind_of(key) for key, _ in other_results.columns}
        columns = [column for column in other_results.columns if kinds[column[0]] in ("clean", "attack")]
        if columns:
            accuracies_by_dataset[other_results.name] = other_results.accuracies[columns]
    if len(accuracies_by_dataset) < 2:
        return pd.DataFrame()
    tau = rank_correlations(pd.concat(accuracies_by_dataset, axis=1, names=["dataset"]))
    return pd.DataFrame() if tau.isna().to_numpy().all() else tau


def dataset_column_names(columns: Sequence[tuple[str, str, float]]) -> list[str]:
    """Return labels for the columns of `dataset_correlations`."""
    strengths: dict[tuple[str, str], list[float]] = {}
    for dataset, key, strength in columns:
        strengths.setdefault((dataset, key), []).append(strength)
    return [
        f"{dataset_label(dataset)}: {column_label(key, strength, strengths[dataset, key])}"
        for dataset, key, strength in columns
    ]


def corruption_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the rankings on clean images and under all corruptions, one severity at a time.

    Returns:
        Frame as from `key_correlations`; `view` in the index is the severity's label.
    """
    keys = results.keys("corruption")
    severities = sorted({strength for key in keys for strength in results.strengths(key)})
    clean: list[KeyStrength] = [(CLEAN, CLEAN_STRENGTH)] if results.keys("clean") else []
    groups = [
        (
            strength_label(keys[0], severity),
            clean + [(key, severity) for key in keys if severity in results.strengths(key)],
        )
        for severity in severities
    ]
    return _correlate(results, groups)


def correlation_view(correlations: pd.DataFrame, view: str) -> pd.DataFrame:
    """Return the square matrix of one view from a frame of several views (see `corruption_correlations`)."""
    rows = correlations[correlations.index.get_level_values("view") == view].droplevel("view")
    return rows[[column for column in correlations.columns if column in rows.index]]


def confidence_curves(results: DatasetResults) -> pd.DataFrame:
    """Summarise confidences over the architectures.

    Returns:
        One row per point: `key`, `strength`, `confidence` (a name in `CONFIDENCES`), `q1`, `median`, `q3` and `n`
        (number of architectures that have images to average over). The confidence in the true class is computed for the
        images of each class and then averaged over classes.
    """
    rows = results.confidences
    return rows[rows["confidence"].isin(CONFIDENCES)].drop(columns="class").reset_index(drop=True)


def class_confidences(results: DatasetResults) -> pd.DataFrame:
    """Summarise the confidences in every class over the architectures, at one strength per key.

    Returns:
        One row per point: `key`, `strength` (see `reference_columns`), `confidence` (a name in
        `CLASS_CONFIDENCES`), `class` (its number), `q1`, `median`, `q3` and `n` (number of architectures
        that have images to average over).
    """
    rows = results.confidences
    rows = rows[rows["confidence"].isin(CLASS_CONFIDENCES)]
    columns = pd.MultiIndex.from_frame(rows[["key", "strength"]])
    return rows[columns.isin(reference_columns(list(dict.fromkeys(columns))))].reset_index(drop=True)


def one_class_confidence(results: DatasetResults) -> pd.DataFrame:
    """Summarise the confidences in one class, `SHOWN_CLASS`, over the architectures.

    Returns:
        Rows as in `class_confidences`, at all strengths.
    """
    rows = results.confidences
    return rows[rows["class"] == SHOWN_CLASS].reset_index(drop=True)


def curves_of_key(frame: pd.DataFrame, key: str, results: DatasetResults) -> pd.DataFrame:
    """Select a key's rows from a frame of confidences.

    The rows of clean images come first, unless the key itself was evaluated at strength 0.
    """
    clean_keys = [CLEAN] if results.starts_with_clean(key) else []
    return frame[frame["key"].isin([*clean_keys, key])].sort_values("strength", kind="stable")


def confusion_sums(results: DatasetResults) -> pd.DataFrame:
    """Sum the confusion matrices of all architectures.

    Returns:
        Counts by (key, strength, true class) and predicted class.
    """
    sums = results.confusion_sums()
    if not sums:
        return pd.DataFrame()
    frames_by_column = {column: pd.DataFrame(matrix) for column, matrix in sums.items()}
    return pd.concat(frames_by_column, names=["key", "strength", "true class"])


def confusion_columns(sums: pd.DataFrame) -> list[KeyStrength]:
    """Return the keys and strengths in a frame of summed matrices."""
    return list(dict.fromkeys((str(key), float(strength)) for key, strength, _ in sums.index))


def reference_columns(columns: Sequence[KeyStrength]) -> list[KeyStrength]:
    """Choose one strength per key: the nearest to ε = 1/255, to 1 for norms other than Linf, or to severity 3."""
    keys = dict.fromkeys(key for key, _ in columns)
    return [(key, nearest_strength(key, [strength for name, strength in columns if name == key])) for key in keys]


def confusion_fractions(sums: pd.DataFrame, key: str, strength: float) -> pd.DataFrame:
    """Return a summed confusion matrix with each row divided by its sum; rows without images are 0."""
    is_selected = (sums.index.get_level_values("key") == key) & (sums.index.get_level_values("strength") == strength)
    matrix = sums[is_selected].droplevel(["key", "strength"])
    totals = matrix.sum(axis=1)
    return matrix.div(totals.where(totals > 0, 1.0), axis=0)


def clean_and_key_accuracies(results: DatasetResults, kind: str) -> pd.DataFrame:
    """Pair clean accuracies with the accuracy under each key of a kind, and with the mean over these keys.

    Returns:
        One row per architecture, key and strength: `architecture`, `clean`, `key`, `strength`, `accuracy`, `front` and,
        if architectures are cells, `kernel_parameters` (see `cells`). Rows of the mean come first; their key is the
        mean's label in `SCORES`, and their strength is 0. In these rows, `front` is whether the architecture is on the
        Pareto front of the mean and the clean accuracy; in all other rows, it is False. Rows that lack a number are
        left out.
    """
    names = ["architecture", "clean", "key", "strength", "accuracy", "front"]
    frames = []
    if results.keys("clean"):
        shared_columns: dict[str, object] = {"architecture": results.architectures}
        if results.space is not None:
            kernel_parameters_of = results.space.kernel_parameters
            shared_columns["kernel_parameters"] = [
                kernel_parameters_of(results.spec(index)) for index in results.architectures
            ]
        shared_columns["clean"] = results.column(CLEAN).to_numpy()
        columns: list[tuple[str, float, pd.Series, Any]] = [
            (key, strength, results.column(key, strength), False)
            for key in results.keys(kind)
            for strength in results.strengths(key)
        ]
        score = next(score for score, averaged_kind in SCORE_KINDS.items() if averaged_kind == kind)
        if score in results.scores:
            is_on_mean_front = pareto_front(results.column(CLEAN), results.scores[score])
            columns.insert(0, (SCORES[score], CLEAN_STRENGTH, results.scores[score], is_on_mean_front))
        frames = [
            pd.DataFrame(
                shared_columns | {"key": key, "strength": strength, "accuracy": values.to_numpy(), "front": is_on_front}
            )
            for key, strength, values, is_on_front in columns
        ]
    return pd.concat(frames, ignore_index=True).dropna() if frames else pd.DataFrame(columns=names)


def measure_correlations(results: DatasetResults) -> pd.DataFrame:
    """Correlate the measures and the sizes of networks with the accuracies (see `correlate_measures`).

    Returns:
        Rows of `correlate_measures` with labels in `measure`; empty without a measure or with too few architectures.
    """
    if results.measure_folders:
        table = read_measure_folders([results.reader, *results.measure_folders], results.name)
        correlations = correlate_measures(results, table)
        return correlations.replace({"measure": {MACS: "FLOPs"}})
    correlations = correlate_measures(results) if len(results.measures.columns) else pd.DataFrame()
    if "kendall" not in correlations or correlations["kendall"].isna().all():
        return pd.DataFrame()
    labels = {measure_name(*column): measure_label(*column) for column in results.measures}  # type: ignore[misc]
    return correlations.replace({"measure": labels | {MACS: "FLOPs"}})


def correlation_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Arrange Kendall's tau of `correlate_measures` with one row per measure and one column per key and strength."""
    labels = [column_label(key, strength) for key, strength in zip(rows["key"], rows["strength"], strict=True)]
    matrix = rows.assign(column=labels).set_index(["measure", "column"])["kendall"].unstack()
    return matrix.loc[list(dict.fromkeys(rows["measure"])), list(dict.fromkeys(labels))]


def top_cells(results: DatasetResults) -> pd.DataFrame:
    """Return the operations of the best architectures.

    Returns:
        One row per architecture and edge: `score` (a key of `SCORES`), `among` (`ALL_CELLS`, or the cells with
        `CellSpace.reference_kernel_parameters`), `rank` among these cells (ties have equal ranks), `tied` (number of
        cells with this rank, see `order_networks`), `architecture`, `accuracy` with `low` and `high`
        (see `accuracy_interval`), `edge` and `operation`.
    """
    names = ["score", "among", "rank", "tied", "architecture", "accuracy", "low", "high", "edge", "operation"]
    space = results.space
    if space is None:
        return pd.DataFrame(columns=names)
    size = space.reference_kernel_parameters
    reference_cells = [index for index in results.architectures if space.kernel_parameters(results.spec(index)) == size]
    rows: list[tuple[object, ...]] = []
    for score in results.scores:
        scores_of_cells = results.scores[score]
        for among, scores_of_group in (
            (ALL_CELLS, scores_of_cells),
            (f"cells with {size} kernel parameters", scores_of_cells[scores_of_cells.index.isin(reference_cells)]),
        ):
            for top in order_networks(results, scores_of_group)[:MAX_TOP_CELLS]:
                interval = accuracy_interval(results, top.accuracy)
                cell_columns = (score, among, top.rank, top.n_equal, top.network, top.accuracy, *interval)
                rows += [(*cell_columns, *edge) for edge in enumerate(space.parse(results.spec(top.network)))]
    return pd.DataFrame(rows, columns=names)


def best_cells(results: DatasetResults) -> pd.DataFrame:
    """Return the best architecture by clean accuracy, each attack's mean, and the means over attacks and corruptions.

    Returns:
        One row per criterion (the index): `architecture` (the first by `order_networks`), `spec`,
        `accuracy` with `low` and `high` (see `accuracy_interval`), `tied` (number of equally accurate architectures),
        and one column per criterion with the edit distance to the best architecture by that criterion.
    """
    space = results.space
    if space is None:
        return pd.DataFrame()
    criteria = {label: results.scores[score] for score, label in SCORES.items() if score in results.scores}
    criteria |= {f"mean {key_label(key)}": results.key_mean(key) for key in results.keys("attack")}
    rows = {
        label: (
            *(top.network, results.spec(top.network), top.accuracy),
            *accuracy_interval(results, top.accuracy),
            top.n_equal,
        )
        for label, scores_of_cells in criteria.items()
        for top in order_networks(results, scores_of_cells)[:1]
    }
    frame = pd.DataFrame.from_dict(
        rows, orient="index", columns=["architecture", "spec", "accuracy", "low", "high", "tied"]
    )
    for label, (_, spec, *_) in rows.items():
        frame[label] = [space.edit_distance(spec, other_spec) for other_spec in frame["spec"]]
    return frame


def neighbour_changes(results: DatasetResults) -> pd.DataFrame:
    """Compute how accuracies change if one edge of a best architecture is changed.

    Returns:
        One row per evaluated neighbour and score: `best` (the score by which the architecture is the best), `tied`
        (number of architectures that are equally accurate by this score, see `order_networks`),
        `architecture`, `edge`, `operation`, `neighbour` (the representative of its isomorphism class), `score` and
        `change` (the neighbour's accuracy minus the architecture's). `low` and `high` are the ends of the change's 95%
        interval, which assumes that the two cells were evaluated on independent images. It is therefore wider than
        necessary if both cells fail on the same images. The ends are NaN if the number of images is unknown.
    """
    names = ["best", "tied", "architecture", "edge", "operation", "neighbour", "score", "change", "low", "high"]
    space = results.space
    if space is None:
        return pd.DataFrame(columns=names)
    rows: list[tuple[object, ...]] = []
    scores = results.scores
    evaluated_architectures = set(results.architectures)
    for criterion in scores:
        for top in order_networks(results, scores[criterion])[:1]:
            for edge, operation, spec in space.neighbours(results.spec(top.network)):
                neighbour = int(results.reader.get_uid(spec))
                if neighbour in evaluated_architectures:
                    neighbour_columns = (criterion, top.n_equal, top.network, edge, operation, neighbour)
                    for score, values in scores.items():
                        accuracy_pair = float(values[top.network]), float(values[neighbour])
                        if not np.isnan(change := accuracy_pair[1] - accuracy_pair[0]):
                            half_width = NORMAL_QUANTILE * math.sqrt(
                                sum(p * (1 - p) for p in accuracy_pair) / (results.n_images or math.nan)
                            )
                            rows.append((*neighbour_columns, score, change, change - half_width, change + half_width))
    return pd.DataFrame(rows, columns=names)


def accuracy_interval(results: DatasetResults, accuracy: float) -> tuple[float, float]:
    """Return the ends of an accuracy's 95% interval over samples of images; NaN if the number of images is unknown.

    For a mean over evaluations of the same images, the interval is wider than necessary: the fraction of evaluations
    in which an image is classified correctly varies less between images than a single outcome.
    """
    low, high = accuracy_intervals(accuracy, math.nan if results.n_images is None else results.n_images)
    return float(low), float(high)


def count_omitted_ties(rows: pd.DataFrame) -> int:
    """Return the number of architectures that are tied with the last one in `rows` of `top_cells` but left out."""
    last_rank, n_tied = rows[["rank", "tied"]].to_numpy(np.int64)[-1]
    n_with_all_ties = int(last_rank + n_tied) - 1
    return n_with_all_ties - rows["architecture"].nunique()


def change_matrix(rows: pd.DataFrame, space: CellSpace) -> pd.DataFrame:
    """Arrange an architecture's changes, in percentage points, with one row per edge and one column per operation."""
    matrix = rows.set_index(["edge", "operation"])["change"].unstack()
    matrix = matrix.reindex(index=range(len(space.edges)), columns=list(space.operations))
    return 100 * matrix.set_axis(space.edge_labels).set_axis(operation_names(space), axis=1)


def operation_names(space: CellSpace) -> list[str]:
    """Return the labels of a space's operations, in order."""
    return [space.operation_labels[operation] for operation in space.operations]


def base_cell(rows: pd.DataFrame, results: DatasetResults) -> tuple[int, list[int], int]:
    """Return the architecture whose edges are changed in `rows` of `neighbour_changes`.

    Returns:
        Its id, the indices of its operations, and the number of equally accurate architectures.
    """
    index = int(rows["architecture"].iloc[0])
    operations = [
        results.cell_space.operations.index(operation) for operation in results.cell_space.parse(results.spec(index))
    ]
    return index, operations, int(rows["tied"].iloc[0])


def _summarise_boxes(groups: Mapping[tuple[object, ...], pd.Series], names: Sequence[str]) -> pd.DataFrame:
    rows = []
    values_by_group = {group: column.dropna().to_numpy(np.float64) for group, column in groups.items()}
    values_by_group = {group: values for group, values in values_by_group.items() if len(values)}
    for group, values in values_by_group.items():
        q1, median, q3 = quartiles(values)
        fence = FENCE * (q3 - q1)
        inside = values[(values >= q1 - fence) & (values <= q3 + fence)]
        low, high = min(q1, inside.min()), max(q3, inside.max())
        rows.append((*group, low, q1, median, q3, high, _find_outliers(values, low, high), len(values)))
    frame = pd.DataFrame(rows, columns=[*names, "low", "q1", "median", "q3", "high", "outliers", "n"])
    if frame.empty:
        return frame.assign(n_below=[], n_above=[])
    floor, ceiling = box_range(frame)
    return frame.assign(
        n_below=[int((values < floor).sum()) for values in values_by_group.values()],
        n_above=[int((values > ceiling).sum()) for values in values_by_group.values()],
    )


def _find_outliers(values: NDArray[np.float64], low: float, high: float) -> tuple[float, ...]:
    below, above = np.unique(values[values < low]), np.unique(values[values > high])
    return (*below[:MAX_SHOWN_OUTLIERS].tolist(), *above[-MAX_SHOWN_OUTLIERS:].tolist())


def _correlate(results: DatasetResults, groups: Iterable[tuple[str, Sequence[KeyStrength]]]) -> pd.DataFrame:
    tau_by_view = {}
    for view, columns in groups:
        if len(columns) > 1 and len(results.accuracies) > 1:
            accuracies = results.accuracies[list(columns)]
            accuracies.columns = [
                # Omit the severity if all columns have the same severity.
                column_label(key, strength, results.strengths(key)) if view == "" else key_label(key)
                for key, strength in columns
            ]
            tau = rank_correlations(accuracies)
            # A constant column has no correlations. If all columns are constant, there is nothing to draw.
            if not tau.isna().to_numpy().all():
                tau_by_view[view] = tau
    return pd.concat(tau_by_view, names=["view", "key"]) if tau_by_view else pd.DataFrame()
