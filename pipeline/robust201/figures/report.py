"""The report: a self-contained HTML page with the numbers, figures and networks of a dataset folder."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import vl_convert

from robust201 import __version__
from robust201.analysis.dataset_results import MEAN_NOTE, DatasetResults, read_results
from robust201.analysis.ranking import Ranking, rank_networks
from robust201.core.citation import PAPER_BIBTEX, software_bibtex
from robust201.core.colours import GRID, INK, PAPER
from robust201.core.errors import ResultsError
from robust201.core.files import check_output_file, write_text
from robust201.dataset.folder import DatasetFolder
from robust201.dataset.reader import Dataset
from robust201.evaluation.attack_flags import ZERO_GRADIENTS, find_flags
from robust201.figures.definition import FigureDefinition
from robust201.figures.page_data import MISSING, pack_results, pack_space
from robust201.figures.panels import specify_page
from robust201.figures.table import FIGURES
from robust201.networks.spaces import CellSpace

VEGA_SCRIPT = "window.vegaEmbed = vegaEmbed;"
"""Script that is bundled with Vega-Embed, Vega and Vega-Lite, and makes `vegaEmbed` available to the page."""

CELL_WIDTH = 215.0
"""Width of the drawing of a cell, in points."""

_MAX_WARNING_ITEMS = 20
"""Maximum number of networks, or of signs of weak attacks, that a warning on the page lists."""


def write_report(dataset: Dataset, out: Path) -> Path:
    """Write one HTML file with the networks, the figures and the numbers of every dataset. The page works offline.

    Args:
        dataset: the results.
        out: file to write.
    """
    check_output_file(out)
    dataset = dataset.select()
    all_results = read_results(dataset)
    if not all_results:
        raise ResultsError(
            f"Writing a report failed for {dataset.path}: it has no accuracies. Export a key such as clean, "
            "or download the published dataset."
        )
    space = dataset.space
    rankings = [rank_networks(results) for results in all_results]
    page_data = {
        "space": None if space is None else pack_space(space),
        "datasets": [pack_results(*pair) for pair in zip(all_results, rankings, strict=True)],
        "missing": MISSING,
    }
    template = _read_resource("report_page.html")
    if space is None:
        template = re.sub("<!--cells-->\n.*?<!--/cells-->\n", "", template, flags=re.DOTALL)
    parts = {
        "title": html.escape(f"Robustness of {_describe_networks(dataset, all_results)}"),
        "style": _read_resource("report.css"),
        "dataset_options": "".join(f"<option>{html.escape(results.name)}</option>" for results in all_results),
        "answer": _best_networks_section(rankings),
        "overview": _overview_section(dataset, all_results),
        "means": html.escape(MEAN_NOTE),
        "sections": "\n".join(_dataset_section(results) for results in all_results),
        "across": _across_section(all_results),
        "citation": html.escape(f"{PAPER_BIBTEX}\n\n{software_bibtex(__version__)}"),
        "page_data": _embedded_json(page_data),
        "vega": vl_convert.javascript_bundle(VEGA_SCRIPT),
        "script": _read_resource("report.js"),
    }
    if space is not None:
        parts |= {"about": html.escape(space.about), "cell": _cell_specification(space)}
    write_text(out, _fill_template(template, **parts))
    return out


def _read_resource(name: str) -> str:
    return (resources.files("robust201.figures") / name).read_text(encoding="utf-8")


def _fill_template(template: str, **parts: str) -> str:
    """Replace each name in braces with the part that has this name. Braces inside parts are not replaced."""
    return re.sub("{(" + "|".join(parts) + ")}", lambda match: parts[match[1]], template)


def _embedded_json(value: Any) -> str:
    """Serialise a value as JSON in which no text can close the surrounding script element."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _describe_networks(dataset: Dataset, all_results: Sequence[DatasetResults]) -> str:
    """Describe what was evaluated: networks, their size if it differs from the published size, and datasets."""
    n_networks = len({network for results in all_results for network in results.architectures})
    names = ", ".join(results.label for results in all_results)
    if dataset.space is None:
        return f"{n_networks:,} networks on {names}"
    sizes = _unpublished_sizes(dataset)
    size = f", as networks with {' or '.join(sizes)}," if sizes else ""
    return f"{n_networks:,} cells of {dataset.space.title}{size} on {names}"


