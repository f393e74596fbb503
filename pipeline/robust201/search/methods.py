"""The table of search methods; a new one is a file with an `Optimiser` and a row here."""

from typing import NamedTuple

from robust201.core.errors import ConfigError, closest
from robust201.search.bananas import Bananas
from robust201.search.evolution import RegularizedEvolution
from robust201.search.halving import SuccessiveHalving
from robust201.search.local_search import LocalSearch
from robust201.search.optimiser import Optimiser
from robust201.search.random_search import RandomSearch


class MethodRow(NamedTuple):
    """One row of the table.

    Attributes:
        name: for the command line.
        title: for tables and figures.
        optimiser: one run of it.
        of_parts: whether it evaluates parts of an objective, so that it needs one of several evaluations.
    """

    name: str
    title: str
    optimiser: type[Optimiser]
    of_parts: bool = False


METHODS: dict[str, MethodRow] = {
    row.name: row
    for row in (
        MethodRow("bananas", "BANANAS", Bananas),
        MethodRow("local", "Local search", LocalSearch),
        MethodRow("random", "Random search", RandomSearch),
        MethodRow("evolution", "Regularised evolution", RegularizedEvolution),
        MethodRow("halving", "Successive halving", SuccessiveHalving, of_parts=True),
    )
}


def find_method(name: str) -> MethodRow:
    """Find a method by its name; a `ConfigError` names the closest."""
    if name not in METHODS:
        raise ConfigError(f"Searching failed for method {name!r}: expected a known one.{closest(name, METHODS)}")
    return METHODS[name]
