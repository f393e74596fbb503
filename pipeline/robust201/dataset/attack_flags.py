"""Signs of weak attacks in a results folder (see `statistics.attack_flags`)."""

from collections import defaultdict
from pathlib import Path

from robust201.core.records import ArchitectureId
from robust201.dataset.compare import read_result_set
from robust201.dataset.groups import SweepPlan
from robust201.statistics.attack_flags import AttackFlag, Evaluated, find_flags, transfers_of


def find_attack_flags(results: Path, plan: SweepPlan) -> tuple[AttackFlag, ...]:
    """Look at the accuracies of every dataset and choice of weights; datasets of unknown classes are left out.

    Raises:
        StorageError: rows are damaged or gone.
    """
    n_images = {unit.dataset: unit.n_images for unit in plan.units if not unit.columns}
    transfers = transfers_of(plan.describe()["protocols"])
    flags: list[AttackFlag] = []
    for by_place in read_result_set(results).by_weights.values():
        by_dataset: defaultdict[str, dict[Evaluated, dict[ArchitectureId, float]]] = defaultdict(dict)
        for (dataset, key, strength), accuracies in by_place.items():
            by_dataset[dataset][key, strength] = dict(accuracies)
        for dataset, found in by_dataset.items():
            n_classes = plan.n_classes(dataset)
            if dataset in n_images and n_classes is not None:
                flags += find_flags(
                    dataset, found, n_images=n_images[dataset], n_classes=n_classes, transfers=transfers
                )
    return tuple(flags)
