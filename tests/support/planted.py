"""Fabricated dataset with as many cells as the paper's, in which the effects of operations and the best cell are known.

The quality of an evaluated cell is the sum of one effect per edge, which depends on the edge's operation. The best cell
therefore has the best operation on every edge. Robustness is a sum of the same form. Accuracies decrease with the
strength, and faster for cells with low robustness.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.networks.nb201.cells import EDGES, OPERATIONS, evaluated_indices, isomorphs, meta_text, parse, specs
from robust201.tasks import TASKS

QUALITY = np.array([0.0, 0.020, 0.030, 0.045, 0.010])
"""Effect of each operation on clean accuracy, by index in `OPERATIONS`. The effects on successive edges are multiplied
by 1, 1.1, 1.2 and so on."""

ROBUSTNESS = np.array([0.000, 0.030, 0.020, -0.010, 0.025])
"""Effect of each operation on robustness, like `QUALITY`."""

DEFAULT_STRENGTHS: Mapping[str, Sequence[float]] = {"clean": (), "fgsm": (0.5, 1.0, 8.0), "pgd": (0.5, 1.0, 4.0)}
"""Strengths of a few keys."""


@cache
def operation_table() -> NDArray[np.int64]:
    """Return the operations of all cells, (15,625, 6), as indices into `OPERATIONS`."""
    return np.array([[OPERATIONS.index(name) for name in parse(spec)] for spec in specs()])


def planted_effects(effects: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each cell's sum of effects, (15,625,). All cells of an isomorphism class have the evaluated cell's sum."""
    weights = 1 + 0.1 * np.arange(len(EDGES))
    sums = effects[operation_table()] @ weights
    return sums[np.array(isomorphs())]


def planted_accuracy(key: str, strength: float, dataset: str = "cifar10") -> NDArray[np.float64]:
    """Return accuracies (15,625,) without noise, by the index of the cell."""
    clean = 0.65 + planted_effects(QUALITY) - 0.1 * (dataset != "cifar10")
    if key == "clean":
        return clean
    # The last factor gives keys of the same kind different accuracies.
    rate = {"attack": 0.4, "corruption": 0.05}[TASKS[key].kind] * (1 + 0.02 * (len(key) % 5))
    return clean * np.exp(-rate * strength * (1 - 2 * planted_effects(ROBUSTNESS)))


def best_cell(key: str = "clean", strength: float = 0.0) -> int:
    """Return the evaluated cell with the highest accuracy."""
    return int(np.argmax(planted_accuracy(key, strength)))


def write_planted(
    folder: Path,
    strengths: Mapping[str, Sequence[float]] = DEFAULT_STRENGTHS,
    *,
    datasets: Sequence[str] = ("cifar10",),
    cells: Sequence[int] | None = None,
) -> Path:
    """Write the dataset in the published layout, with all evaluated cells or with `cells`."""
    indices = evaluated_indices() if cells is None else cells
    attacks = {
        TASKS[key].published_key: key_strengths
        for key, key_strengths in strengths.items()
        if TASKS[key].kind == "attack"
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(meta_text(attacks))
    for dataset in datasets:
        (folder / dataset).mkdir(exist_ok=True)
        for key, key_strengths in strengths.items():
            accuracies = np.round([planted_accuracy(key, strength, dataset) for strength in key_strengths or (0.0,)], 6)
            values_by_cell = {
                str(cell): accuracies[:, cell].tolist() if key_strengths else accuracies[0, cell].item()
                for cell in indices
            }
            published_key = TASKS[key].published_key
            (folder / dataset / f"{published_key}_accuracy.json").write_text(
                json.dumps({dataset: {published_key: {"accuracy": values_by_cell}}})
            )
    return folder
