"""What passes and attacks cost on a GPU: the libraries in every form that a user may choose, and the fused engine.

The libraries run at several batches, in PyTorch's default layout, in channels_last and with torch.compile, all but the
usual setting (batch 250, default layout, PyTorch's own switches but for TF32, which the step decides) with cuDNN
choosing its fastest algorithms. cuDNN's choice is kept by shape, so no other setting has the usual batch. The fused
engine runs at the batch that it chooses by the device's memory, with CUDA graphs and without, with as many epsilons
side by side as fill two such batches. The libraries' batches run empty where images are fooled, which costs a GPU
nearly as much as full ones; they are not charged for that. Attacks cost what `engine_case.measurements_of` says.
"""

import copy
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.engine_case import (
    HARMLESS_EPSILON_255,
    IMAGE_SIZE,
    N_PAPER_EPSILONS,
    Case,
    ConvolutionLimit,
    Measurement,
    make_clock,
    measurements_of,
    suite_seconds,
)
from robust201.core.errors import one_line
from robust201.core.precision import Precision
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import IMAGES_HELD
from robust201.engine.buckets import Bucketed
from robust201.engine.capacity import Capacity, choose_capacity
from robust201.engine.context import to_float
from robust201.engine.graphs import GraphCapture
from robust201.spaces.nasbench201.compiled.footprint import network_bytes
from robust201.spaces.nasbench201.compiled.kernels import Convolution

USUAL_BATCH = 250
_FORMS_OF_A_COMPILED_NETWORK = 64
"""How often torch.compile may compile a network: with gradient and without, for each batch and what is left over."""

PAPER_EPSILONS_255 = tuple(HARMLESS_EPSILON_255 * number for number in range(1, N_PAPER_EPSILONS + 1))


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        images: per network.
        usual_batch: of the libraries in the usual setting.
        batches: of the libraries in all others.
        rounds: how often, at most.
        minutes: after which no further round begins.
        channels: of the networks' first stage.
        cells: per stage.
        capacity: samples that the fused engine shows at once; None to choose by the device's memory.
        peak: channels, height and images of the convolutions that the peak is measured with.
        backend: of torch.compile.
    """

    images: int = 4000
    usual_batch: int = USUAL_BATCH
    batches: tuple[int, ...] = (256, 1000, 4000)
    rounds: int = 2
    minutes: float = 4.0
    channels: int = 16
    cells: int = 5
    capacity: Capacity | None = None
    peak: tuple[tuple[int, ...], int, int] = ((64, 128, 256), 16, 2048)
    backend: str = "inductor"


class Setup(NamedTuple):
    """A way to compute: what attacks, and at which batch; the fused engine chooses its own.

    Attributes:
        form: ``usual``, ``reference`` (default layout), ``channels_last`` or ``compiled`` for the libraries; ``graphs``
            or ``calls`` for the fused engine.
        batch: images per batch.
    """

    form: str
    batch: int | None = None

    @property
    def is_fused(self) -> bool:
        """Whether it is the fused engine."""
        return self.form in ("graphs", "calls")

    @property
    def label(self) -> str:
        """Its name in files and tables."""
        return f"fused, {self.form}" if self.is_fused else f"{self.form} {self.batch}"


def setups_of(sizes: Sizes, *, every: bool = True) -> list[Setup]:
    """List what is measured of a network: everything, or what GPU-hours need."""
    usual, largest = Setup("usual", sizes.usual_batch), sizes.batches[-1]
    few = [usual, Setup("reference", largest), Setup("channels_last", largest), Setup("graphs")]
    if not every:
        return few
    layouts = [Setup(form, batch) for form in ("reference", "channels_last") for batch in sizes.batches]
    compiled = [Setup("compiled", sizes.batches[0]), Setup("compiled", largest)]
    everything = [usual, *layouts, *compiled, Setup("graphs"), Setup("calls")]
    return list(dict.fromkeys(everything))


def configure(setup: Setup, precision: Precision) -> None:
    """Set torch's switches as a worker does, or as users of the libraries do."""
    configure_torch(1, precision)
    if not setup.is_fused:
        torch.use_deterministic_algorithms(mode=False)
        torch.backends.cudnn.deterministic = False
        torch.backends.cudnn.benchmark = setup.form != "usual"


