"""Tasks for transfers, in which every network classifies adversarial images from an attack on one network."""

from dataclasses import dataclass

from robust201.tasks import Task


@dataclass(frozen=True, kw_only=True)
class TransferTask(Task):
    """The task of a transfer, which is not in the table.

    Attributes:
        attack: task of the attack on the source.
    """

    attack: Task

    def takes_job(self, engine: str) -> bool:
        """Return False: every engine uses the source's images."""
        del engine
        return False

    def shares_random_numbers_in_batch(self, engine: str) -> bool:
        """Return False: only the attack on the source used random numbers."""
        del engine
        return False
