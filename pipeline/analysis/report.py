"""The report: one self-contained HTML page with the numbers and figures of a dataset, and the figures as PNG files."""

import html
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.analysis.reader import RobustnessDataset
from pipeline.analysis.result_files import kind_of
from pipeline.files import atomic_write, write_text
from pipeline.records import CLEAN_STRENGTH

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from pipeline.analysis.figures import NamedFigure

PNG_DPI = 120


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Accuracies of all architectures under one key at one strength.

    Attributes:
        dataset: name of the dataset.
        key: the key, as the folder spells it.
        strength: epsilon in units of 1/255, severity, or 0 for ``clean``.
        strength_label: the strength with its unit, such as ``ε = 8/255``; empty for ``clean``.
        minimum: lowest accuracy, a fraction.
        median: median accuracy.
        maximum: highest accuracy.
        n_architectures: how many architectures there are.
    """

    dataset: str
    key: str
    strength: float
    strength_label: str
    minimum: float
    median: float
    maximum: float
    n_architectures: int


def summary_table(dataset: RobustnessDataset) -> list[SummaryRow]:
    """Summarise accuracies by dataset, key and strength.

    Args:
        dataset: the results.

    Returns:
        Rows in the order of the folder's datasets and keys, strengths ascending.

    Raises:
        ResultsError: a file is damaged.
    """
    return _summarise(dataset.to_frame())


def save_plots(dataset: RobustnessDataset, out: Path) -> list[Path]:
    """Draw the figures of every dataset as PNG files.

    Args:
        dataset: the results.
        out: folder for the files; made if absent.

    Returns:
        The files, ``<dataset>-<figure>.png``.
    """
    from pipeline.analysis.figures import INK

    paths = []
    for name, drawn in _figures(dataset.to_frame()):
        drawn.figure.suptitle(drawn.title, fontsize=13, fontweight="bold", color=INK)
        path = out / f"{name}-{drawn.name}.png"
        with atomic_write(path) as stream:
            # Software is the one entry that would make equal results give unequal bytes.
            drawn.figure.savefig(stream, format="png", dpi=PNG_DPI, metadata={"Software": None})
        paths.append(path)
    return paths


def write_report(dataset: RobustnessDataset, out: Path) -> Path:
    """Write one HTML page with a summary table and the figures of every dataset; it needs no other file and no network.

    Args:
        dataset: the results.
        out: the file; an existing one is replaced.

    Returns:
        The file.

    Raises:
        ResultsError: a file of the dataset is damaged.
    """
    frame = dataset.to_frame()
    rows = _summarise(frame)
    drawn = list(_figures(frame))
    names = list(dict.fromkeys(row.dataset for row in rows))
    title = "Robustness results" if dataset.sweep is None else f"Robustness results: {dataset.sweep['sweep']['name']}"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        _overview(dataset, frame),
        "<nav>" + " ".join(f'<a href="#{html.escape(name)}">{html.escape(name)}</a>' for name in names) + "</nav>",
    ]
    for name in names:
        body.append(f'<h2 id="{html.escape(name)}">{html.escape(name)}</h2>')
        body += [_figure_block(figure, f"{name}-{figure.name}") for of, figure in drawn if of == name]
        body.append(_table(row for row in rows if row.dataset == name))
    if dataset.sweep is not None:
        protocol = html.escape(json.dumps(dataset.sweep, indent=2, ensure_ascii=False))
        body.append(f"<h2>Protocol</h2><details><summary>sweep.json</summary><pre>{protocol}</pre></details>")
    page = (resources.files("pipeline.analysis") / "report_page.html").read_text(encoding="utf-8")
    write_text(out, page.replace("{title}", html.escape(title)).replace("{body}", "\n".join(body)))
    return out


def _summarise(frame: "pd.DataFrame") -> list[SummaryRow]:
    rows = []
    groups: Any = frame.groupby(["dataset", "key", "strength"], observed=True)["value"]
    for (dataset, key, strength), values in groups:
        kind = kind_of(key)
        # The clean accuracy in front of an attack is in the table under its own key.
        if kind != "clean" and strength == CLEAN_STRENGTH:
            continue
        label = {"clean": "", "corruption": f"severity {strength:g}"}.get(kind, f"ε = {strength:g}/255")
        low, middle, high = float(values.min()), float(values.median()), float(values.max())
        rows.append(SummaryRow(dataset, key, float(strength), label, low, middle, high, int(values.count())))
    return rows


def _figures(frame: "pd.DataFrame") -> Iterator[tuple[str, "NamedFigure"]]:
    from pipeline.analysis.figures import draw_figures

    for name in frame["dataset"].cat.categories:
        for drawn in draw_figures(frame, name):
            yield name, drawn


def _overview(dataset: RobustnessDataset, frame: "pd.DataFrame") -> str:
    """Facts in a line, and what a partial export lacks."""
    facts = [
        f"{frame['architecture'].nunique():,} of {len(dataset.non_isomorph_ids):,} non-isomorphic architectures",
        f"{frame['key'].nunique()} keys",
        f"{len(frame['dataset'].cat.categories)} datasets",
    ]
    if dataset.sweep is not None:
        images: dict[str, Any] = dataset.sweep["sweep"]["images"]
        count = images.get("count")
        facts.append("all test images" if count is None else f"{count:,} test images (seed {images.get('seed')})")
        facts.append(f"robust201 {dataset.sweep['robust201']}")
    text = f"<p>{html.escape('; '.join(facts))}. Accuracy is the share of images classified correctly.</p>"
    if dataset.missing:
        lacking = sum(
            len(strengths) for keys in dataset.missing.values() for ids in keys.values() for strengths in ids.values()
        )
        text += (
            f'<p class="warning">A partial export: {lacking:,} evaluations are missing (missing.json names them).</p>'
        )
    return text


def _figure_block(drawn: "NamedFigure", identifier: str) -> str:
    title = html.escape(drawn.title)
    return (
        f"<figure>{_inline_svg(drawn.figure, identifier, title)}"
        f"<figcaption><b>{title}.</b> {html.escape(drawn.caption)}</figcaption></figure>"
    )


def _inline_svg(figure: "Figure", identifier: str, title: str) -> str:
    """Render a figure as an SVG element whose text and lines take the colours of the page around it."""
    from matplotlib import rc_context

    from pipeline.analysis.figures import GRID, INK

    stream = io.StringIO()
    # The salt makes ids, and so bytes, depend on the figure alone.
    with rc_context({"svg.hashsalt": identifier, "svg.fonttype": "path"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(
        r'(<svg[^>]*?) width="([\d.]+)pt"', rf'\1 style="max-width:\2pt" role="img" aria-label="{title}"', text, count=1
    )
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids are unique in one SVG document; on a page with several they need the figure's name in front.
    text = re.sub(r'\bid="', f'id="{identifier}-', text)
    text = re.sub(r'href="#', f'href="#{identifier}-', text)
    text = text.replace("url(#", f"url(#{identifier}-")
    return text.replace(INK, "currentColor").replace(GRID, "var(--grid)")


def _table(rows: Iterable[SummaryRow]) -> str:
    lines = []
    previous = ""
    for row in rows:
        key = row.key if row.key != previous else ""
        previous = row.key
        numbers: Sequence[str] = [f"{value:.1%}" for value in (row.minimum, row.median, row.maximum)]
        cells = "".join(f"<td>{cell}</td>" for cell in (*numbers, f"{row.n_architectures:,}"))
        start = ' class="start"' if key else ""
        lines.append(f"<tr{start}><th>{html.escape(key)}</th><th>{html.escape(row.strength_label)}</th>{cells}</tr>")
    head = "<th>key</th><th>strength</th><th>lowest</th><th>median</th><th>highest</th><th>architectures</th>"
    return (
        "<details open><summary>Accuracy by key and strength</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></details>"
    )
