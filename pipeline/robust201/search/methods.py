"""The table of search methods. To add a method, write a file with an `Optimiser` and add a row here."""

from typing import NamedTuple

from robust201.core.errors import ConfigError, closest
from robust201.search.bananas import Bananas
from robust201.search.evolution import RegularizedEvolution
from robust201.search.halving import SuccessiveHalving
from robust201.search.local_search import LocalSearch
from robust201.search.optimiser import Optimiser
from robust201.search.random_search import RandomSearch


class MethodRow(NamedTuple):
    """A search method.

    Attributes:
        name: name on the command line.
        title: name in tables and figures.
        optimiser: class of a run.
        of_parts: whether it evaluates parts of an objective, so that the objective needs several evaluations.
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
    """Return the method of this name; the `ConfigError` for an unknown name suggests the closest."""
    if name not in METHODS:
        raise ConfigError(f"Searching failed for method {name!r}: it does not exist.{closest(name, METHODS)}")
    return METHODS[name]
