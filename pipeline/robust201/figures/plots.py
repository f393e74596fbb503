"""Figures as files, in PNG, SVG and PDF, or their numbers as CSV: byte for byte the same for the same results."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from robust201.analysis.dataset_results import MEANS, OVER_EVALUATIONS, DatasetResults, choose_results, read_results
from robust201.core.csv_files import write_csv
from robust201.core.errors import ConfigError, ResultsError, closest
from robust201.core.files import atomic_write, check_output_file
from robust201.figures.panels import TITLE, inches
from robust201.figures.table import FIGURES, FigureRow, figure_row
from robust201.reader.dataset import RobustnessDataset

FIGURE_WIDTHS = {"column": 3.25, "page": 6.75}
"""Inches: a column and the text of a page in two-column templates such as ICML's and CVPR's."""

LEAST_WIDTH, LARGEST_WIDTH = 2.5, 40.0

DRAWN_FORMATS = ("png", "svg", "pdf")

CSV = "csv"

_MEASURES_FIGURE = "measure-correlations"

_CLASS_FIGURE = "one-class-confidence"

FIGURE_FORMATS = (*DRAWN_FORMATS, CSV)


def parse_width(text: str | float) -> float:
    """Understand a width: ``column``, ``page``, or inches."""
    if text in FIGURE_WIDTHS:
        return FIGURE_WIDTHS[str(text)]
    try:
        width = float(text)
    except ValueError:
        width = 0.0
    if not LEAST_WIDTH <= width <= LARGEST_WIDTH:
        raise ConfigError(
            f"Drawing failed for the width: expected column ({FIGURE_WIDTHS['column']} in), page "
            f"({FIGURE_WIDTHS['page']} in) or inches from {LEAST_WIDTH:g} to {LARGEST_WIDTH:g}, got {str(text)[:40]!r}."
            f"{closest(str(text), FIGURE_WIDTHS)}"
        )
    return width


def save_plots(
    dataset: RobustnessDataset,
    out: Path,
    *,
    figures: Sequence[str] | None = None,
    data: str | None = None,
    file_format: str = "png",
    width: str | float = "page",
    title: bool = False,
    mean: str = OVER_EVALUATIONS,
    shown_class: int = 0,
) -> list[Path]:
    """Draw figures as files, as far as the results are enough for them.

    Args:
        dataset: the results.
        out: folder for the files.
        figures: names of `FIGURES`; all if None.
        data: the one dataset to draw; all, and figures across them, if None.
        file_format: one of `FIGURE_FORMATS`.
        width: as for `parse_width`.
        title: whether a title stands above a figure.
        mean: how means weigh keys and strengths, a name of `dataset_results.MEANS`.
        shown_class: number of the class that `one-class-confidence` shows.

    Every training is a network of its own where the folder has several and none was chosen (see
    `RobustnessDataset.select`, which also chooses networks and keys).

    Returns:
        The files, ``<dataset>-<figure>.<format>``, of figures across datasets ``<figure>.<format>``.
    """
    if file_format not in FIGURE_FORMATS:
        raise ConfigError(
            f"Drawing failed for the format: expected {', '.join(FIGURE_FORMATS)}, got {file_format!r}."
            f"{closest(file_format, FIGURE_FORMATS)}"
        )
    inches = parse_width(width)
    rows = list(FIGURES.values()) if figures is None else [figure_row(name) for name in figures]
    held = read_results(dataset.select(), mean=mean)
    chosen = held if data is None else [choose_results(held, data, dataset.path)]
    chosen = [_showing_class(results, shown_class) for results in chosen]
    jobs = [
        (results, row, out / f"{stem}.{file_format}") for results, row, stem in _list_jobs(chosen, rows, data is None)
    ]
    for _, _, path in jobs:
        check_output_file(path)
    paths = [path for results, row, path in jobs if _save(results, row, path, inches, title)]
    if not paths:
        needs = "; ".join(sorted({f"{row.name} needs {row.requirement}" for row in rows}))
        raise ResultsError(
            f"Drawing failed for {dataset.path}: expected enough results for a figure, got too few ({needs}). "
            "Export more keys or measurements."
        )
    return paths


def save_plot(
    dataset: RobustnessDataset,
    name: str,
    out: Path,
    *,
    data: str | None = None,
    width: str | float = "page",
    title: bool = False,
    mean: str = OVER_EVALUATIONS,
    measures: Sequence[RobustnessDataset] = (),
    shown_class: int | None = None,
) -> Path:
    """Draw one figure; see `save_plots`.

    With `measures`, the figure `measure-correlations` has a row per measure of the dataset and of each of these
    folders, such as those of other splits or weights.
    """
    row = figure_row(name)
    if measures and name != _MEASURES_FIGURE:
        raise ConfigError(
            f"Drawing {name} failed for {len(measures)} folders of measures: only {_MEASURES_FIGURE} shows several. "
            "Leave out --measures."
        )
    if shown_class is not None and name != _CLASS_FIGURE:
        raise ConfigError(
            f"Drawing {name} failed for class {shown_class}: only {_CLASS_FIGURE} shows one class. Leave out --class."
        )
    if out.suffix.lstrip(".") not in FIGURE_FORMATS:
        raise ConfigError(
            f"Drawing {name} failed for {out}: expected a name that ends in .{', .'.join(FIGURE_FORMATS)}, "
            f"got {out.suffix or 'none'}. Name the file otherwise."
        )
    inches = parse_width(width)
    check_output_file(out)
    held = read_results(dataset.select(), mean=mean)
    if row.across and data is not None:
        raise ConfigError(
            f"Drawing {name} failed for dataset {data!r}: expected no dataset, as the figure is of all, got one. "
            "Leave out --dataset."
        )
    results = held[0] if row.across and held else choose_results(held, data, dataset.path)
    results = _showing_class(replace(results, measure_folders=measures), shown_class or 0)
    if not _save(results, row, out, inches, title):
        whose = "" if row.across else f"{results.name} of "
        raise ResultsError(
            f"Drawing {name} failed for {whose}{dataset.path}: expected {row.requirement}, got results of "
            f"{_describe(results)}. {_advise(row, results)}"
        )
    return out


def _showing_class(results: DatasetResults, number: int) -> DatasetResults:
    n_classes = results.n_classes
    if number < 0 or (n_classes is not None and number >= n_classes):
        numbers = "a number from 0 on" if n_classes is None else f"a number from 0 to {n_classes - 1}"
        raise ConfigError(
            f"Drawing {_CLASS_FIGURE} failed for class {number} of {results.name}: expected {numbers}. Correct --class."
        )
    return replace(results, shown_class=number)


def _advise(row: FigureRow, results: DatasetResults) -> str:
    n_networks = len(results.accuracies)
    if row.most is not None and n_networks > row.most:
        return f"Choose up to {row.most} by --architectures, or another figure."
    if n_networks < row.least:
        return "For few networks, draw attack-curves or corruption-curves."
    return "Choose another figure, or export more."


def _list_jobs(
    chosen: Sequence[DatasetResults], rows: Sequence[FigureRow], everything: bool
) -> Iterator[tuple[DatasetResults, FigureRow, str]]:
    for results in chosen:
        for row in rows:
            if not row.across:
                yield results, row, f"{results.name}-{row.name}"
    for row in rows:
        if row.across and everything and chosen:
            yield chosen[0], row, row.name


def _describe(results: DatasetResults) -> str:
    keys = dict.fromkeys(map(str, results.accuracies.columns.get_level_values("key")))
    count = len(results.accuracies)
    return f"{count:,} architecture{'' if count == 1 else 's'} under {', '.join(keys)}"


def _save(results: DatasetResults, row: FigureRow, path: Path, width: float, titled: bool) -> bool:
    """Draw a figure into a file; False where the results are not enough."""
    from robust201.figures.vega_files import draw_file

    frame = row.numbers(results)
    if frame.empty:
        return False
    format_name = path.suffix.lstrip(".")
    if format_name == CSV:
        # Frames of heat maps name their rows in the index, tables number theirs.
        write_csv(path, frame, index=not isinstance(frame.index, pd.RangeIndex))
        return True
    notes = (MEANS[results.mean],) if row.averages else ()
    title = _title(row, results, width) if titled else ""
    drawn = draw_file(row.specify(frame, results), width, format_name, notes=notes, title=title)
    with atomic_write(path) as stream:
        stream.write(drawn)
    return True


def _title(row: FigureRow, results: DatasetResults, width: float) -> str:
    whose = ", ".join(held.label for held in results.folder) if row.across else f"{results.label}, {results.extent}"
    title = f"{row.title}: {whose}"
    return title if inches(len(title), TITLE + 1) <= width else f"{row.title}\n{whose}"