def make_images(count: int, device: torch.device) -> torch.Tensor:
    """Random pixels: they decide no time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=generator).to(device)


def memory_of(device: torch.device) -> tuple[int, int]:
    """Bytes that are free for this process, and that there are; those of a small GPU for a CPU."""
    if device.type != "cuda":
        return 2**33, 2**33
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device), total


def capacity_of(device: torch.device, sizes: Sizes) -> Capacity:
    """Samples that the fused engine shows at once."""
    if sizes.capacity is not None:
        return sizes.capacity
    free, total = memory_of(device)
    needs = (network_bytes(sizes.channels, sizes.cells, IMAGE_SIZE, gradient=gradient) for gradient in (False, True))
    return choose_capacity(
        free_bytes=free,
        total_bytes=total,
        share=1.0,
        sample_bytes=Capacity(*needs),
        image_size=IMAGE_SIZE,
        images_held=IMAGES_HELD,
    )


def convolution_peak(device: torch.device, sizes: Sizes) -> float:
    """Measure the best rate of the engine's own 3x3 convolution over a few wide shapes: operations a second."""
    clock = make_clock(device)
    widths, size, n_images = sizes.peak
    rates = []
    with torch.inference_mode():
        for channels in widths:
            kernel = Convolution(torch.randn(channels, channels, 3, 3, dtype=torch.float64), None, device=device)
            x = torch.randn(n_images, channels, size, size, device=device).contiguous(memory_format=torch.channels_last)
            kernel(x)
            seconds = min(clock(partial(kernel, x)) for _ in range(5))
            rates.append(2.0 * n_images * (3 * channels * size) ** 2 / seconds)
    return max(rates)


def make_case(index: int, device: torch.device, precision: Precision, sizes: Sizes) -> Case:
    """Make a network with random weights in every form."""
    case = Case(index, device, make_images(sizes.images, device), sizes.channels, sizes.cells, precision)
    compiled = case.classify_by(copy.deepcopy(case.network))
    # By default PyTorch gives up after eight compilations, and computes as if it had been asked for none.
    torch._dynamo.config.recompile_limit = _FORMS_OF_A_COMPILED_NETWORK
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    traced: Any = torch.compile(compiled.network, backend=sizes.backend, dynamic=False)
    compiled.network = traced
    case.classifiers |= {"usual": case.classifiers["reference"], "compiled": compiled}
    return case


def in_buckets(case: Case, capacity: Capacity, form: str) -> Bucketed:
    """Let the fused engine show the case's network in buckets, as a worker does."""
    graphs = form == "graphs" and case.device.type == "cuda" and not case.compiled.is_constant
    return Bucketed(case.compiled, capacity, device=case.device, prepare=GraphCapture(case.device) if graphs else None)


