"""The report: one self-contained HTML page with the numbers, figures and a cell explorer of a dataset."""

import functools
import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust201 import __version__
from robust201.core.citation import PAPER_BIBTEX, software_bibtex
from robust201.core.errors import DatasetError, ResultsError
from robust201.core.files import check_output_file, read_file, write_text
from robust201.figures.palette import GRID
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.weights_check import check_recorded
from robust201.spaces.cell_space import INK, CellSpace

if TYPE_CHECKING:
    import pandas as pd

    from robust201.analysis.dataset_results import DatasetResults
    from robust201.analysis.leaderboard import Leaderboard
    from robust201.core.records import ImageSet
    from robust201.figures.table import FigureRow


PAGE_NEEDS = "window.vegaEmbed = vegaEmbed;"
"""What the page's script uses of Vega, Vega-Lite and Vega-Embed."""

_MOST_NAMED = 20
"""Networks that the page names where weights are in doubt."""

_MOST_ROWS = 20
"""Networks on a leaderboard."""

_MAX_CARD_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Accuracies of all architectures, fractions, under one key at one strength, also with its unit (``ε = 8/255``)."""

    dataset: str
    key: str
    strength: float
    strength_label: str
    minimum: float
    median: float
    maximum: float
    n_architectures: int


def summary_table(dataset: RobustnessDataset) -> list[SummaryRow]:
    """Summarise accuracies, in the order of the folder's datasets and keys, strengths ascending."""
    from robust201.analysis.dataset_results import read_results

    return [row for results in read_results(dataset) for row in _summarise(results)]


def write_report(
    dataset: RobustnessDataset,
    out: Path,
    *,
    mean: str = "over-evaluations",
    epsilon: str | None = None,
    images: "ImageSet | None" = None,
) -> Path:
    """Write one HTML page with the figures of every dataset and an explorer; it needs no other file and no network.

    Args:
        dataset: the results.
        out: the file.
        mean: how means weigh keys and strengths, a name of `dataset_results.MEANS`.
        epsilon: the answer and the leaderboard show the attacks that were run at this (see `names_at_epsilon`).
        images: the test images of the folder's one dataset, for thumbnails in the gallery of single images.

    Raises:
        DatasetError: the images are not those that were evaluated, or the folder has several datasets.
    """
    check_output_file(out)
    import vl_convert

    from robust201.analysis.chosen_epsilon import names_at_epsilon
    from robust201.analysis.dataset_results import MEANS, read_results
    from robust201.analysis.leaderboard import make_leaderboard

    dataset = dataset.select()
    held = read_results(dataset, mean=mean)
    if not held:
        raise ResultsError(
            f"Writing a report failed for {dataset.path}: expected accuracies, got none. Export some, or download them."
        )
    space = dataset.files.space
    named = "networks" if space is None else space.title
    title = f"Robustness of {named}: {', '.join(results.name for results in held)}"
    if images is not None and len(held) > 1:
        raise DatasetError(
            f"Writing a report failed for {dataset.path}: expected one dataset with images for its gallery, got "
            f"{', '.join(results.name for results in held)}. Leave the images out."
        )
    boards = [make_leaderboard(results, names_at_epsilon(results, epsilon), most=_MOST_ROWS) for results in held]
    sections = [_section(results, board, images) for results, board in zip(held, boards, strict=True)]
    write_text(
        out,
        _fill(
            _page_template(space),
            title=html.escape(title),
            style=_resource("report.css"),
            dataset_options="".join(f"<option>{html.escape(results.name)}</option>" for results in held),
            answer=_answer(boards),
            overview=_overview(dataset, held),
            **_cell_parts(space),
            means=html.escape(MEANS[mean]),
            filters=_score_filters(held),
            sections="\n".join(sections),
            across=_across_section(held),
            citation=html.escape(f"{PAPER_BIBTEX}\n\n{software_bibtex(__version__)}"),
            card=_card(dataset),
            protocol=_protocol(dataset),
            page_data=_embedded_figures(_page_data(held, space)),
            vega=vl_convert.javascript_bundle(PAGE_NEEDS),
            script=_resource("report.js"),
        ),
    )
    return out


def _resource(name: str) -> str:
    return (resources.files("robust201.figures") / name).read_text(encoding="utf-8")


