"""The page of the dataset study: the dataset paper's claims, medians and figures, compared with other results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from robust201.analysis.dataset_results import MEANS, DatasetResults, read_results
from robust201.analysis.labels import column_label
from robust201.core.errors import ResultsError, did_you_mean
from robust201.figures.figure_data import measure_correlations
from robust201.figures.plots import FIGURE_WIDTHS
from robust201.figures.table import FIGURES
from robust201.figures.vega_files import draw_file
from robust201.reader.dataset import RobustnessDataset
from robust201.studies.config import DatasetStudy
from robust201.studies.dataset_claims import (
    FAILS,
    HOLDS,
    UNTESTED,
    Claim,
    check_claims,
    compare_curves,
    compare_medians,
)
from robust201.studies.networks import Exports
from robust201.studies.pages.writer import PageWriter, format_number, format_table, table_or_link

_CELLS_AND_EDGES = (
    "Cells are named by their index, such as #13714. Edges are numbered as in the paper: 1 is 0→1, 2 is 0→2, 3 is 1→2, "
    "4 is 0→3, 5 is 1→3, and 6 is 2→3. Kernel parameters are counted for one channel: nine for each 3x3 convolution "
    "and one for each 1x1 convolution."
)


def write_dataset(study: DatasetStudy, exports: Exports, folder: Path) -> list[Path]:
    """Write the page, its tables and figures (see `write_pages`)."""
    results = _read_results(study, exports)
    correlations = measure_correlations(results)
    claims = check_claims(results, correlations)
    page = PageWriter(study, folder, f"{study.name}: the dataset paper's claims on {results.label}")
    page.add_lead(_summarise(claims, results))
    page.add_text(f"## Claims\n\n{_CELLS_AND_EDGES} {MEANS[results.mean]}\n\n{_format_claims(claims)}")
    page.add_table("claims", pd.DataFrame(claims))
    medians = _add_comparison(page, "medians", compare_medians(results), "median accuracies over architectures")
    page.add_text(f"## Median accuracies over architectures\n\n{medians}")
    if len(curves := compare_curves(results)):
        accuracies = _add_comparison(page, "curves", curves, "single architectures")
        page.add_text(f"## Single architectures\n\n{accuracies}")
    page.add_text("## Figures")
    for figure in FIGURES.values():
        if figure.source and len(figure_data := figure.compute_numbers(results)):
            notes = (MEANS[results.mean],) if figure.shows_means else ()
            svg = draw_file(figure.specify(figure_data, results), FIGURE_WIDTHS["page"], "svg", notes=notes)
            page.add_svg(figure.name, svg, f"{figure.title} ({figure.source} of the paper)")
    return page.finish()


def _read_results(study: DatasetStudy, exports: Exports) -> DatasetResults:
    """Read the accuracies of all exports as one dataset. Exports that have only measures add rows to figure 6."""
    accuracy_folders = [
        reader.path for reader in exports.readers if reader.keys_clean or reader.keys_adv or reader.keys_cc
    ]
    measure_readers = [reader for reader in exports.readers if reader.path not in accuracy_folders]
    if not accuracy_folders:
        raise ResultsError(
            f"Writing the study {study.name} failed: none of its exports has accuracies. Add the export of a sweep "
            "with clean images and attacks."
        )
    by_name = {results.name: results for results in read_results(RobustnessDataset(*accuracy_folders))}
    if study.dataset not in by_name:
        raise ResultsError(
            f"Writing the study {study.name} failed: no export has accuracies on {study.dataset}."
            f"{did_you_mean(study.dataset, by_name)}"
        )
    return replace(by_name[study.dataset], measure_folders=measure_readers)


def _summarise(claims: Sequence[Claim], results: DatasetResults) -> str:
    n_claims_by_verdict = Counter(claim.verdict for claim in claims)
    images = "" if results.n_images is None else f", evaluated on {results.n_images:,} images"
    failed_claims = [f"“{claim.claim}” ({claim.place})" for claim in claims if claim.verdict == FAILS]
    sentence = (
        f"For the {len(results.architectures):,} cells of this study{images}, {n_claims_by_verdict[HOLDS]} of the "
        f"{len(claims)} claims of the dataset paper (Jung, Lukasik and Keuper, ICLR 2023) hold, "
        f"{n_claims_by_verdict[FAILS]} do not hold, and {n_claims_by_verdict[UNTESTED]} cannot be tested."
    )
    return f"{sentence} These claims do not hold: {'; '.join(failed_claims)}." if failed_claims else sentence


def _format_claims(claims: Sequence[Claim]) -> str:
    columns = ["claim", "place in the paper", "published", "ours", "verdict"]
    rows = [[claim.claim, claim.place, claim.printed or "–", claim.ours, claim.verdict] for claim in claims]
    return format_table(columns, rows, n_text_columns=len(columns))


def _add_comparison(page: PageWriter, name: str, frame: pd.DataFrame, contents: str) -> str:
    """Write a comparison with published numbers as CSV, and return it as Markdown (see `table_or_link`)."""
    page.add_table(name, frame)
    if frame.empty:
        return "The paper has no numbers for these keys and this dataset."
    rows = []
    for row in frame.to_dict("records"):
        label = column_label(row["key"], row["strength"])
        evaluation = f"{row['architecture']}, {label}" if "architecture" in row else label
        cells = [format_number(row[column], 3) for column in ("ours", "printed")]
        rows.append([evaluation, *cells, format_number(row["difference"], 3, signed=True)])
    return table_or_link(format_table(["evaluation", "ours", "published", "difference"], rows), name, contents)
