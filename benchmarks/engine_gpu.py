"""The benchmark of the engines on a GPU, and what the paper's sweep would take there.

    python -m benchmarks.engine --device cuda --networks 13714 1462 21 991 309 0 --sample 8 --json gpu.json

The reference is measured at the batch that the libraries' users take, 250, and at others; the fused engine at the batch
that it chooses by the device's memory, on CUDA graphs, with as many epsilons side by side as fill two such batches.
Ratios are given against the reference at 250 and at the best of its batches. TF32 is off on both sides. The reference's
batches run empty where images are fooled, which costs a GPU nearly as much as full ones; it is not charged for that.

What a sweep takes is extrapolated from the measured networks: the seconds an image of the whole suite are fitted as
a + b * multiply-accumulates, both at least 0 and the largest relative error as small as can be; for the fused engine
only those count that are left after pruning and merging. All work is done for each pixel, so an image of 16x16 costs a
quarter. Square's active share is that of one CIFAR-10 network for all three datasets; on the two others more images are
fooled early, so the hours are an upper bound there. Compiling, and capturing the two full buckets, are measured once
a network and added; loading weights is not.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linprog

from benchmarks.engine_case import (
    CELLS,
    CHANNELS,
    CLASSES,
    HARMLESS_EPSILON_255,
    IMAGE_SIZE,
    N_CLASSES,
    N_PAPER_EPSILONS,
    Case,
    ConvolutionLimit,
    Measurement,
    convolutions_of,
    make_clock,
    measurements_of,
    stratified_sample,
    suite_seconds,
)
from robust201.engine.attack_job import IMAGES_HELD
from robust201.engine.buckets import Bucketed
from robust201.engine.capacity import Capacity, choose_capacity
from robust201.engine.context import to_float
from robust201.engine.graphs import GraphCapture
from robust201.spaces.nasbench201.cells import architecture, evaluated_indices, multiply_accumulates
from robust201.spaces.nasbench201.compiled.footprint import network_bytes
from robust201.spaces.nasbench201.compiled.kernels import Convolution
from robust201.tasks import CORRUPTIONS
from robust201.tasks.parameters import SEVERITIES

USUAL_BATCH = 250
REFERENCE_BATCHES = (USUAL_BATCH, 500, 1000, 2000, 5000)
N_IMAGES = 5000
MIN_IMAGES = 2000
PAPER_EPSILONS_255 = tuple(HARMLESS_EPSILON_255 * number for number in range(1, N_PAPER_EPSILONS + 1))
PEAK_CHANNELS = (64, 128, 256)
FULL_SIZE = 32


class Dataset(NamedTuple):
    """What of a dataset decides the sweep's cost: images, height and width, and whether the paper corrupts it."""

    n_images: int
    image_size: int
    corrupted: bool


DATASETS = {
    "cifar10": Dataset(10_000, 32, corrupted=True),
    "cifar100": Dataset(10_000, 32, corrupted=True),
    "ImageNet16-120": Dataset(6_000, 16, corrupted=False),
}


class Setup(NamedTuple):
    """An engine at a batch size; the fused engine chooses its own."""

    engine: str
    batch: int | None


@dataclasses.dataclass
class Found:
    """What was measured of a network.

    Attributes:
        index: the network.
        seconds: setup → pass or step → seconds an image, medians.
        suite: setup → seconds an image of the whole suite.
        capacity: samples that the fused engine shows at once, for logits and for gradients.
        ready_seconds: what compiling and capturing takes once.
        limit: seconds an image of the convolutions alone.
        flops: floating-point operations of those, an image.
    """

    index: int
    seconds: dict[Setup, dict[str, float]]
    suite: dict[Setup, float]
    capacity: Capacity
    ready_seconds: float
    limit: float
    flops: float

    @property
    def best(self) -> Setup:
        """The reference at its best batch size."""
        return min((setup for setup in self.suite if setup.engine == "reference"), key=self.suite.__getitem__)

    def to_payload(self) -> dict[str, object]:
        """Plain values for the JSON file."""
        named = {f"{setup.engine} {setup.batch or 'own'}": setup for setup in self.suite}
        return {
            "index": self.index,
            "seconds": {name: self.seconds[setup] for name, setup in named.items()},
            "suite": {name: self.suite[setup] for name, setup in named.items()},
            "capacity": self.capacity,
            "ready_seconds": self.ready_seconds,
            "limit": self.limit,
            "flops": self.flops,
        }


