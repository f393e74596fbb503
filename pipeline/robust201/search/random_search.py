"""Random search, which queries cells in random order without replacement."""

from robust201.search.optimiser import Optimiser


class RandomSearch(Optimiser):
    """Query each cell once, in uniformly random order."""

    title = "Random search"

    _order: list[int] | None = None

    def propose(self) -> int:
        if self._order is None:
            self._order = self.rng.permutation(self.cells.members)[: self.n_queries][::-1].tolist()
        return self._order.pop()

    def tell(self, architecture: int, value: float) -> None:
        """Do nothing, because the order does not depend on values."""
