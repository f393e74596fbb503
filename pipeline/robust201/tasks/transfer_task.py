"""A transfer as a row like any other: adversarial images that an attack made on one network, shown to every network."""

from dataclasses import dataclass

from robust201.tasks import Task


@dataclass(frozen=True, kw_only=True)
class TransferTask(Task):
    """One row that is in no table.

    Attributes:
        attack: the row of the attack on the source.
    """

    attack: Task

    def wants_job(self, engine: str) -> bool:
        """Its images are shown as they are by every engine."""
        del engine
        return False

    def draws_by_batch(self, engine: str) -> bool:
        """Nothing is drawn for it: the attack on the source has drawn."""
        del engine
        return False
