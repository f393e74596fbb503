"""Measurements for the engine benchmarks on CPU and GPU: passes and attack steps of one network."""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

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
N_PAPER_EPSILONS = 7
RUN_LENGTHS = {"pgd": ("steps", 2, 6), "aa_apgd-ce": ("steps", 4, 8), "aa_square": ("queries", 4, 16)}
"""Parameter that sets an attack's length, and the two lengths that are compared, by key."""

HARMLESS_EPSILON_255 = 1e-4
"""Epsilon in units of 1/255 that is too small to fool a network."""

COST_LEVELS = {13714: "heavy", 1462: "heavy", 21: "medium", 991: "medium", 309: "light", 0: "light"}
"""Cost of the networks that are measured by default, by index."""

CHANNELS, CELLS, IMAGE_SIZE = 16, 5, 32
ARCHIVE = Path("checkpoints") / "NATS-tss-v1_0-3ffb9-full"
"""Path of the trained networks in the data folder; the layout is that of the official archive."""

SUITE_STEPS = {"pgd": 40, "aa_apgd-ce": 100, "aa_square": 0.39 * 5000}
"""Number of steps of the paper's attacks; for Square, the average number of queries (docs/protocol/statistics.md)."""

Task = Callable[[], object]
Clock = Callable[[Task], float]
Measurement = Callable[[Clock], float]
"""Function that measures a pass or attack step with a clock, and returns seconds per image."""


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
    """A network in compiled and in published form, with images that are labelled with its predictions.

    An engine is ``fused``, or a key of `classifiers`: a variant of the published network that the libraries attack.
    Callers may add further classifiers.

    Attributes:
        index: index of the architecture.
        device: device of the network and the images.
        images: (N, 3, H, W) uint8.
        channels: channels of the network's first stage.
        cells: cells per stage.
        precision: arithmetic of the network.
        labels: the compiled network's predictions (N,).
        model: network that the fused engine attacks; by default the compiled network.
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
        self.classifiers = {
            "reference": self.wrap_network(copy.deepcopy(self.network)),
            "channels_last": self.wrap_network(copy.deepcopy(self.network), channels_last=True),
        }
        self.compiled: InferenceNetwork = compile_network(
            self.network,
            spec,
            NORMALISATION,
            device=self.device,
            precision=self.precision,
        )
        self.model = self.compiled
        self.labels = self.compiled.logits(to_float(self.images)).argmax(dim=1)

    def wrap_network(self, network: nn.Module, *, channels_last: bool = False) -> Classifier:
        """Wrap a published network as a classifier."""
        return Classifier(
            network,
            NORMALISATION,
            N_CLASSES,
            device=self.device,
            precision=self.precision,
            channels_last=channels_last,
        )

    def attack(
        self, engine: str, key: str, strengths: tuple[float, ...], parameters: Parameters, batch: int | None = None
    ) -> Iterator[Perturbed]:
        """Run one attack on all images at all `strengths`; the libraries' batch size is `batch` (default: all)."""
        is_fused = engine == "fused"
        context = Context(
            self.classifiers["reference" if is_fused else engine],
            0,
            batch or len(self.images),
            key=key,
            engine="fused" if is_fused else "reference",
            model=self.model if is_fused else None,
        )
        request = Request(strengths, self.images, self.labels, torch.arange(len(self.images)).numpy())
        yield from perturb(TASKS[key], context, parameters, request)

    def check_not_fooled(self, key: str, batches: Sequence[Perturbed]) -> None:
        """Check that the attack did not fool the network, because it makes fewer steps for images that fool it.

        Raises:
            RuntimeError: more than one sample in a thousand fooled the network. A few near a decision boundary may.
        """
        n_fooling = sum(
            int((self.compiled.logits(images).argmax(dim=1) != self.labels[positions]).count_nonzero())
            for batch in batches
            for images, positions in zip(
                torch.split(batch.images, 1000), torch.split(batch.positions, 1000), strict=True
            )
        )
        n_samples = sum(len(batch.images) for batch in batches)
        if n_fooling > n_samples / 1000:
            raise RuntimeError(
                f"Timing {key} failed for #{self.index}: {n_fooling} of {n_samples} samples fooled the network, so the "
                "attack made fewer steps than assumed. Use a smaller epsilon."
            )

    def forward(self, engine: str, batch: int | None = None) -> None:
        """Classify all images once."""
        for pixels in torch.split(to_float(self.images), batch or len(self.images)):
            with torch.no_grad():
                self.model.logits(pixels) if engine == "fused" else self.classifiers[engine](pixels)

    def gradient(self, engine: str, batch: int | None = None) -> None:
        """Classify all images and differentiate the cross-entropy once."""
        batch_size = batch or len(self.images)
        batches = zip(torch.split(to_float(self.images), batch_size), torch.split(self.labels, batch_size), strict=True)
        for pixels, labels in batches:
            if engine == "fused":
                self.model.loss_and_gradient(pixels, labels)
            else:
                pixels.requires_grad_()
                loss = functional.cross_entropy(self.classifiers[engine](pixels), labels, reduction="sum")
                torch.autograd.grad(loss, [pixels])