def passes_at_capacity(case: Case, model: Bucketed) -> dict[str, Measurement]:
    """A forward pass, and one with the gradient, of full batches of the fused engine: seconds an image."""

    def tiled(n_images: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(n_images, device=case.device) % len(case.images)
        return to_float(case.images[rows]), case.labels[rows]

    pixels, _ = tiled(model.capacity.logits)
    onto = tiled(model.capacity.gradients)
    return {
        "forward": lambda clock: clock(lambda: model.logits(pixels)) / len(pixels),
        "gradient": lambda clock: clock(lambda: model.loss_and_gradient(*onto)) / len(onto[0]),
    }


class Rounds:
    """All setups of one network, measured in turn.

    Attributes:
        times: setup → pass or step → seconds an image, one per round.
        failed: why a setup of the libraries is left out.
    """

    def __init__(self, case: Case, setups: Sequence[Setup], capacity: Capacity) -> None:
        self._case = case
        self._capacity = capacity
        self.models = {setup: in_buckets(case, capacity, setup.form) for setup in setups if setup.is_fused}
        self._clock = make_clock(case.device)
        self._tasks = {setup: self._tasks_of(setup) for setup in setups}
        self.times: dict[Setup, dict[str, list[float]]] = {
            setup: {what: [] for what in tasks} for setup, tasks in self._tasks.items()
        }
        self.failed: dict[str, str] = {}

    def _tasks_of(self, setup: Setup) -> dict[str, Measurement]:
        if not setup.is_fused:
            return dict(measurements_of(self._case, setup.form, PAPER_EPSILONS_255[:1], setup.batch))
        n_epsilons = min(N_PAPER_EPSILONS, -(-2 * self._capacity.logits // len(self._case.images)))
        tasks = dict(measurements_of(self._case, "fused", PAPER_EPSILONS_255[:n_epsilons]))
        return tasks | passes_at_capacity(self._case, self.models[setup])

    def warm_up(self) -> None:
        """Let libraries choose their kernels, compile and capture: each task meets batches that the others do not."""
        for setup in list(self.times):
            for what in self._tasks[setup]:
                if setup in self.times:
                    self._seconds(setup, what)

    def run(self) -> None:
        """Measure everything once."""
        for what in next(iter(self._tasks.values())):
            for setup in list(self.times):
                seconds = self._seconds(setup, what)
                if seconds is not None:
                    self.times[setup][what].append(seconds)

    def _seconds(self, setup: Setup, what: str) -> float | None:
        """Measure one pass or step; None where a form of the libraries cannot compute it."""
        configure(setup, self._case.precision)
        if setup.is_fused:
            self._case.model, self._case.model_batch = self.models[setup], self._capacity.logits
        try:
            return self._tasks[setup][what](self._clock)
        except torch.OutOfMemoryError:
            if setup.is_fused:
                raise
            why = "out of memory"
        except Exception as error:  # torch.compile calls another compiler, and raises anything
            if setup.form != "compiled":
                raise
            why = f"{type(error).__name__}: {one_line(error)}"
        # The others still say what the libraries' best is.
        self.failed[setup.label] = why
        del self.times[setup]
        torch.cuda.empty_cache()
        return None


def ready_seconds(case: Case, capacity: Capacity) -> float:
    """Seconds that a worker takes once per network to compile it and to capture its passes, without the passes.

    What a process does once, such as loading libraries and choosing their kernels, lies behind when this is called.
    """
    clock = make_clock(case.device)
    start = time.monotonic()
    case.compiled = case.compile()
    model = in_buckets(case, capacity, "graphs")
    passes = passes_at_capacity(case, model)
    for measured in passes.values():
        measured(clock)
    seconds = time.monotonic() - start
    n_images = (capacity.logits, capacity.gradients)
    again = sum(measured(clock) * n for measured, n in zip(passes.values(), n_images, strict=True))
    model.release()
    return max(seconds - again, 0.0)


def measure(
    index: int, device: torch.device, precision: Precision, sizes: Sizes, square_share: float, *, every: bool
) -> dict[str, Any]:
    """Measure a network in every setup, in turn: plain values for a file."""
    start = time.monotonic()
    configure(Setup("graphs"), precision)
    case = make_case(index, device, precision, sizes)
    capacity = capacity_of(device, sizes)
    rounds = Rounds(case, setups_of(sizes, every=every), capacity)
    rounds.warm_up()
    limit = ConvolutionLimit(case.spec, capacity.logits, device, channels=sizes.channels, cells=sizes.cells)
    limits: list[float] = []
    while len(limits) < sizes.rounds and (not limits or time.monotonic() - start < 60 * sizes.minutes):
        rounds.run()
        configure(Setup("graphs"), precision)
        limits.append(limit.seconds(make_clock(device)))
    for model in rounds.models.values():
        model.release()
    ready = ready_seconds(case, capacity)
    seconds = {
        setup.label: {what: median(values) for what, values in by_what.items()}
        for setup, by_what in rounds.times.items()
    }
    for label in [label for label, by_what in seconds.items() if min(by_what.values()) <= 0]:
        noise = f"more steps took less time: {seconds.pop(label)}"
        if label == Setup("graphs").label:
            raise RuntimeError(f"#{index}: expected times that grow with the steps, got noise; {noise}")
        rounds.failed[label] = f"noise, {noise}"
    return {
        "index": index,
        "precision": precision,
        "images": len(case.images),
        "capacity": list(capacity),
        "seconds": seconds,
        "suite": {label: suite_seconds(costs, square_share) for label, costs in seconds.items()},
        "failed": rounds.failed,
        "ready_seconds": ready,
        "limit": median(limits),
        "flops": limit.flops / limit.n_images,
        "rounds": len(limits),
    }


def best_baseline(suites: dict[str, float], among: Collection[str] | None = None) -> str:
    """The libraries' fastest setup, by the whole suite; `among` some of them if given."""
    labels = suites if among is None else [label for label in suites if label in among]
    return min((label for label in labels if not label.startswith("fused")), key=suites.__getitem__)


def usual_baseline(suites: dict[str, float]) -> str:
    """The libraries' usual setup."""
    return next(label for label in suites if label.startswith("usual"))
