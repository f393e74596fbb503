"""Figures on the page: their views as specifications that the page completes and draws.

A view's specification may hold the texts `LABEL` and so on, which stand for values of the view; so views that differ in
nothing else share one.
"""

import json
from typing import Any

import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.figures.figure_data import operation_names
from robust201.figures.panels import VEGA_LITE, Figure, Panel, PanelPlace, Spec, arrange, configure
from robust201.figures.specifications import change_map
from robust201.spaces.cell_space import CellSpace

PAGE_WIDTH = 690.0
"""Of figures as wide as the page, in points."""

SPARE = 60.0
"""What axes take of it, about."""


def page_config() -> Spec:
    """Give text and lines of the page's figures their sizes; the page replaces their colours."""
    return configure(None) | {"font": "system-ui, sans-serif"}


def page_views(figure: Figure, results: DatasetResults) -> dict[str, Any]:
    """Specify what the page shows of a figure.

    Returns:
        `figures`, specifications without a configuration, and `views`, each with its `label`, the position of its
        `figure`, and, where the page has the points, the `column` of these: a position of `DatasetResults.columns` or
        the name of a score, with the `limits` of the vertical axis.
    """
    groups = [[panel] for panel in figure.panels] if figure.menu else [list(figure.panels)]
    columns = {column: place for place, column in enumerate(results.columns)}
    figures: dict[str, int] = {}
    views = []
    for panels in groups:
        text = json.dumps(_specify(figure, panels), ensure_ascii=False)
        (panel, *_) = panels
        column = panel.column
        views.append(
            {
                "label": panel.label if figure.menu else "",
                "figure": figures.setdefault(text, len(figures)),
                "column": column if column is None or isinstance(column, str) else columns[column],
                "limits": panel.limits,
            }
        )
    return {"figures": [json.loads(text) for text in figures], "views": views}


def _specify(figure: Figure, panels: list[Panel]) -> Spec:
    body = arrange(figure, panels, figure.page_width or PAGE_WIDTH, SPARE, page=True)
    spec: Spec = {"$schema": VEGA_LITE, **(body["concat"][0] if len(panels) == 1 else body)}
    if figure.label and not figure.menu:
        spec["title"] = {"text": figure.label, "orient": "bottom", "anchor": "middle", "frame": "bounds", "offset": 4}
    if panels[0].column is not None:
        names = ("low", "high", "chosen")
        spec["params"] = [{"name": name, "value": f"@{name}"} for name in names]
    return spec


def empty_changes(space: CellSpace) -> Spec:
    """Specify the map of changes that the page's explorer fills: the dataset ``changes`` and the end of its colours."""
    blank = pd.DataFrame(0.0, space.edge_labels, operation_names(space))
    hovers = [[""] * blank.shape[1]] * len(blank)
    spec = change_map(PanelPlace(300.0, page=True), blank, [0] * len(blank), hovers, 1.0)
    spec["layer"][0]["encoding"]["color"]["scale"]["domain"] = ["@low", "@high"]
    return {"$schema": VEGA_LITE} | spec | {"data": {"name": "changes"}}
