"""Figures as PNG, SVG and PDF files, or their numbers as CSV files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from robust201.analysis.dataset_results import MEAN_NOTE, DatasetResults, choose_results, read_results
from robust201.core.errors import ConfigError, ResultsError, did_you_mean
from robust201.core.files import atomic_write, check_output_file, write_csv
from robust201.dataset.reader import Dataset
from robust201.figures.definition import FigureDefinition
from robust201.figures.formats import CSV, FIGURE_FORMATS, check_figure_name, parse_width
from robust201.figures.table import FIGURES, find_figure
from robust201.figures.vega_files import draw_file

_MEASURES_FIGURE = "measure-correlations"


def save_plots(
    dataset: Dataset,
    out: Path,
    *,
    data: str | None = None,
    file_format: str = "png",
    width: str | float = "page",
) -> list[Path]:
    """Save all figures for which there are enough results.

    If the folder has several weights per architecture and none was selected, figures show all of them as separate
    networks (see `Dataset.select`, which also selects networks and keys).

    Args:
        dataset: the results.
        out: folder for the files.
        data: name of the dataset to draw; None draws all datasets, and the figures across datasets.
        file_format: one of `FIGURE_FORMATS`.
        width: see `parse_width`.

    Returns:
        The paths ``<dataset>-<figure>.<format>``, and ``<figure>.<format>`` for figures across datasets.
    """
    if file_format not in FIGURE_FORMATS:
        raise ConfigError(
            f"Drawing failed for the format: expected {', '.join(FIGURE_FORMATS)}, got {file_format!r}."
            f"{did_you_mean(file_format, FIGURE_FORMATS)}"
        )
    inches = parse_width(width)
    all_results = read_results(dataset.select())
    selected_results = all_results if data is None else [choose_results(all_results, data, dataset.path)]
    drawings = []
    for figure in FIGURES.values():
        if figure.is_across_datasets:
            drawings += [(results, figure, figure.name) for results in all_results[:1] if data is None]
        else:
            drawings += [(results, figure, f"{results.name}-{figure.name}") for results in selected_results]
    files = [(results, figure, out / f"{name}.{file_format}") for results, figure, name in drawings]
    for _, _, path in files:
        check_output_file(path)
    paths = [path for results, figure, path in files if _write_figure(results, figure, path, inches)]
    if not paths:
        requirements = "; ".join(sorted({f"{figure.name} needs {figure.requirement}" for figure in FIGURES.values()}))
        raise ResultsError(
            f"Drawing failed for {dataset.path}: the results do not suffice for any figure ({requirements}). Export "
            "more keys or measurements."
        )
    return paths


def save_plot(
    dataset: Dataset,
    name: str,
    out: Path,
    *,
    data: str | None = None,
    width: str | float = "page",
    measures: Sequence[Dataset] = (),
) -> Path:
    """Save one figure; see `save_plots`.

    With `measures`, the figure `measure-correlations` has one row for each measure of the dataset and of these folders,
    whose measures may come from other splits or weights.
    """
    figure = find_figure(name)
    if measures and name != _MEASURES_FIGURE:
        raise ConfigError(
            f"Drawing {name} failed for {len(measures)} folders of measures: only {_MEASURES_FIGURE} shows measures of "
            "several folders. Remove --measures."
        )
    check_figure_name(out, FIGURE_FORMATS)
    inches = parse_width(width)
    all_results = read_results(dataset.select())
    if figure.is_across_datasets and data is not None:
        raise ConfigError(
            f"Drawing {name} failed for dataset {data!r}: this figure shows all datasets together. Remove --data."
        )
    results = (
        all_results[0] if figure.is_across_datasets and all_results else choose_results(all_results, data, dataset.path)
    )
    results = replace(results, measure_folders=measures)
    if not _write_figure(results, figure, out, inches):
        subject_prefix = "" if figure.is_across_datasets else f"{results.name} of "
        raise ResultsError(
            f"Drawing {name} failed for {subject_prefix}{dataset.path}: the figure needs {figure.requirement}, but the "
            f"dataset has results of {_describe_results(results)}. Choose another figure, select fewer networks, or "
            "export more results."
        )
    return out


def _describe_results(results: DatasetResults) -> str:
    keys = dict.fromkeys(map(str, results.accuracies.columns.get_level_values("key")))
    n_architectures = len(results.accuracies)
    return f"{n_architectures:,} architecture{'' if n_architectures == 1 else 's'} for the keys {', '.join(keys)}"


def _write_figure(results: DatasetResults, figure: FigureDefinition, path: Path, width: float) -> bool:
    """Write a figure to a file, or return False if the results do not suffice."""
    frame = figure.compute_numbers(results)
    if frame.empty:
        return False
    format_name = path.suffix.lstrip(".")
    if format_name == CSV:
        # Heat maps have named rows, so their index is written; a RangeIndex has no meaning.
        write_csv(path, frame, index=not isinstance(frame.index, pd.RangeIndex))
        return True
    notes = (MEAN_NOTE,) if figure.shows_means else ()
    content = draw_file(figure.draw(frame, results), width, format_name, notes=notes)
    with atomic_write(path) as stream:
        stream.write(content)
    return True
