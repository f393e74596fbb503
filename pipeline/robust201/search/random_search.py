"""Random search: members drawn without replacement."""

from robust201.search.optimiser import Optimiser, Query, Scores


class RandomSearch(Optimiser):
    """Asks for members in random order, all orders equally likely, each once."""

    _order: list[int] | None = None

    def propose(self) -> Query | None:
        if self._order is None:
            self._order = self.rng.permutation(self.cells.members)[: self.n_queries][::-1].tolist()
        return Query(self._order.pop()) if self._order else None

    def learn(self, query: Query, values: Scores) -> None:
        """Learn nothing."""