def make_clock(device: torch.device) -> Clock:
    """Return a clock that measures the thread's CPU time or, on a GPU, wall time after synchronisation."""

    def measure_cpu_time(task: Task) -> float:
        start = time.thread_time()
        task()
        return time.thread_time() - start

    def measure_gpu_time(task: Task) -> float:
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        task()
        torch.cuda.synchronize(device)
        return time.perf_counter() - start

    return measure_gpu_time if device.type == "cuda" else measure_cpu_time


def exhaust(batches: Iterable[object]) -> None:
    """Consume an iterator without keeping its items."""
    deque(batches, maxlen=0)


def make_step_measurement(
    case: Case, engine: str, key: str, epsilons: tuple[float, ...], batch: int | None = None
) -> Measurement:
    """Return a measurement of one attack step, in seconds per sample, as a difference between two run lengths."""
    parameter_name, *lengths = RUN_LENGTHS[key]

    def measure(clock: Clock) -> float:
        times = []
        for length in lengths:
            batches: list[Perturbed] = []
            parameters = TASKS[key].parameters(**{parameter_name: length})
            times.append(clock(lambda: batches.extend(case.attack(engine, key, epsilons, parameters, batch))))  # noqa: B023
            case.check_not_fooled(key, batches)
        return (times[1] - times[0]) / (lengths[1] - lengths[0]) / (len(case.images) * len(epsilons))

    return measure


def measurements_of(
    case: Case, engine: str, epsilons: tuple[float, ...], batch: int | None = None
) -> Iterator[tuple[str, Measurement]]:
    """Yield the name and the function of each measurement of a network with one engine."""
    n_images = len(case.images)
    parameters = TASKS["fgsm"].parameters()
    yield "forward", lambda clock: clock(lambda: case.forward(engine, batch)) / n_images
    yield "gradient", lambda clock: clock(lambda: case.gradient(engine, batch)) / n_images
    yield (
        "fgsm",
        lambda clock: (
            clock(lambda: exhaust(case.attack(engine, "fgsm", parameters.strengths, parameters, batch))) / n_images
        ),
    )
    for key in RUN_LENGTHS:
        yield key, make_step_measurement(case, engine, key, epsilons, batch)


def suite_seconds(costs: dict[str, float]) -> float:
    """Return seconds per image of the paper's attacks: FGSM at eleven epsilons, the other attacks at seven."""
    return costs["fgsm"] + N_PAPER_EPSILONS * sum(steps * costs[key] for key, steps in SUITE_STEPS.items())


def stratified_sample(count: int) -> list[int]:
    """Split the evaluated networks into `count` equal strata by cost; return the index of each stratum's middle one."""

    def sort_key(index: int) -> tuple[int, int]:
        spec = specs()[index]
        return (
            multiply_accumulates(spec, channels=CHANNELS, cells=CELLS, n_classes=N_CLASSES, image_size=IMAGE_SIZE),
            index,
        )

    indices_by_cost = sorted(evaluated_indices(), key=sort_key)
    return [indices_by_cost[(2 * stratum + 1) * len(indices_by_cost) // (2 * count)] for stratum in range(count)]