def _unpublished_sizes(dataset: Dataset) -> list[str]:
    """Return those sizes of the evaluated networks that differ from the published size."""
    published = {} if dataset.space is None else dataset.space.identity()
    sizes = [folder.sweep_record.get("network") or published for folder in dataset.folders]
    return list(dict.fromkeys(_join_items(size) for size in sizes if size != published))


def _join_items(items: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in items.items())


def _overview_section(dataset: Dataset, all_results: Sequence[DatasetResults]) -> str:
    """Describe what was evaluated (networks, training, images and keys) and what is missing."""
    space, folders, sweeps = dataset.space, dataset.folders, [folder.sweep or {} for folder in dataset.folders]
    architectures = {architecture for results in all_results for architecture in results.architectures}
    keys = {key for results in all_results for key, _ in results.columns}
    networks = f"{len(architectures):,} of {len(dataset.non_isomorph_ids):,} "
    networks += "networks" if space is None else f"non-isomorphic architectures of {space.title}"
    if space is not None and (sizes := _unpublished_sizes(dataset)):
        published = _join_items(space.identity())
        networks += f", as networks with {' or '.join(sizes)} (the published ones have {published})"
    weights = {name: facts for sweep in sweeps for name, facts in (sweep.get("weights") or {}).items()}
    items = [networks, *(_describe_weights(name, facts) for name, facts in weights.items())]
    # Imported results have no record of the selected images, and measures use separate images.
    selections = [folder.sweep_record.get("images") for folder in folders if _has_accuracies(folder)]
    items += [_describe_images(images) for images in selections if images is not None]
    items.append(f"{len(keys)} keys on {', '.join(results.label for results in all_results)}")
    items += [f"robust201 {sweep.get('robust201', 'of an unknown version')}" for sweep in sweeps if sweep]
    text = "; ".join(dict.fromkeys(items))
    overview = f"<p>{html.escape(text)}. Accuracy is the fraction of images classified correctly.</p>"
    if dataset.missing:
        n_missing = sum(len(s) for keys in dataset.missing.values() for ids in keys.values() for s in ids.values())
        overview += (
            f'<p class="warning">This export is incomplete: {n_missing:,} evaluations are missing (see '
            "missing.json).</p>"
        )
    return overview


def _has_accuracies(folder: DatasetFolder) -> bool:
    keys_by_dataset = {} if folder.sweep is None else folder.sweep["strengths"]
    return any(folder.kind_of(key) != "measure" for keys in keys_by_dataset.values() for key in keys)


def _describe_images(images: Mapping[str, Any]) -> str:
    count = images.get("count")
    return "all test images" if count is None else f"{count:,} test images (seed {images.get('seed')})"


def _describe_weights(name: str, facts: Mapping[str, Any]) -> str:
    if facts.get("is_random"):
        return f"random weights {name}"
    recipe, epochs, seed = (facts.get(field) for field in ("recipe", "epochs", "seed"))
    return f"trained as {name}" if recipe is None else f"trained with recipe {recipe}, {epochs} epochs, seed {seed}"


def _warning(text: str, messages: Sequence[str]) -> str:
    """Return a warning with a list of messages, of which at most `_MAX_WARNING_ITEMS` are shown."""
    n_more = len(messages) - _MAX_WARNING_ITEMS
    shown = [*messages[:_MAX_WARNING_ITEMS], *([f"and {n_more:,} more"] if n_more > 0 else [])]
    items = "".join(f"<li>{html.escape(message)}</li>" for message in shown)
    return f'<div class="warning">{text} <ul>{items}</ul></div>'


