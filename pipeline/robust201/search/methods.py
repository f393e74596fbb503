"""The table of search methods. To add a method, write a subclass of `Optimiser`, and add a row to `METHODS`."""

from typing import NamedTuple

from robust201.core.errors import ConfigError, did_you_mean
from robust201.search.bananas import Bananas
from robust201.search.evolution import RegularizedEvolution
from robust201.search.local_search import LocalSearch
from robust201.search.optimiser import Optimiser
from robust201.search.random_search import RandomSearch


class MethodRow(NamedTuple):
    """A search method.

    Attributes:
        name: name on the command line.
        title: name in tables and figures.
        optimiser: class whose instances are runs of the method.
    """

    name: str
    title: str
    optimiser: type[Optimiser]


METHODS: dict[str, MethodRow] = {
    row.name: row
    for row in (
        MethodRow("bananas", "BANANAS", Bananas),
        MethodRow("local", "Local search", LocalSearch),
        MethodRow("random", "Random search", RandomSearch),
        MethodRow("evolution", "Regularised evolution", RegularizedEvolution),
    )
}


def find_method(name: str) -> MethodRow:
    """Return the method with this name; for an unknown name, raise a ConfigError that suggests the closest name."""
    if name not in METHODS:
        raise ConfigError(
            f"Searching failed for method {name!r}: there is no such method.{did_you_mean(name, METHODS)}"
        )
    return METHODS[name]
