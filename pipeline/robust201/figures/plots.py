"""Figures as files: PNG and SVG, byte for byte the same for the same results."""

from collections.abc import Sequence
from pathlib import Path

from robust201.core.errors import ConfigError, ResultsError, closest
from robust201.core.files import atomic_write, check_output_file
from robust201.figures.dataset_results import DatasetResults, read_results
from robust201.figures.table import FIGURES, FigureRow, figure_row
from robust201.reader.dataset import RobustnessDataset
from robust201.spaces.for_readers import INK

PNG_DPI = 120
TITLE_INCHES = 0.12
"""Width of a letter of a title, about; titles that would be wider than their figure take two lines."""

FORMATS = ("png", "svg")


def save_plots(
    dataset: RobustnessDataset,
    out: Path,
    *,
    figures: Sequence[str] | None = None,
    data: str | None = None,
    file_format: str = "png",
) -> list[Path]:
    """Draw figures as files, as far as the results are enough for them.

    Returns:
        The files, ``<dataset>-<figure>.<format>``.
    """
    if file_format not in FORMATS:
        raise ConfigError(
            f"Drawing failed for format {file_format!r}: expected png or svg, got another."
            f"{closest(file_format, FORMATS)}"
        )
    rows = list(FIGURES.values()) if figures is None else [figure_row(name) for name in figures]
    held = read_results(dataset)
    chosen = held if data is None else [_choose(held, data, dataset.path)]
    jobs = [(results, row, out / f"{results.name}-{row.name}.{file_format}") for results in chosen for row in rows]
    for _, _, path in jobs:
        check_output_file(path)
    paths = [path for results, row, path in jobs if _save(results, row, path)]
    if not paths:
        needs = "; ".join(sorted({f"{row.name} needs {row.needs}" for row in rows}))
        raise ResultsError(
            f"Drawing failed for {dataset.path}: expected enough results for a figure, got too few ({needs}). "
            "Export more keys or measurements."
        )
    return paths


def save_plot(dataset: RobustnessDataset, name: str, out: Path, *, data: str | None = None) -> Path:
    """Draw one figure."""
    row = figure_row(name)
    if out.suffix.lstrip(".") not in FORMATS:
        raise ConfigError(
            f"Drawing {name} failed for {out}: expected a name that ends in .png or .svg, got {out.suffix or 'none'}. "
            "Name the file otherwise."
        )
    check_output_file(out)
    results = _choose(read_results(dataset), data, dataset.path)
    if not _save(results, row, out):
        raise ResultsError(
            f"Drawing {name} failed for {results.name} of {dataset.path}: expected {row.needs}, got results of "
            f"{_describe(results)}. Choose another figure, or export more."
        )
    return out


def _describe(results: DatasetResults) -> str:
    keys = dict.fromkeys(map(str, results.accuracies.columns.get_level_values("key")))
    count = len(results.accuracies)
    return f"{count:,} architecture{'' if count == 1 else 's'} under {', '.join(keys)}"


def _choose(held: Sequence[DatasetResults], data: str | None, path: Path) -> DatasetResults:
    names = [results.name for results in held]
    if data is None and len(held) == 1:
        return held[0]
    if data is None:
        raise ConfigError(
            f"Drawing failed for {path}: expected the name of one dataset, got none and a folder with "
            f"{', '.join(names) or 'no results'}. Give --dataset, or draw all figures of all by `plot all`."
        )
    if data not in names:
        raise ConfigError(
            f"Drawing failed for dataset {data!r}: expected a dataset of {path}, got another.{closest(data, names)}"
        )
    return held[names.index(data)]


def _save(results: DatasetResults, row: FigureRow, path: Path) -> bool:
    """Draw a figure into a file; False where the results are not enough."""
    from matplotlib import rc_context

    frame = row.compute(results)
    if frame.empty:
        return False
    figure = row.draw_file(frame, results)
    title = f"{row.title}: {results.name}, {results.extent}"
    if len(title) * TITLE_INCHES > figure.get_figwidth():
        title = f"{row.title}\n{results.name}, {results.extent}"
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK, parse_math=False)
    format_name = path.suffix.lstrip(".")
    # Software and Date are what would make equal results give unequal bytes; the salt names the ids of an SVG.
    metadata = {"Software": None} if format_name == "png" else {"Date": None, "Creator": None}
    salt = f"{results.name}-{row.name}"
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "path"}), atomic_write(path) as stream:
        figure.savefig(stream, format=format_name, dpi=PNG_DPI, metadata=metadata)
    return True
