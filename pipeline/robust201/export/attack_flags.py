"""Signs of weak attacks in a set of results (see `statistics.attack_flags`)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from robust201.core.records import ArchitectureId
from robust201.export.diff import ResultSet
from robust201.statistics.attack_flags import AttackFlag, Evaluated, find_flags, transfers_of


def flags_of(
    results: ResultSet, *, n_images: Mapping[str, int], n_classes: Mapping[str, int], protocols: Iterable[Any]
) -> tuple[AttackFlag, ...]:
    """Find signs of weak attacks on each dataset whose images and classes are known, for each choice of weights.

    Args:
        results: the accuracies.
        n_images: number of images evaluated, by dataset.
        n_classes: number of classes, by dataset.
        protocols: payloads of the protocols, which name the sources of transferred attacks.
    """
    transfers = transfers_of(protocols)
    flags: list[AttackFlag] = []
    for by_place in results.by_weights.values():
        by_dataset: defaultdict[str, dict[Evaluated, dict[ArchitectureId, float]]] = defaultdict(dict)
        for (dataset, key, strength), accuracies in by_place.items():
            by_dataset[dataset][key, strength] = dict(accuracies)
        for dataset, evaluated in by_dataset.items():
            if dataset in n_images and dataset in n_classes:
                flags += find_flags(
                    dataset,
                    evaluated,
                    n_images=n_images[dataset],
                    n_classes=n_classes[dataset],
                    transfers=transfers,
                )
    return tuple(flags)
