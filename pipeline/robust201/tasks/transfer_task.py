"""Tasks for transfers, in which every network classifies adversarial images from an attack on one network."""

from dataclasses import dataclass

from robust201.tasks import Task


@dataclass(frozen=True, kw_only=True)
class TransferTask(Task):
    """The task of a transfer in a sweep's `transfers`; it has no entry in `TASKS`.

    Attributes:
        attack: task of the attack on the source.
    """

    attack: Task

    def takes_job(self, engine: str) -> bool:
        """Return False: nothing is attacked; the images of the attack on the source are classified."""
        del engine
        return False

    def shares_random_numbers_in_batch(self, engine: str) -> bool:
        """Return False: only the attack on the source used random numbers."""
        del engine
        return False