def _attack_flags_warning(results: DatasetResults) -> str:
    """Return a list of signs of weak attacks; empty if none, or if the number of images or classes is unknown."""
    n_classes = results.n_classes
    n_images = np.fmin.reduce(results.image_counts.to_numpy(np.float64), axis=None)
    if np.isnan(n_images) or n_classes is None:
        return ""
    accuracies: dict[Any, Any] = {
        (key, strength): results.column(key, strength).dropna().to_dict()
        for key, strength in results.columns
        if results.reader.kind_of(key) != "corruption"  # corruptions have no warning signs
    }
    key, strength = ZERO_GRADIENTS
    if (column := (*key.split(), strength)) in results.measures:
        accuracies[ZERO_GRADIENTS] = results.measures[column].dropna().to_dict()
    flags = find_flags(results.name, accuracies, n_images=int(n_images), n_classes=n_classes)
    return _warning("Signs of weak attacks:", [flag.message for flag in flags]) if flags else ""


def _best_networks_section(rankings: Sequence[Ranking]) -> str:
    """Return the section that names the best networks; empty if there are no accuracies."""
    paragraphs = [
        f'<p>{html.escape(ranking.summary)}</p><p class="muted">{html.escape(ranking.basis)}</p>'
        for ranking in rankings
        if ranking.summary
    ]
    return f'<section id="answer">{"".join(paragraphs)}</section>' if paragraphs else ""


def _dataset_section(results: DatasetResults) -> str:
    blocks, links, omitted_figures = [], [], []
    for figure in FIGURES.values():
        if figure.is_across_datasets:
            continue
        frame = figure.compute_numbers(results)
        if not frame.empty:
            identifier = html.escape(f"{results.name}-{figure.name}")
            blocks.append(_figure_block(figure, frame, results, identifier))
            links.append(f'<a href="#{identifier}">{html.escape(figure.title)}</a>')
        elif figure.max_networks is None:  # with a maximum, the usual reason is that there are more networks
            omitted_figures.append(f"{figure.title} (needs {figure.requirement})")
    name = html.escape(results.name)
    omitted = f"Figures left out because the results they need are missing: {'; '.join(omitted_figures)}."
    return (
        f'<section data-dataset="{name}"><h2>{name}</h2>{_attack_flags_warning(results)}'
        f'<nav aria-label="Figures of {name}">{" ".join(links)}</nav>{"".join(blocks)}'
        f'<p class="muted">{html.escape(omitted) if omitted_figures else ""}</p></section>'
    )


def _across_section(all_results: Sequence[DatasetResults]) -> str:
    """Return the figures across datasets; empty if there are none."""
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


def _figure_block(figure: FigureDefinition, frame: pd.DataFrame, results: DatasetResults, identifier: str) -> str:
    spec = specify_page(figure.draw(frame, results))
    content = _in_page_colours(_embedded_json(spec))
    title = html.escape(figure.title)
    return (
        f'<figure id="{identifier}" data-figure="{html.escape(figure.name)}"><h3>{title}</h3>'
        f'<figcaption id="{identifier}-caption">{html.escape(figure.description)}</figcaption>'
        f'<div class="chart" role="img" aria-label="{title}" aria-describedby="{identifier}-caption"></div>'
        f'<script type="application/json">{content}</script></figure>'
    )


def _cell_specification(space: CellSpace) -> str:
    """Return the specification of the drawing of a cell, whose operations the page sets."""
    chart = space.draw_cell(None, width=CELL_WIDTH).configure(background="transparent").configure_view(stroke=None)
    parameters = {"params": [{"name": "operations", "value": []}]}
    return _in_page_colours(_embedded_json(chart.to_dict(validate=False) | parameters))


def _in_page_colours(specification: str) -> str:
    """Replace the colours of text, lines and background with those of the page."""
    text = specification.replace(INK, "currentColor").replace(GRID, f"var(--grid, {GRID})")
    return text.replace(PAPER, "var(--card)")