def _page_template(space: CellSpace | None) -> str:
    """Read the page; where architectures are no cells, without what it has of cells."""
    template = _resource("report_page.html")
    kept = "" if space is None else r"\1"
    return re.sub("<!--cells-->\n(.*?)<!--/cells-->\n", kept, template, flags=re.DOTALL)


def _cell_parts(space: CellSpace | None) -> dict[str, str]:
    """Make what the page has of cells, by name in the template."""
    if space is None:
        return {}
    return {
        "about": html.escape(space.about),
        "last_index": str(len(space.specs()) - 1),
        "largest_cell": str(space.max_kernel_parameters),
        "edge_menus": _edge_menus(space),
        "cell_drawing": _cell_drawing(space),
    }


def _fill(template: str, **parts: str) -> str:
    """Put parts in the place of their names in braces, once: braces inside a part stay."""
    return re.sub("{(" + "|".join(parts) + ")}", lambda match: parts[match[1]], template)


def _embedded_json(value: Any) -> str:
    """Write a JSON value that no text in it can end the script element of."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _embedded_figures(value: Any) -> str:
    """Write specifications likewise, in the colours of the page around them."""
    return _embedded_json(value).replace(INK, "currentColor").replace(GRID, f"var(--grid, {GRID})")


def _page_data(held: "Sequence[DatasetResults]", space: CellSpace | None) -> dict[str, Any]:
    from robust201.figures.packed_accuracies import MISSING, RESOLUTION, pack_results, pack_space
    from robust201.figures.page_figures import empty_changes, page_config

    return {
        "space": None if space is None else pack_space(space),
        "datasets": [pack_results(results) for results in held],
        "missing": MISSING,
        "resolution": RESOLUTION,
        "config": page_config(),
        "neighbours": None if space is None else empty_changes(space),
    }


def _summarise(results: "DatasetResults") -> list[SummaryRow]:
    from robust201.analysis.labels import strength_label
    from robust201.reader.result_files import paper_key

    rows = []
    for key in (key for keys in results.reader.files.keys_by_kind().values() for key in keys):
        for strength in results.strengths(paper_key(key)):
            values = results.column(paper_key(key), strength)
            label = strength_label(key, strength, results.reader.strengths(results.name, key))
            low, middle, high = float(values.min()), float(values.median()), float(values.max())
            rows.append(SummaryRow(results.name, key, strength, label, low, middle, high, int(values.count())))
    return rows


def _overview(dataset: RobustnessDataset, held: "Sequence[DatasetResults]") -> str:
    n_datasets, keys = len(held), {key for results in held for key, _ in results.columns}
    architectures = {architecture for results in held for architecture in results.architectures}
    words = "networks" if dataset.files.space is None else "non-isomorphic architectures"
    facts = [
        f"{len(architectures):,} of {len(dataset.non_isomorph_ids):,} {words}",
        f"{len(keys)} keys",
        f"{n_datasets} dataset{'' if n_datasets == 1 else 's'}",
    ]
    if dataset.sweep is not None:
        images: dict[str, Any] | None = dataset.sweep.get("sweep", {}).get("images")  # an import has none
        if images is not None:
            count = images.get("count")
            facts.append("all test images" if count is None else f"{count:,} test images (seed {images.get('seed')})")
        facts.append(f"robust201 {dataset.sweep.get('robust201', 'of an unknown version')}")
    text = f"<p>{html.escape('; '.join(facts))}. Accuracy is the share of images classified correctly.</p>"
    text += _weights_check(dataset)
    if dataset.missing:
        lacking = sum(
            len(strengths) for keys in dataset.missing.values() for ids in keys.values() for strengths in ids.values()
        )
        text += (
            f'<p class="warning">A partial export: {lacking:,} evaluations are missing (missing.json names them).</p>'
        )
    return text


def _weights_check(dataset: RobustnessDataset) -> str:
    """Say whether clean accuracies are those recorded with the weights; nothing where none were."""
    check = check_recorded(dataset)
    n_expected = check.n_checked - len(check.unexpected)
    if not check.unexpected:
        return (
            f"<p>Clean accuracy is as recorded with the weights, for all {n_expected:,} networks.</p>"
            if n_expected
            else ""
        )
    lines = "".join(f"<li>{html.escape(one.message)}</li>" for one in check.unexpected[:_MOST_NAMED])
    more = len(check.unexpected) - _MOST_NAMED
    lines += f"<li>and {more:,} more</li>" if more > 0 else ""
    return (
        f'<div class="warning">Clean accuracy differs from what was recorded with the weights, for '
        f"{len(check.unexpected):,} of {check.n_checked:,} networks: <ul>{lines}</ul></div>"
    )


def _attack_flags(results: "DatasetResults") -> str:
    """Name the signs of weak attacks; nothing where none can be looked for, as without the number of images."""
    from robust201.statistics.attack_flags import ZERO_GRADIENTS, find_flags, transfers_of

    n_classes = results.reader.files.count_classes(results.name)
    if results.n_images is None or n_classes is None:
        return ""
    accuracies: dict[Any, Any] = {
        (key, strength): results.column(key, strength).dropna().to_dict()
        for key, strength in results.columns
        if results.reader.files.kind_of(key) != "corruption"  # no sign is looked for there
    }
    key, strength = ZERO_GRADIENTS
    if (measured := (*key.split(), strength)) in results.measures:
        accuracies[ZERO_GRADIENTS] = results.measures[measured].dropna().to_dict()
    transfers = transfers_of(((results.reader.sweep or {}).get("sweep") or {}).get("protocols", ()))
    flags = find_flags(results.name, accuracies, n_images=results.n_images, n_classes=n_classes, transfers=transfers)
    if not flags:
        return ""
    lines = "".join(f"<li>{html.escape(flag.message)}</li>" for flag in flags[:_MOST_NAMED])
    return f'<div class="warning">Signs of weak attacks: <ul>{lines}</ul></div>'


def _answer(boards: "Sequence[Leaderboard]") -> str:
    """Say which networks are best, before anything else; nothing where there is no attack and no corruption."""
    answers = [f"<p>{html.escape(board.answer)}</p>" for board in boards if board.answer]
    basis = f'<p class="muted">{html.escape(boards[0].basis)}</p>'
    return f'<section id="answer">{"".join(answers)}{basis}</section>' if answers else ""


def _leaderboard(board: "Leaderboard") -> str:
    """Show networks by evaluations; what is best, or tied with the best, is bold."""
    if not board.standings:
        return ""
    frame = board.to_frame()
    cells = {
        (row["network"], row["evaluation"]): _leaderboard_cell(
            row["accuracy"], row["low"], row["high"], row["tied"], row.get("estimated", False)
        )
        for row in frame.to_dict("records")
    }
    lines = []
    for network in board.networks:
        name = html.escape(board.results.network_label(network))
        if board.results.space is not None:
            name = f'<a href="#cell={network}" data-cell="{network}">{name}</a>'
        columns = "".join(f"<td>{cells.get((network, one.name), '–')}</td>" for one in board.standings)
        lines.append(f"<tr><th>{name}</th>{columns}</tr>")
    head = "".join(f"<th>{html.escape(one.label)}</th>" for one in board.standings)
    n_all = len(board.results.accuracies)
    shown = "" if len(lines) == n_all else f"The first {len(lines)} of {n_all:,} networks, by the first attack. "
    label = f"Leaderboard of {html.escape(board.results.name)}"
    return (
        f'<h3>Leaderboard</h3><p class="muted">{shown}Accuracy in % with its 95% interval; bold is best or tied with '
        f'the best.</p><div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="leaderboard">'
        f"<thead><tr><th>network</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _leaderboard_cell(accuracy: float, low: float, high: float, tied: bool, estimated: bool) -> str:
    number = f"{'~' if estimated else ''}{100 * accuracy:.1f}"
    text = f"<strong>{number}</strong>" if tied else number
    return text if math.isnan(low) else f"{text} <small>[{100 * low:.1f}, {100 * high:.1f}]</small>"


def _section(results: "DatasetResults", board: "Leaderboard", images: "ImageSet | None") -> str:
    from robust201.figures.image_cards import image_section
    from robust201.figures.table import FIGURES

    blocks, links, lacking = [], [], []
    for row in FIGURES.values():
        if row.across:
            continue
        frame = row.numbers(results)
        if frame.empty and row.most is None:
            lacking.append(f"{row.title} (needs {row.requirement.replace('`', '')})")
        elif frame.empty:  # others show as many networks
            continue
        else:
            identifier = html.escape(f"{results.name}-{row.name}")
            blocks.append(_figure_block(row, frame, results, identifier))
            links.append(f'<a href="#{identifier}">{html.escape(row.title)}</a>')
    name = html.escape(results.name)
    count = f"<p>{results.extent}.</p>"
    left_out = html.escape(f"Left out, because the results are not enough: {'; '.join(lacking)}.") if lacking else ""
    return (
        f'<section data-dataset="{name}"><h2>{name}</h2>{count}{_attack_flags(results)}{_leaderboard(board)}'
        f'<nav aria-label="Figures of {name}">{" ".join(links)}</nav>'
        f'{"".join(blocks)}<p class="muted">{left_out}</p>'
        f"{_table(_summarise(results))}{_measure_table(results)}"
        f"{image_section(results, images)}</section>"
    )


def _across_section(held: "Sequence[DatasetResults]") -> str:
    """The figures of all datasets at once; nothing where there is none."""
    from robust201.figures.table import FIGURES

    frames = {row: row.numbers(held[0]) for row in FIGURES.values() if row.across}
    blocks = [
        _figure_block(row, frame, held[0], f"across-{row.name}") for row, frame in frames.items() if not frame.empty
    ]
    if not blocks:
        return ""
    return f'<section id="across"><h2>Across datasets</h2>{"".join(blocks)}</section>'


def _score_filters(held: "Sequence[DatasetResults]") -> str:
    from robust201.analysis.dataset_results import SCORES

    return "".join(
        f'<label>{label} ≥ <input type="number" min="0" max="100" step="any" data-score="{score}">%</label>'
        for score, label in SCORES.items()
        if any(score in results.scores for results in held)
    )


def _figure_block(row: "FigureRow", frame: "pd.DataFrame", results: "DatasetResults", identifier: str) -> str:
    from robust201.figures.page_figures import page_views

    figure = row.specify(frame, results)
    content = page_views(figure, results)
    title = html.escape(row.title)
    options = "".join(
        f"<option{' selected' if panel.first else ''}>{html.escape(panel.label)}</option>" for panel in figure.panels
    )
    menu = f'<label class="view">Show <select aria-label="{title}: what to show">{options}</select></label>'
    return (
        f'<figure id="{identifier}" data-figure="{html.escape(row.name)}"><h3>{title}</h3>'
        f'<figcaption id="{identifier}-caption">{html.escape(row.describe(results))}</figcaption>'
        f"{menu if len(figure.panels) > 1 and figure.menu else ''}"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f'<div class="chart" role="img" aria-label="{title}" aria-describedby="{identifier}-caption"></div></div>'
        f"{_cards(frame, results.n_images) if row.shows_cells else ''}"
        f'<script type="application/json">{_embedded_figures(content)}</script></figure>'
    )


def _cards(frame: "pd.DataFrame", n_images: int | None) -> str:
    from robust201.analysis.dataset_results import SCORES
    from robust201.figures.palette import tie_words
    from robust201.reader.value_checks import CLEAN
    from robust201.statistics.intervals import accuracy_intervals

    cards = []
    for row in frame.itertuples():
        link = f'<a href="#cell={row.architecture}" data-cell="{row.architecture}">#{row.architecture}</a>'
        text = f"{html.escape(str(row.Index))}: {row.accuracy:.2%}"
        if n_images is not None and row.Index == SCORES[CLEAN]:
            low, high = accuracy_intervals(float(str(row.accuracy)), n_images)
            text += f" [{100 * float(low):.1f}, {100 * float(high):.1f}]"
        link += tie_words(int(str(row.tied)))
        cards.append(f'<li class="card"><div data-draw="{row.architecture}"></div><p>{text}<br>{link}</p></li>')
    return f'<ul class="cards">{"".join(cards)}</ul>'


def _edge_menus(space: CellSpace) -> str:
    options = "".join(f"<option>{space.operation_labels[operation]}</option>" for operation in space.operations)
    return "".join(
        f'<label>{label}<select id="edge-{edge}">{options}</select></label>'
        for edge, label in enumerate(space.edge_labels)
    )


@functools.cache  # it takes longer than all else of a small page, and follows from the space alone
def _cell_drawing(space: CellSpace) -> str:
    """Draw a cell with all operations on every edge, as an SVG element in the colours of the page around it."""
    parts = space.every_edge()
    left, right, bottom, top = parts.bounds
    lines = []
    for one in parts.edges:
        path = " ".join(f"{x:.3f},{-y:.3f}" for x, y in one.curve)
        dashes = ' stroke-dasharray=".04 .05"' if one.operation == "none" else ""
        (x, y), (at_x, at_y) = one.curve[-1], one.label
        lines.append(
            f'<g data-edge="{one.edge}" data-operation="{one.operation}">'
            f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width=".03"{dashes}/>'
            f'<path d="M0 0L-.16 .07V-.07Z" fill="{one.colour}" transform="translate({x:.3f},{-y:.3f}) '
            f'rotate({-one.angle:.1f})"/><text x="{at_x:.3f}" y="{-at_y:.3f}" fill="{one.colour}" '
            f'stroke="var(--card)" stroke-width=".08" paint-order="stroke">{html.escape(one.text)}</text></g>'
        )
    for name, (x, y) in parts.nodes.items():
        lines.append(
            f'<circle cx="{x}" cy="{-y}" r="{parts.radius}" fill="var(--card)" stroke="currentColor" '
            f'stroke-width=".03"/><text x="{x}" y="{-y}" fill="currentColor">{name}</text>'
        )
    look = "font-size: .17px; text-anchor: middle; dominant-baseline: central"
    box = f"{left} {-top} {right - left} {top - bottom}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{box}" style="{look}">{"".join(lines)}</svg>'


def _card(dataset: RobustnessDataset) -> str:
    """Render the dataset's card, without its metadata; HTML in it is escaped. Empty where there is none."""
    from markdown_it import MarkdownIt

    path = dataset.path / "README.md"
    if not path.is_file():
        return ""
    card = read_file(path, _MAX_CARD_BYTES).decode(errors="replace")
    card_text = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(card_text)
    scrolled = f'<div class="scroll" tabindex="0" role="region" aria-label="Dataset card">{rendered}</div>'
    return f'<h2>Dataset card</h2><details id="card"><summary>README.md</summary>{scrolled}</details>'


