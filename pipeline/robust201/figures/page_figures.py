"""Specifications of the figures on the report's page, which the page's script completes and draws.

A figure with a menu has one view per panel; other figures have a single view.

A specification may contain placeholders such as ``@label`` for values of a view. Views that differ only in these values
share a specification.
"""

import json
from typing import Any

import pandas as pd

from robust201.analysis.dataset_results import DatasetResults
from robust201.figures.figure_data import operation_names
from robust201.figures.panels import VEGA_LITE, Figure, Panel, PanelLayout, Spec, arrange, vega_config
from robust201.figures.specifications import change_map
from robust201.spaces.cell_space import CellSpace

PAGE_WIDTH = 690.0
"""Width of figures that are as wide as the page, in points."""

AXES_WIDTH = 60.0
"""Approximate total width of the axes' labels, in points."""


def page_config() -> Spec:
    """Return the Vega-Lite configuration of the page's figures; the page's style replaces the colours."""
    return vega_config(None) | {"font": "system-ui, sans-serif"}


def page_views(figure: Figure, results: DatasetResults) -> dict[str, Any]:
    """Return the specifications of a figure's views.

    Returns:
        `figures` (specifications without a configuration) and `views`. Each view has its `label` and the index of its
        `figure`. `column` and `limits` are None unless the page takes the view's points from the explorer's data:
        `column` is then an index into `DatasetResults.columns` or the name of a score, and `limits` are those of the
        vertical axis.
    """
    groups = [[panel] for panel in figure.panels] if figure.has_menu else [list(figure.panels)]
    columns = {column: index for index, column in enumerate(results.columns)}
    figure_indices: dict[str, int] = {}
    views = []
    for panels in groups:
        spec_json = json.dumps(_specify(figure, panels), ensure_ascii=False)
        (panel, *_) = panels
        column = panel.column
        views.append(
            {
                "label": panel.label if figure.has_menu else "",
                "figure": figure_indices.setdefault(spec_json, len(figure_indices)),
                "column": column if column is None or isinstance(column, str) else columns[column],
                "limits": panel.limits,
            }
        )
    return {"figures": [json.loads(spec_json) for spec_json in figure_indices], "views": views}


def _specify(figure: Figure, panels: list[Panel]) -> Spec:
    body = arrange(figure, panels, figure.page_width or PAGE_WIDTH, AXES_WIDTH, is_on_page=True)
    spec: Spec = {"$schema": VEGA_LITE, **(body["concat"][0] if len(panels) == 1 else body)}
    if figure.label and not figure.has_menu:
        spec["title"] = {"text": figure.label, "orient": "bottom", "anchor": "middle", "frame": "bounds", "offset": 4}
    if panels[0].column is not None:
        names = ("low", "high", "chosen")
        spec["params"] = [{"name": name, "value": f"@{name}"} for name in names]
    return spec


def empty_change_map(space: CellSpace) -> Spec:
    """Return the explorer's heat map of accuracy changes without data: the page fills in ``changes`` and the limits."""
    zero_changes = pd.DataFrame(0.0, space.edge_labels, operation_names(space))
    tooltip_texts = [[""] * zero_changes.shape[1]] * len(zero_changes)
    spec = change_map(PanelLayout(300.0, is_on_page=True), zero_changes, [0] * len(zero_changes), tooltip_texts, 1.0)
    spec["layer"][0]["encoding"]["color"]["scale"]["domain"] = ["@low", "@high"]
    return {"$schema": VEGA_LITE} | spec | {"data": {"name": "changes"}}
