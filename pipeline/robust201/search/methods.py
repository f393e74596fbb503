"""The table of search methods. To add a method, write a subclass of `Optimiser`, and add it to `METHODS`."""

from robust201.core.errors import ConfigError, did_you_mean
from robust201.search.bananas import Bananas
from robust201.search.evolution import RegularizedEvolution
from robust201.search.local_search import LocalSearch
from robust201.search.optimiser import Optimiser
from robust201.search.random_search import RandomSearch

METHODS: dict[str, type[Optimiser]] = {
    "bananas": Bananas,
    "local": LocalSearch,
    "random": RandomSearch,
    "evolution": RegularizedEvolution,
}
"""Classes of the methods, by name on the command line; an instance is one run."""


def find_method(name: str) -> type[Optimiser]:
    """Return the method with this name; for an unknown name, raise a ConfigError that suggests the closest name."""
    if name not in METHODS:
        raise ConfigError(
            f"Searching failed for method {name!r}: there is no such method.{did_you_mean(name, METHODS)}"
        )
    return METHODS[name]
