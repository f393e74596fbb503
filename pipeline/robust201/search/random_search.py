"""Random search, which queries members in random order without replacement."""

from robust201.search.optimiser import Optimiser, Query, Scores


class RandomSearch(Optimiser):
    """Query each member once, in uniformly random order."""

    _order: list[int] | None = None

    def propose(self) -> Query | None:
        if self._order is None:
            self._order = self.rng.permutation(self.cells.members)[: self.n_queries][::-1].tolist()
        return Query(self._order.pop()) if self._order else None

    def learn(self, query: Query, values: Scores) -> None:
        """Do nothing, because the order does not depend on values."""
