"""The table of figures.

To add a figure, add its `FigureDefinition` to `FIGURES` of one of the modules imported here, beside a function that
returns its numbers as a DataFrame and a function that draws them. The command line, the report and the tests of all
figures then include the figure.
"""

from robust201.core.errors import ConfigError, did_you_mean
from robust201.figures import boxes, cells, confidences, confusion, correlations, curves, scatter
from robust201.figures.definition import FigureDefinition

FIGURES: dict[str, FigureDefinition] = {
    figure.name: figure
    for module in (curves, boxes, correlations, scatter, cells, confidences, confusion)
    for figure in module.FIGURES
}
"""Figures by name, in their order in the report."""


def find_figure(name: str) -> FigureDefinition:
    """Return the figure with this name."""
    if name not in FIGURES:
        raise ConfigError(
            f"Looking up a figure failed: {name!r} is not in `robust201 plot --list`.{did_you_mean(name, FIGURES)}"
        )
    return FIGURES[name]