def _protocol(dataset: RobustnessDataset) -> str:
    if dataset.sweep is None:
        return ""
    text = html.escape(json.dumps(dataset.sweep, indent=2, ensure_ascii=False))
    return f"<h2>Protocol</h2><details><summary>sweep.json</summary><pre>{text}</pre></details>"


def _table(rows: Iterable[SummaryRow]) -> str:
    from robust201.analysis.labels import key_label

    lines = []
    previous = ""
    for row in rows:
        key = key_label(row.key) if row.key != previous else ""
        previous = row.key
        cells = "".join(f"<td>{value:.1%}</td>" for value in (row.minimum, row.median, row.maximum))
        cells += f"<td>{row.n_architectures:,}</td>"
        start = ' class="start"' if key else ""
        lines.append(f"<tr{start}><th>{html.escape(key)}</th><th>{html.escape(row.strength_label)}</th>{cells}</tr>")
    return _folded_table("Accuracy by key and strength", ("key", "strength"), lines)


def _measure_table(results: "DatasetResults") -> str:
    """Summarise what was measured of the networks themselves, and under keys that are in no table."""
    from robust201.analysis.labels import measure_label

    lines = []
    for measure, values in results.measures.items():
        held = values.dropna()
        cells = "".join(f"<td>{number:.4g}</td>" for number in (held.min(), held.median(), held.max()))
        label = html.escape(measure_label(*measure))  # type: ignore[misc]
        lines.append(f"<tr><th>{label}</th>{cells}<td>{len(held):,}</td></tr>")
    return _folded_table("Measures", ("measure",), lines) if lines else ""


_SPREAD = ("lowest", "median", "highest", "architectures")


def _folded_table(title: str, names: Sequence[str], lines: Sequence[str], columns: Sequence[str] = _SPREAD) -> str:
    head = "".join(f"<th>{name}</th>" for name in (*names, *columns))
    return (
        f'<details><summary>{title}</summary><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></details>"
    )
