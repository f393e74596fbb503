"""What the benchmarks of the engines measure, on a CPU and on a GPU: passes, steps of attacks, convolutions."""

import copy
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from robust201.core.precision import Precision
from robust201.core.records import Normalisation
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Perturbed, Request, to_float
from robust201.engine.model import Model
from robust201.spaces.nasbench201.cells import architecture, evaluated_indices, multiply_accumulates, parse
from robust201.spaces.nasbench201.compiled import InferenceNetwork, compile_network
from robust201.spaces.nasbench201.compiled.kernels import Convolution
from robust201.spaces.nasbench201.compiled.program import plan_cell
from robust201.spaces.nasbench201.network import build_network
from robust201.tasks import TASKS
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import perturb

NORMALISATION = Normalisation((0.4914, 0.4824, 0.4467), (0.2471, 0.2435, 0.2616))
N_CLASSES = 10
N_PAPER_EPSILONS = 7
LENGTHS = {"pgd": ("steps", 2, 6), "aa_apgd-ce": ("steps", 4, 8), "aa_square": ("queries", 4, 16)}
FULL_LENGTHS = {"pgd": 40, "aa_apgd-ce": 100, "aa_square": 5000}
HARMLESS_EPSILON_255 = 1e-4
CLASSES = {13714: "heavy", 1462: "heavy", 21: "middling", 991: "middling", 309: "light", 0: "light"}
CHANNELS, CELLS, IMAGE_SIZE = 16, 5, 32

Task = Callable[[], object]
Clock = Callable[[Task], float]
Measurement = Callable[[Clock], float]
"""A clock → seconds an image, of a pass or of a step of an attack."""


@dataclass
class Case:
    """One network in both forms, with images that it classifies as they are labelled.

    An engine is ``fused``, or a form of the published network that the libraries attack: a key of `classifiers`, which
    is filled up by whoever needs more of them.
    """

    index: int
    device: torch.device
    images: torch.Tensor
    channels: int = CHANNELS
    cells: int = CELLS
    precision: Precision = "fp32"
    labels: torch.Tensor = field(init=False)
    model: Model = field(init=False)
    model_batch: int | None = None

    def __post_init__(self) -> None:
        self.spec = architecture(self.index).spec
        torch.manual_seed(self.index)
        self.network = build_network(self.spec, channels=self.channels, cells=self.cells, n_classes=N_CLASSES)
        self.classifiers = {
            "reference": self.classify_by(copy.deepcopy(self.network)),
            "channels_last": self.classify_by(copy.deepcopy(self.network), channels_last=True),
        }
        self.compiled = self.compile()
        self.model = self.compiled
        self.labels = self.compiled.logits(to_float(self.images)).argmax(dim=1)

    def compile(self) -> InferenceNetwork:
        """Compile the network anew."""
        return compile_network(
            self.network,
            self.spec,
            NORMALISATION,
            n_classes=N_CLASSES,
            device=self.device,
            precision=self.precision,
        )

    def classify_by(self, network: nn.Module, *, channels_last: bool = False) -> Classifier:
        """Make a form of the published network."""
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
        """Run one attack on all images at some epsilons."""
        fused = engine == "fused"
        context = Context(
            self.classifiers["reference" if fused else engine],
            0,
            batch or len(self.images),
            key=key,
            engine="fused" if fused else "reference",
            model=self.model if fused else None,
            model_batch=self.model_batch,
        )
        request = Request(strengths, self.images, self.labels, torch.arange(len(self.images)).numpy())
        yield from perturb(TASKS[key], context, parameters, request)

    def check(self, key: str, found: Sequence[Perturbed]) -> None:
        """Complain if an attack fooled images: its steps were fewer then. One in a thousand may lie on the border."""
        fooled = sum(
            int((self.compiled.logits(images).argmax(dim=1) != self.labels[positions]).count_nonzero())
            for batch in found
            for images, positions in zip(
                torch.split(batch.images, 1000), torch.split(batch.positions, 1000), strict=True
            )
        )
        n_samples = sum(len(batch.images) for batch in found)
        if fooled > n_samples / 1000:
            raise RuntimeError(f"#{self.index}: {key} fooled {fooled} of {n_samples} samples, which were to resist")

    def forward(self, engine: str, batch: int | None = None) -> None:
        """Classify all images once."""
        for pixels in torch.split(to_float(self.images), batch or len(self.images)):
            with torch.no_grad():
                self.model.logits(pixels) if engine == "fused" else self.classifiers[engine](pixels)

    def gradient(self, engine: str, batch: int | None = None) -> None:
        """Classify all images and differentiate the cross-entropy once."""
        size = batch or len(self.images)
        cut = zip(torch.split(to_float(self.images), size), torch.split(self.labels, size), strict=True)
        for pixels, labels in cut:
            if engine == "fused":
                self.model.loss_and_gradient(pixels, labels)
            else:
                pixels.requires_grad_()
                loss = functional.cross_entropy(self.classifiers[engine](pixels), labels, reduction="sum")
                torch.autograd.grad(loss, [pixels])


