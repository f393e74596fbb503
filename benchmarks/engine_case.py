"""Networks for benchmarks: trained networks, a stratified sample, and a network in compiled and published form."""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from robust201.attacks.context import Context, Perturbed, Request, to_float
from robust201.attacks.contract import perturb
from robust201.core.precision import Precision
from robust201.core.records import Normalisation
from robust201.networks.classifier import Classifier
from robust201.networks.model import Model
from robust201.networks.nb201.cells import evaluated_indices, multiply_accumulates, specs
from robust201.networks.nb201.compiled import InferenceNetwork, compile_network
from robust201.networks.nb201.network import Network
from robust201.tasks import TASKS
from robust201.tasks.parameters import Parameters
from robust201.weights.published.base import Selection
from robust201.weights.published.formats import open_networks

NORMALISATION = Normalisation((0.4914, 0.4824, 0.4467), (0.2471, 0.2435, 0.2616))
N_CLASSES = 10
HARMLESS_EPSILON_255 = 1e-4
"""Epsilon in units of 1/255 that is too small to fool a network."""

COST_LEVELS = {13714: "heavy", 1462: "heavy", 21: "medium", 991: "medium", 309: "light", 0: "light"}
"""Cost class of each network that is measured by default, by index."""

CHANNELS, CELLS, IMAGE_SIZE = 16, 5, 32
ARCHIVE = Path("checkpoints") / "NATS-tss-v1_0-3ffb9-full"
"""Path of the trained networks in the data folder; the layout is that of the official archive."""

Call = Callable[[], object]
Clock = Callable[[Call], float]


def load_trained(folder: Path, index: int, *, n_classes: int) -> tuple[nn.Module, str]:
    """Load a trained network of the published size.

    Args:
        folder: data folder.
        index: index of the architecture.
        n_classes: number of classes.

    Returns:
        The network and its cell string.
    """
    (member,) = open_networks(folder / ARCHIVE, [index])[0]
    (weights,) = member(Selection())
    spec = specs()[index]
    network = Network(spec, n_classes=n_classes)
    network.load_state_dict(weights.state_dict, strict=True)
    return network, spec


@dataclass
class Case:
    """A random network in compiled and in published form, with images that are labelled with its predictions.

    Attributes:
        index: index of the architecture.
        device: device of the network and the images.
        images: (N, 3, H, W) uint8.
        channels: channels of the network's first stage.
        cells: cells per stage.
        precision: arithmetic of the network.
        labels: the compiled network's predictions (N,).
        published: the same network in published form, in channels_last.
        model: network that is attacked; by default the compiled network.
    """

    index: int
    device: torch.device
    images: torch.Tensor
    channels: int = CHANNELS
    cells: int = CELLS
    precision: Precision = "fp32"
    labels: torch.Tensor = field(init=False)
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        spec = specs()[self.index]
        torch.manual_seed(self.index)
        self.network = Network(spec, channels=self.channels, cells=self.cells, n_classes=N_CLASSES)
        self.published = Classifier(
            copy.deepcopy(self.network),
            NORMALISATION,
            N_CLASSES,
            device=self.device,
            precision=self.precision,
            channels_last=True,
        )
        self.compiled: InferenceNetwork = compile_network(
            self.network,
            spec,
            NORMALISATION,
            device=self.device,
            precision=self.precision,
        )
        self.model = self.compiled
        self.labels = self.compiled.logits(to_float(self.images)).argmax(dim=1)

    def attack(self, key: str, strengths: tuple[float, ...], parameters: Parameters) -> Iterator[Perturbed]:
        """Attack all images at all `strengths`."""
        n_images = len(self.images)
        context = Context(self.published, 0, n_images, key=key, engine="fused", model=self.model)
        request = Request(strengths, self.images, self.labels, torch.arange(n_images).numpy())
        yield from perturb(TASKS[key], context, parameters, request)


def make_clock(device: torch.device) -> Clock:
    """Return a clock that measures the thread's CPU time or, on a GPU, wall time after synchronisation."""

    def measure_cpu_time(call: Call) -> float:
        start = time.thread_time()
        call()
        return time.thread_time() - start

    def measure_gpu_time(call: Call) -> float:
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        return time.perf_counter() - start

    return measure_gpu_time if device.type == "cuda" else measure_cpu_time


def exhaust(batches: Iterable[object]) -> None:
    """Consume an iterator without keeping its items."""
    deque(batches, maxlen=0)


def stratified_sample(count: int) -> list[int]:
    """Split the evaluated networks into `count` equal strata by cost; return the index of each stratum's median."""

    def sort_key(index: int) -> tuple[int, int]:
        spec = specs()[index]
        return (
            multiply_accumulates(spec, channels=CHANNELS, cells=CELLS, n_classes=N_CLASSES, image_size=IMAGE_SIZE),
            index,
        )

    indices_by_cost = sorted(evaluated_indices(), key=sort_key)
    return [indices_by_cost[(2 * stratum + 1) * len(indices_by_cost) // (2 * count)] for stratum in range(count)]
