"""The report: a self-contained HTML page with the numbers, figures and networks of a dataset folder."""

import functools
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust201 import __version__
from robust201.core.citation import PAPER_BIBTEX, software_bibtex
from robust201.core.errors import ResultsError
from robust201.core.files import check_output_file, write_text
from robust201.dataset.reader import Dataset
from robust201.dataset.recorded_accuracies import check_recorded
from robust201.figures.palette import GRID
from robust201.networks.colours import INK
from robust201.networks.spaces import CellSpace

if TYPE_CHECKING:
    import pandas as pd

    from robust201.analysis.dataset_results import DatasetResults
    from robust201.analysis.ranking import Ranking
    from robust201.figures.table import FigureDefinition


VEGA_SCRIPT = "window.vegaEmbed = vegaEmbed;"
"""Script that is bundled with Vega-Embed, Vega and Vega-Lite, and makes `vegaEmbed` available to the page."""

_MAX_WARNING_ITEMS = 20
"""Maximum number of networks, or of signs of weak attacks, that a warning on the page lists."""


def write_report(dataset: Dataset, out: Path) -> Path:
    """Write one HTML file with the networks, the figures and the numbers of every dataset. The page works offline.

    Args:
        dataset: the results.
        out: file to write.
    """
    check_output_file(out)
    import vl_convert

    from robust201.analysis.dataset_results import MEAN_NOTE, read_results
    from robust201.analysis.ranking import rank_networks
    from robust201.figures.page_data import MISSING, RESOLUTION, pack_results, pack_space

    dataset = dataset.select()
    all_results = read_results(dataset)
    if not all_results:
        raise ResultsError(
            f"Writing a report failed for {dataset.path}: it has no accuracies. Export a key such as clean, "
            "or download the published dataset."
        )
    space = dataset.space
    networks_noun = "networks" if space is None else space.title
    title = f"Robustness of {networks_noun}: {', '.join(results.name for results in all_results)}"
    rankings = [rank_networks(results) for results in all_results]
    page_data = {
        "space": None if space is None else pack_space(space),
        "datasets": [pack_results(*pair) for pair in zip(all_results, rankings, strict=True)],
        "missing": MISSING,
        "resolution": RESOLUTION,
    }
    template = _read_resource("report_page.html")
    if space is None:
        template = re.sub("<!--cells-->\n.*?<!--/cells-->\n", "", template, flags=re.DOTALL)
    write_text(
        out,
        _fill_template(
            template,
            title=html.escape(title),
            style=_read_resource("report.css"),
            dataset_options="".join(f"<option>{html.escape(results.name)}</option>" for results in all_results),
            answer=_best_networks_section(rankings),
            overview=_overview_section(dataset, all_results),
            means=html.escape(MEAN_NOTE),
            sections="\n".join(_dataset_section(results) for results in all_results),
            across=_across_section(all_results),
            citation=html.escape(f"{PAPER_BIBTEX}\n\n{software_bibtex(__version__)}"),
            page_data=_embedded_json(page_data),
            vega=vl_convert.javascript_bundle(VEGA_SCRIPT),
            script=_read_resource("report.js"),
            **({} if space is None else {"about": html.escape(space.about), "cell_drawing": _cell_drawing(space)}),
        ),
    )
    return out


def _read_resource(name: str) -> str:
    return (resources.files("robust201.figures") / name).read_text(encoding="utf-8")


def _fill_template(template: str, **parts: str) -> str:
    """Replace each name in braces with the part of this name. Braces inside parts are not replaced."""
    return re.sub("{(" + "|".join(parts) + ")}", lambda match: parts[match[1]], template)