def convolutions_of(
    spec: str, *, channels: int = CHANNELS, cells: int = CELLS
) -> dict[tuple[int, int, int, int, int], int]:
    """Count the convolutions of the fused forward pass: (inputs, outputs, kernel, stride, input size) to number."""
    operations = parse(spec)
    found: dict[tuple[int, int, int, int, int], int] = {(3, channels, 3, 1, IMAGE_SIZE): 1}
    for stage in range(3):
        width, size = channels * 2**stage, IMAGE_SIZE // 2**stage
        for node in plan_cell(spec).nodes:
            for term in node.terms:
                if term.convolutions:
                    kernel = 3 if any(operations[edge] == "nor_conv_3x3" for edge in term.convolutions) else 1
                    shape = (width, width, kernel, 1, size)
                    found[shape] = found.get(shape, 0) + cells
        if stage < 2:
            for shape in ((width, 2 * width, 3, 2, size), (width, 2 * width, 1, 1, size // 2)):
                found[shape] = found.get(shape, 0) + 1
            shape = (2 * width, 2 * width, 3, 1, size // 2)
            found[shape] = found.get(shape, 0) + 1
    return found


class ConvolutionLimit:
    """The time that a network's convolutions take by themselves, each repeated on data in the cache."""

    def __init__(
        self,
        spec: str,
        n_images: int,
        device: torch.device,
        *,
        channels: int = CHANNELS,
        cells: int = CELLS,
    ) -> None:
        self.n_images = n_images
        self.kernels = []
        self.flops = 0.0
        for (inputs, outputs, size, stride, pixels), number in convolutions_of(
            spec, channels=channels, cells=cells
        ).items():
            weight = torch.randn(outputs, inputs, size, size, dtype=torch.float64)
            kernel = Convolution(weight, torch.zeros(outputs, dtype=torch.float64), device=device, stride=stride)
            x = torch.randn(n_images, inputs, pixels, pixels, device=device).contiguous(
                memory_format=torch.channels_last
            )
            self.kernels.append((kernel, x, number))
            self.flops += 2.0 * number * inputs * outputs * size**2 * (pixels // stride) ** 2

    def seconds(self, clock: Clock) -> float:
        """Seconds an image."""
        with torch.inference_mode():
            timed = []
            for kernel, x, number in self.kernels:
                kernel(x)
                timed.append(number * min(clock(partial(kernel, x)) for _ in range(2)))
        return sum(timed) / self.n_images


def make_clock(device: torch.device) -> Clock:
    def on_cpu(task: Task) -> float:
        start = time.thread_time()
        task()
        return time.thread_time() - start

    def on_cuda(task: Task) -> float:
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        task()
        torch.cuda.synchronize(device)
        return time.perf_counter() - start

    return on_cuda if device.type == "cuda" else on_cpu


def exhaust(batches: Iterable[object]) -> None:
    """Compute everything, and keep nothing."""
    deque(batches, maxlen=0)


def step_seconds(
    case: Case, engine: str, key: str, epsilons: tuple[float, ...], batch: int | None = None
) -> Measurement:
    """What one step of an attack costs for a sample: the difference of two run lengths."""
    name, *lengths = LENGTHS[key]

    def measured(clock: Clock) -> float:
        times = []
        for length in lengths:
            found: list[Perturbed] = []
            parameters = TASKS[key].parameters(**{name: length})
            times.append(clock(lambda: found.extend(case.attack(engine, key, epsilons, parameters, batch))))  # noqa: B023
            case.check(key, found)
        return (times[1] - times[0]) / (lengths[1] - lengths[0]) / (len(case.images) * len(epsilons))

    return measured


def measurements_of(
    case: Case, engine: str, epsilons: tuple[float, ...], batch: int | None = None
) -> Iterator[tuple[str, Measurement]]:
    """What is measured of a network in one engine: (what, seconds an image as a function of the clock)."""
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
    for key in LENGTHS:
        yield key, step_seconds(case, engine, key, epsilons, batch)


def suite_seconds(costs: dict[str, float], square_share: float) -> float:
    """Seconds an image of the paper's attacks: FGSM at eleven epsilons, the others at seven."""
    steps = FULL_LENGTHS | {"aa_square": FULL_LENGTHS["aa_square"] * square_share}
    return costs["fgsm"] + N_PAPER_EPSILONS * sum(steps[key] * costs[key] for key in steps)


def stratified_sample(count: int) -> list[int]:
    """Choose networks from the evaluated ones: the middle of each of `count` equal strata by multiply-accumulates."""

    def cost(index: int) -> tuple[int, int]:
        spec = architecture(index).spec
        return (
            multiply_accumulates(spec, channels=CHANNELS, cells=CELLS, n_classes=N_CLASSES, image_size=IMAGE_SIZE),
            index,
        )

    ordered = sorted(evaluated_indices(), key=cost)
    return [ordered[(2 * stratum + 1) * len(ordered) // (2 * count)] for stratum in range(count)]