FUSED = Setup("fused", None)
USUAL = Setup("reference", USUAL_BATCH)


def convolution_peak(device: torch.device, n_images: int = 2048) -> float:
    """Measure the best rate of the engine's own 3x3 convolution over a few wide shapes: operations a second."""
    clock = make_clock(device)
    rates = []
    with torch.inference_mode():
        for channels in PEAK_CHANNELS:
            kernel = Convolution(torch.randn(channels, channels, 3, 3, dtype=torch.float64), None, device=device)
            x = torch.randn(n_images, channels, 16, 16, device=device).contiguous(memory_format=torch.channels_last)
            kernel(x)
            seconds = min(clock(partial(kernel, x)) for _ in range(5))
            rates.append(2.0 * n_images * (3 * channels * 16) ** 2 / seconds)
    return max(rates)


def in_buckets(case: Case, capacity: Capacity, *, graphs: bool) -> Bucketed:
    """Let the fused engine show the case's network in buckets, as a worker does."""
    capture = GraphCapture(case.device) if graphs else None
    bucketed = Bucketed(case.compiled, capacity, device=case.device, prepare=capture)
    case.model, case.model_batch = bucketed, capacity.logits
    return bucketed


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


def measure(case: Case, model: Bucketed, setups: Sequence[Setup], rounds: int, square_share: float) -> Found:
    """Measure a network in every setup, interleaved."""
    clock = make_clock(case.device)
    n_epsilons = min(N_PAPER_EPSILONS, -(-2 * model.capacity.logits // len(case.images)))
    epsilons = {"reference": PAPER_EPSILONS_255[:1], "fused": PAPER_EPSILONS_255[:n_epsilons]}
    tasks = {setup: dict(measurements_of(case, setup.engine, epsilons[setup.engine], setup.batch)) for setup in setups}
    tasks[FUSED] |= passes_at_capacity(case, model)
    ready_seconds = clock(lambda: [tasks[FUSED][what](clock) for what in ("forward", "gradient")])
    times: dict[Setup, dict[str, list[float]]] = {setup: {what: [] for what in tasks[setup]} for setup in setups}
    limit = ConvolutionLimit(case.spec, model.capacity.logits, case.device)
    limits = []
    for warming_up in (True, *[False] * rounds):
        for what in tasks[setups[0]]:
            for setup in list(times):
                try:
                    taken = tasks[setup][what](clock)
                except torch.OutOfMemoryError:
                    if setup == FUSED:
                        raise
                    # The reference does not fit at this batch; the others still say what its best is.
                    del times[setup]
                    torch.cuda.empty_cache()
                    continue
                if not warming_up:
                    times[setup][what].append(taken)
        if not warming_up:
            limits.append(limit.seconds(clock))
    seconds = {setup: {what: median(values) for what, values in of.items()} for setup, of in times.items()}
    return Found(
        index=case.index,
        seconds=seconds,
        suite={setup: suite_seconds(costs, square_share) for setup, costs in seconds.items()},
        capacity=model.capacity,
        ready_seconds=ready_seconds,
        limit=median(limits),
        flops=limit.flops / limit.n_images,
    )


def published_macs(index: int) -> int:
    """Multiply-accumulates of the published network, which are those that the reference makes."""
    spec = architecture(index).spec
    return multiply_accumulates(spec, channels=CHANNELS, cells=CELLS, n_classes=N_CLASSES, image_size=IMAGE_SIZE)


def merged_macs(index: int) -> int:
    """Multiply-accumulates of the convolutions that the fused engine makes."""
    return sum(
        number * inputs * outputs * kernel**2 * (size // stride) ** 2
        for (inputs, outputs, kernel, stride, size), number in convolutions_of(architecture(index).spec).items()
    )


class Fit(NamedTuple):
    """Seconds an image as a + b * multiply-accumulates.

    Attributes:
        constant: a, seconds.
        slope: b, seconds for one multiply-accumulate.
        error: largest relative error over the networks that it was made from.
    """

    constant: float
    slope: float
    error: float

    def __call__(self, macs: float) -> float:
        """Seconds an image."""
        return self.constant + self.slope * macs


def fit_cost(macs: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit seconds to multiply-accumulates: neither number below 0, the largest relative error as small as can be.

    Args:
        macs: of the measured networks.
        seconds: that they took.

    Raises:
        RuntimeError: the solver gave up.
    """
    scale = max(macs)
    predicted = np.array([np.ones(len(macs)), np.array(macs) / scale]).T / np.array(seconds)[:, None]
    # Unknown: a, b * scale, and the error e: |predicted - 1| <= e for each network.
    column = -np.ones((len(macs), 1))
    rows = np.vstack([np.hstack([predicted, column]), np.hstack([-predicted, column])])
    bounds = np.concatenate([np.ones(len(macs)), -np.ones(len(macs))])
    solved = linprog([0.0, 0.0, 1.0], A_ub=rows, b_ub=bounds, bounds=[(0, None)] * 3)
    if solved.x is None:
        raise RuntimeError(f"Fitting seconds to multiply-accumulates failed for {len(macs)} networks: {solved.message}")
    # The solver keeps its bounds to within a rounding error.
    constant, slope, error = np.maximum(solved.x, 0.0).tolist()
    return Fit(constant, slope / scale, error)


def sweep_seconds(suite: Fit, forward: Fit, macs: Sequence[float], ready_seconds: float = 0.0) -> dict[str, float]:
    """Extrapolate the paper's sweep.

    Args:
        suite: seconds an image of 32x32 for the four attacks at all epsilons.
        forward: seconds an image of 32x32 for one forward pass: clean and corrupted images take one each.
        macs: of every network of the sweep.
        ready_seconds: once a network and dataset.

    Returns:
        Seconds by dataset.
    """
    in_all = {}
    for name, dataset in DATASETS.items():
        passes = 1 + dataset.corrupted * len(CORRUPTIONS) * len(SEVERITIES)
        pixels = (dataset.image_size / FULL_SIZE) ** 2
        an_image = [pixels * (suite(number) + passes * forward(number)) for number in macs]
        in_all[name] = dataset.n_images * sum(an_image) + len(macs) * ready_seconds
    return in_all


def print_header() -> None:
    names = (
        "network",
        "best batch of the reference",
        "forward",
        "+ gradient",
        "FGSM × 11",
        "PGD",
        "APGD-CE",
        "Square",
        "**suite, against 250**",
        "**suite, against best**",
        "fused forward, images/s",
        "+ gradient, images/s",
        "TFLOP/s",
        "share of the convolution peak",
        "convolutions alone / forward",
    )
    print(f"| {' | '.join(names)} |\n" + "|---" * len(names) + "|", flush=True)


def print_row(found: Found, peak: float) -> None:
    fused, usual = found.seconds[FUSED], found.seconds[USUAL]
    rate = found.flops / fused["forward"]
    cells = [
        f"#{found.index}" + (f" ({CLASSES[found.index]})" if found.index in CLASSES else ""),
        str(found.best.batch),
        *(f"{usual[what] / fused[what]:.2f}" for what in usual),
        f"**{found.suite[USUAL] / found.suite[FUSED]:.2f}**",
        f"**{found.suite[found.best] / found.suite[FUSED]:.2f}**",
        f"{1 / fused['forward']:,.0f}",
        f"{1 / fused['gradient']:,.0f}",
        f"{rate / 1e12:.2f}",
        f"{rate / peak:.0%}",
        f"{found.limit / fused['forward']:.0%}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def extrapolate(measured: Sequence[Found]) -> dict[str, dict[str, float]]:
    """Extrapolate and print GPU-hours of the paper's sweep for the reference at 250, at its best, and fused."""
    everything = evaluated_indices()
    hours = {}
    print(
        f"\nGPU-hours of the paper's sweep, {len(everything):,} networks, extrapolated from {len(measured)}\n\n"
        f"| engine | {' | '.join(DATASETS)} | in all | largest error of the fit |\n" + "|---" * 6 + "|"
    )
    for name in ("reference at 250", "reference at its best batch", "fused"):
        count = merged_macs if name == "fused" else published_macs
        setups = [{"fused": FUSED, "reference at 250": USUAL}.get(name, found.best) for found in measured]
        macs = [count(found.index) for found in measured]
        chosen = list(zip(measured, setups, strict=True))
        suite = fit_cost(macs, [found.suite[setup] for found, setup in chosen])
        forward = fit_cost(macs, [found.seconds[setup]["forward"] for found, setup in chosen])
        ready = median(found.ready_seconds for found in measured) if name == "fused" else 0.0
        seconds = sweep_seconds(suite, forward, [count(index) for index in everything], ready)
        hours[name] = {dataset: value / 3600 for dataset, value in seconds.items()}
        cells = [f"{value:,.0f}" for value in (*hours[name].values(), sum(hours[name].values()))]
        print(f"| {name} | {' | '.join(cells)} | {suite.error:.0%} |", flush=True)
    return hours


def memory_of(device: torch.device) -> dict[str, int]:
    """Bytes of a GPU that are free, and that there are."""
    free, total = torch.cuda.mem_get_info(device)
    return {"free_bytes": free + torch.cuda.memory_reserved(device), "total_bytes": total}


def run(options: argparse.Namespace, square_share: float) -> None:
    device = torch.device(options.device)
    n_images = options.images or N_IMAGES
    if n_images < MIN_IMAGES:
        raise SystemExit(f"Measuring failed for {n_images} images: expected {MIN_IMAGES:,} or more on CUDA.")
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n_images, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=generator)
    images = images.to(device)
    sample_bytes = (network_bytes(CHANNELS, CELLS, IMAGE_SIZE, gradient=gradient) for gradient in (False, True))
    capacity = choose_capacity(
        **memory_of(device),
        share=1.0,
        sample_bytes=Capacity(*sample_bytes),
        image_size=IMAGE_SIZE,
        images_held=IMAGES_HELD,
    )
    setups = [FUSED, *(Setup("reference", batch) for batch in REFERENCE_BATCHES if batch <= n_images)]
    peak = convolution_peak(device)
    print(
        f"Ratios reference / fused of the cost an image and step; {n_images:,} images, {options.rounds} rounds, torch "
        f"{torch.__version__} on {torch.cuda.get_device_name(device)}, float32, TF32 off; convolution peak "
        f"{peak / 1e12:.1f} TFLOP/s; {square_share:.1%} of Square's queries are made; the fused engine "
        f"shows {capacity.logits} samples at once, {capacity.gradients} where it takes gradients. Columns up to Square "
        "are against the reference at 250.\n"
    )
    print_header()
    measured: list[Found] = []
    sample = stratified_sample(options.sample) if options.sample else []
    for index in dict.fromkeys((*options.networks, *sample)):
        start = time.perf_counter()
        case = Case(index, device, images)
        model = in_buckets(case, capacity, graphs=not options.no_graphs)
        compile_seconds = time.perf_counter() - start
        found = measure(case, model, setups, options.rounds, square_share)
        measured.append(dataclasses.replace(found, ready_seconds=found.ready_seconds + compile_seconds))
        print_row(measured[-1], peak)
        model.release()
    sampled = [found for found in measured if found.index in sample]
    if sampled:
        usual, fused = (sum(found.suite[setup] for found in sampled) for setup in (USUAL, FUSED))
        best = sum(found.suite[found.best] for found in sampled)
        print(
            f"\nWhole suite over the sample of {len(sampled)}, weighted by cost: {usual / fused:.2f} against 250, "
            f"{best / fused:.2f} against the best batch"
        )
    hours = extrapolate(measured)
    if options.json:
        payload = {"networks": [found.to_payload() for found in measured], "gpu_hours": hours, "peak": peak}
        options.json.write_text(json.dumps(payload | {"square_share": square_share}, indent=1) + "\n")
