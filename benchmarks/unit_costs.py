"""What units cost a GPU, for the simulation: relative costs from measurements, their scale from a stated throughput.

- Networks: seconds of a forward pass are fitted as a + b · multiply-accumulates to thirty networks measured on a CPU
  (`measured_forward.json`); what the fit leaves is drawn for each network, normal in its logarithm. The scale is such
  that the whole space is computed at the stated multiply-accumulates a second.
- Keys: forward passes as the plan counts them, but for two that the plan overestimates. FGSM's strengths share one
  gradient (3 passes) and are measured one by one. Square's share of queries is the published median share of images
  that resist, by dataset (docs/protocol.md, "Cost"), times a factor drawn for each network.

So what a part costs is not what the plan estimates, as in a real sweep.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import ArchitectureId, Part
from robust201.images import DATASETS
from robust201.planning.config import SweepConfig
from robust201.spaces.nasbench201.cells import multiply_accumulates, resolve
from robust201.tasks import TASKS
from robust201.tasks.parameters import SquareParameters

MEASURED_FILE = Path(__file__).with_name("measured_forward.json")
RESISTING = {"cifar10": 0.42, "cifar100": 0.21, "ImageNet16-120": 0.06}
SHARE_SPREAD = 0.2
"""Standard deviation of the logarithm of a network's factor on Square's share: an assumption, it is unmeasured."""


@dataclass(frozen=True)
class ForwardFit:
    """Seconds of a forward pass as a + b · multiply-accumulates.

    Attributes:
        offset: a, in multiply-accumulates: a / b.
        spread: standard deviation of the logarithm of measured over fitted seconds.
    """

    offset: float
    spread: float


def fit_forward() -> ForwardFit:
    """Fit the measured networks, each with the same relative weight."""
    measured = {int(name): us for name, us in json.loads(MEASURED_FILE.read_text())["microseconds"].items()}
    macs = np.array([_macs(index, 10, 32) for index in measured], dtype=np.float64)
    seconds = np.array(list(measured.values()), dtype=np.float64)
    design = np.stack([np.ones_like(macs), macs], axis=1) / seconds[:, None]
    (a, b), *_ = np.linalg.lstsq(design, np.ones_like(macs), rcond=None)
    return ForwardFit(float(max(a, 0.0) / b), float(np.std(np.log(seconds / (max(a, 0.0) + b * macs)))))


def _macs(index: ArchitectureId, n_classes: int, image_size: int) -> int:
    spec = resolve(index).spec
    return multiply_accumulates(spec, channels=16, cells=5, n_classes=n_classes, image_size=image_size)


class UnitCosts:
    """Seconds that a GPU computes for a part.

    Args:
        config: the sweep.
        macs_per_second: what a GPU sustains, averaged over the space.
        seed: of what is drawn for each network.
    """

    def __init__(self, config: SweepConfig, macs_per_second: float, seed: int) -> None:
        self._parameters = config.parameters
        fit = fit_forward()
        indices = config.selected_architectures
        spread, share = np.random.default_rng(seed).normal(size=(2, len(indices)))
        self._image_seconds: dict[tuple[str, ArchitectureId], float] = {}
        self._square: dict[ArchitectureId, float] = dict(
            zip(indices, np.exp(SHARE_SPREAD * share).tolist(), strict=True)
        )
        for dataset in config.datasets:
            size = DATASETS[dataset].image_size
            macs = np.array([_macs(index, DATASETS[dataset].n_classes, size) for index in indices], dtype=np.float64)
            costs: NDArray[np.float64] = (macs + fit.offset * (size / 32) ** 2) * np.exp(fit.spread * spread)
            seconds = costs * macs.sum() / costs.sum() / macs_per_second
            self._image_seconds |= {
                (dataset, index): cost for index, cost in zip(indices, seconds.tolist(), strict=True)
            }
        self._passes: Mapping[str, float] = {key: _passes(key, row) for key, row in self._parameters.items()}

    def seconds(self, part: Part) -> float:
        """Seconds of one part, without loading weights."""
        unit = part.unit
        passes = self._passes[unit.key] * len(part.strengths)
        if unit.key == "fgsm":
            passes += 3  # one gradient for all epsilons
        elif unit.key == "aa_square":
            passes *= min(1.0, RESISTING[unit.dataset] * self._square[unit.architecture])
        return self._image_seconds[unit.dataset, unit.architecture] * passes * (part.stop - part.start)


def _passes(key: str, parameters: object) -> float:
    """Forward passes an image and strength; for Square those of an image that resists to the end."""
    if isinstance(parameters, SquareParameters):
        return float(parameters.queries * parameters.restarts)
    return 1.0 if key == "fgsm" else TASKS[key].passes(parameters, 10)