def _embedded_json(value: Any) -> str:
    """Serialise a value as JSON in which no text can close the surrounding script element."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _overview_section(dataset: Dataset, all_results: "Sequence[DatasetResults]") -> str:
    """Return what was evaluated: networks, training, images and keys; and what is missing."""
    space, sweep = dataset.space, dataset.sweep or {}
    record = sweep.get("sweep") or {}
    architectures = {architecture for results in all_results for architecture in results.architectures}
    keys = {key for results in all_results for key, _ in results.columns}
    networks = f"{len(architectures):,} of {len(dataset.non_isomorph_ids):,} "
    networks += "networks" if space is None else f"non-isomorphic architectures of {space.title}"
    if network := record.get("network"):
        networks += f" ({', '.join(f'{name} {value}' for name, value in network.items())})"
    items = [networks]
    if training := sweep.get("weights"):
        items.append(f"trained as {', '.join(map(str, training))}")
    # Imported results have no record of the image selection.
    if (images := record.get("images")) is not None:
        count = images.get("count")
        items.append("all test images" if count is None else f"{count:,} test images (seed {images.get('seed')})")
    items.append(f"{len(keys)} keys on {', '.join(results.label for results in all_results)}")
    if sweep:
        items.append(f"robust201 {sweep.get('robust201', 'of an unknown version')}")
    overview = f"<p>{html.escape('; '.join(items))}. Accuracy is the fraction of images classified correctly.</p>"
    overview += _weights_check_text(dataset)
    if dataset.missing:
        n_missing = sum(
            len(strengths) for keys in dataset.missing.values() for ids in keys.values() for strengths in ids.values()
        )
        overview += (
            f'<p class="warning">This export is incomplete: {n_missing:,} evaluations are missing (see '
            "missing.json).</p>"
        )
    return overview


def _weights_check_text(dataset: Dataset) -> str:
    """Return the comparison of clean accuracies with those recorded with the weights; empty if none were recorded."""
    check = check_recorded(dataset)
    n_agreeing = check.n_checked - len(check.unexpected)
    if not check.unexpected:
        return (
            f"<p>Clean accuracy agrees with the accuracy recorded with the weights for all {n_agreeing:,} networks.</p>"
            if n_agreeing
            else ""
        )
    list_items = "".join(
        f"<li>{html.escape(network.message)}</li>" for network in check.unexpected[:_MAX_WARNING_ITEMS]
    )
    n_more = len(check.unexpected) - _MAX_WARNING_ITEMS
    list_items += f"<li>and {n_more:,} more</li>" if n_more > 0 else ""
    return (
        f'<div class="warning">Clean accuracy differs from the accuracy recorded with the weights for '
        f"{len(check.unexpected):,} of {check.n_checked:,} networks: <ul>{list_items}</ul></div>"
    )


def _attack_flags_warning(results: "DatasetResults") -> str:
    """Return a warning that lists signs of weak attacks; empty without signs, or numbers of images and classes."""
    from robust201.evaluation.attack_flags import ZERO_GRADIENTS, find_flags

    n_classes = results.reader.count_classes(results.name)
    if results.n_images is None or n_classes is None:
        return ""
    accuracies: dict[Any, Any] = {
        (key, strength): results.column(key, strength).dropna().to_dict()
        for key, strength in results.columns
        if results.reader.kind_of(key) != "corruption"  # corruptions have no warning signs
    }
    key, strength = ZERO_GRADIENTS
    if (column := (*key.split(), strength)) in results.measures:
        accuracies[ZERO_GRADIENTS] = results.measures[column].dropna().to_dict()
    flags = find_flags(results.name, accuracies, n_images=results.n_images, n_classes=n_classes)
    if not flags:
        return ""
    list_items = "".join(f"<li>{html.escape(flag.message)}</li>" for flag in flags[:_MAX_WARNING_ITEMS])
    return f'<div class="warning">Signs of weak attacks: <ul>{list_items}</ul></div>'


def _best_networks_section(rankings: "Sequence[Ranking]") -> str:
    """Return the section that names the best networks; empty if there are no accuracies."""
    answers = [f"<p>{html.escape(ranking.summary)}</p>" for ranking in rankings if ranking.summary]
    basis = f'<p class="muted">{html.escape(rankings[0].basis)}</p>'
    return f'<section id="answer">{"".join(answers)}{basis}</section>' if answers else ""


def _dataset_section(results: "DatasetResults") -> str:
    from robust201.figures.table import FIGURES

    blocks, links, omitted_figures = [], [], []
    for figure in FIGURES.values():
        if figure.is_across_datasets:
            continue
        frame = figure.compute_numbers(results)
        if not frame.empty:
            identifier = html.escape(f"{results.name}-{figure.name}")
            blocks.append(_figure_block(figure, frame, results, identifier))
            links.append(f'<a href="#{identifier}">{html.escape(figure.title)}</a>')
        elif figure.max_networks is None:  # otherwise there are many networks, which other figures summarise
            omitted_figures.append(f"{figure.title} (needs {figure.requirement.replace('`', '')})")
    name = html.escape(results.name)
    omitted = f"Figures left out because the results they need are missing: {'; '.join(omitted_figures)}."
    return (
        f'<section data-dataset="{name}"><h2>{name}</h2>{_attack_flags_warning(results)}'
        f'<nav aria-label="Figures of {name}">{" ".join(links)}</nav>{"".join(blocks)}'
        f'<p class="muted">{html.escape(omitted) if omitted_figures else ""}</p>'
        f"{_measure_table(results)}</section>"
    )


def _across_section(all_results: "Sequence[DatasetResults]") -> str:
    """Return the figures across datasets; empty if there are none."""
    from robust201.figures.table import FIGURES

    frames = {
        figure: figure.compute_numbers(all_results[0]) for figure in FIGURES.values() if figure.is_across_datasets
    }
    blocks = [
        _figure_block(figure, frame, all_results[0], f"across-{figure.name}")
        for figure, frame in frames.items()
        if not frame.empty
    ]
    if not blocks:
        return ""
    return f'<section id="across"><h2>Across datasets</h2>{"".join(blocks)}</section>'


def _figure_block(figure: "FigureDefinition", frame: "pd.DataFrame", results: "DatasetResults", identifier: str) -> str:
    from robust201.figures.panels import specify_page

    spec = specify_page(figure.specify(frame, results))
    # The page replaces the colours of text and lines.
    content = _embedded_json(spec).replace(INK, "currentColor").replace(GRID, f"var(--grid, {GRID})")
    title = html.escape(figure.title)
    return (
        f'<figure id="{identifier}" data-figure="{html.escape(figure.name)}"><h3>{title}</h3>'
        f'<figcaption id="{identifier}-caption">{html.escape(figure.description.replace("`", ""))}</figcaption>'
        f'<div class="chart" role="img" aria-label="{title}" aria-describedby="{identifier}-caption"></div>'
        f'<script type="application/json">{content}</script></figure>'
    )


@functools.cache  # drawing a cell takes longer than the rest of a small page
def _cell_drawing(space: CellSpace) -> str:
    """Return an SVG of a cell with every operation on every edge, in the colours of the surrounding page."""
    drawing = space.all_edge_parts()
    left, right, bottom, top = drawing.bounds
    groups = []
    for edge in drawing.edges:
        path = " ".join(f"{x:.3f},{-y:.3f}" for x, y in edge.curve)
        dashes = ' stroke-dasharray=".04 .05"' if edge.operation == "none" else ""
        (x, y), (label_x, label_y) = edge.curve[-1], edge.label_centre
        groups.append(
            f'<g data-edge="{edge.edge}" data-operation="{edge.operation}">'
            f'<polyline points="{path}" fill="none" stroke="{edge.colour}" stroke-width=".03"{dashes}/>'
            f'<path d="M0 0L-.16 .07V-.07Z" fill="{edge.colour}" transform="translate({x:.3f},{-y:.3f}) '
            f'rotate({-edge.angle:.1f})"/><text x="{label_x:.3f}" y="{-label_y:.3f}" fill="{edge.colour}" '
            f'stroke="var(--card)" stroke-width=".08" paint-order="stroke">{html.escape(edge.text)}</text></g>'
        )
    for name, (x, y) in drawing.nodes.items():
        groups.append(
            f'<circle cx="{x}" cy="{-y}" r="{drawing.radius}" fill="var(--card)" stroke="currentColor" '
            f'stroke-width=".03"/><text x="{x}" y="{-y}" fill="currentColor">{name}</text>'
        )
    style = "font-size: .17px; text-anchor: middle; dominant-baseline: central"
    box = f"{left} {-top} {right - left} {top - bottom}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{box}" style="{style}">{"".join(groups)}</svg>'


def _measure_table(results: "DatasetResults") -> str:
    """Return a table that summarises the measures, and the values of keys that robust201 does not know.

    It is empty if there are neither.
    """
    from robust201.analysis.labels import measure_label

    table_rows = []
    for measure, values in results.measures.items():
        finite_values = values.dropna()
        cells = "".join(
            f"<td>{number:.4g}</td>" for number in (finite_values.min(), finite_values.median(), finite_values.max())
        )
        label = html.escape(measure_label(*measure))  # type: ignore[misc]
        table_rows.append(f"<tr><th>{label}</th>{cells}<td>{len(finite_values):,}</td></tr>")
    return _collapsible_table("Measures", ("measure",), table_rows) if table_rows else ""


_STATISTICS_HEADINGS = ("lowest", "median", "highest", "architectures")


def _collapsible_table(
    title: str, row_headings: Sequence[str], rows: Sequence[str], columns: Sequence[str] = _STATISTICS_HEADINGS
) -> str:
    head = "".join(f"<th>{name}</th>" for name in (*row_headings, *columns))
    return (
        f'<details><summary>{title}</summary><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )
