"""Compare the fused engine with the reference engine: what a step of each attack costs, and the whole suite.

    python -m benchmarks.engine --networks 13714 1462 21 991 309 0 --sample 24

Pairs are interleaved: within one round every measurement is made once for the reference (Foolbox and pyautoattack on
the published network, once an epsilon) and once for the fused engine, and medians are taken over the rounds. An
attack's cost is marginal: the difference of two run lengths, so that what is done once an attack drops out. On a CPU
the clock is the thread's CPU time, which other processes disturb less than they disturb the clock on the wall.

Square's windows shrink over a run, and on a CPU the fused engine's work with them: each stage of the run is measured by
itself and weighed by the queries that are made in it (`square_stages.py`).

Weights are random: they decide no time. Epsilons are so small that no image is ever fooled, so that every step is made
for every image; the share of Square's queries that a sweep really makes is measured by `active_share.py`.

    python -m benchmarks.engine --device cuda --sample 8

On CUDA the reference runs at several batch sizes, the libraries' usual one among them, and the fused engine at the one
that it chooses by the device's memory (`engine_gpu.py`).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from benchmarks.square_stages import ACTIVE_SHARE_FILE, Stage, mean_query_seconds, search_seconds, stages_of
from pipeline.classifier import Classifier, Model
from pipeline.evaluate import configure_torch
from pipeline.perturbations import PERTURBATIONS, Parameters
from pipeline.perturbations.base import Context, to_float
from pipeline.perturbations.fused import apgd, fgsm, pgd, square
from pipeline.perturbations.fused.job import CPU_SAMPLES
from pipeline.records import Normalisation
from pipeline.spaces.inference import compile_network
from pipeline.spaces.inference.kernels import Convolution
from pipeline.spaces.inference.program import plan_cell
from pipeline.spaces.nasbench201 import architecture, evaluated_indices, multiply_accumulates, parse
from pipeline.spaces.network import build_network

NORMALISATION = Normalisation((0.4914, 0.4824, 0.4467), (0.2471, 0.2435, 0.2616))
N_CLASSES = 10
N_PAPER_EPSILONS = 7
FUSED = {"fgsm": fgsm, "pgd": pgd, "aa_apgd-ce": apgd, "aa_square": square}
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
    """One network in both forms, with images that it classifies as they are labelled."""

    index: int
    device: torch.device
    images: torch.Tensor
    labels: torch.Tensor = field(init=False)
    model: Model = field(init=False)
    model_batch: int | None = None

    def __post_init__(self) -> None:
        self.spec = architecture(self.index).spec
        torch.manual_seed(self.index)
        network = build_network(self.spec, n_classes=N_CLASSES)
        self.classifier = Classifier(network, NORMALISATION, N_CLASSES, device=self.device)
        self.compiled = compile_network(network, self.spec, NORMALISATION, n_classes=N_CLASSES, device=self.device)
        self.model = self.compiled
        self.labels = self.compiled.logits(to_float(self.images)).argmax(dim=1)

    def attack(
        self, engine: str, key: str, strengths: tuple[float, ...], parameters: Parameters, batch: int | None = None
    ) -> None:
        """Run one attack on all images at some epsilons; complain if it fooled any, since its steps were fewer then."""
        fused = engine == "fused"
        context = Context(
            self.classifier,
            0,
            batch or len(self.images),
            key=key,
            engine=engine,
            model=self.model if fused else None,
            model_batch=self.model_batch,
        )
        perturb = FUSED[key].perturb if fused else PERTURBATIONS[key].load()
        indices = torch.arange(len(self.images)).numpy()
        for found in perturb(context, parameters, strengths, images=self.images, labels=self.labels, indices=indices):
            if key != "fgsm" and not torch.equal(
                self.model.logits(found.images).argmax(dim=1), self.labels[found.positions]
            ):
                raise RuntimeError(f"#{self.index}: {key} fooled an image at epsilon {strengths[found.strength]}/255")

    def forward(self, engine: str, batch: int | None = None) -> None:
        """Classify all images once."""
        for pixels in torch.split(to_float(self.images), batch or len(self.images)):
            with torch.no_grad():
                self.model.logits(pixels) if engine == "fused" else self.classifier(pixels)

    def gradient(self, engine: str, batch: int | None = None) -> None:
        """Classify all images and differentiate the cross-entropy once."""
        size = batch or len(self.images)
        cut = zip(torch.split(to_float(self.images), size), torch.split(self.labels, size), strict=True)
        for pixels, labels in cut:
            if engine == "fused":
                self.model.loss_and_gradient(pixels, labels)
            else:
                pixels.requires_grad_()
                loss = functional.cross_entropy(self.classifier(pixels), labels, reduction="sum")
                torch.autograd.grad(loss, [pixels])


def convolutions_of(spec: str) -> dict[tuple[int, int, int, int, int], int]:
    """Count the convolutions of the fused forward pass: (inputs, outputs, kernel, stride, input size) to number."""
    operations = parse(spec)
    found: dict[tuple[int, int, int, int, int], int] = {(3, CHANNELS, 3, 1, IMAGE_SIZE): 1}
    for stage in range(3):
        width, size = CHANNELS * 2**stage, IMAGE_SIZE // 2**stage
        for node in plan_cell(spec).nodes:
            for term in node.terms:
                if term.convolutions:
                    kernel = 3 if any(operations[edge] == "nor_conv_3x3" for edge in term.convolutions) else 1
                    shape = (width, width, kernel, 1, size)
                    found[shape] = found.get(shape, 0) + CELLS
        if stage < 2:
            for shape in ((width, 2 * width, 3, 2, size), (width, 2 * width, 1, 1, size // 2)):
                found[shape] = found.get(shape, 0) + 1
            shape = (2 * width, 2 * width, 3, 1, size // 2)
            found[shape] = found.get(shape, 0) + 1
    return found


class ConvolutionLimit:
    """The time that a network's convolutions take by themselves, each repeated on data in the cache."""

    def __init__(self, spec: str, n_images: int, device: torch.device) -> None:
        self.n_images = n_images
        self.kernels = []
        self.flops = 0.0
        for (inputs, outputs, size, stride, pixels), number in convolutions_of(spec).items():
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


def step_seconds(
    case: Case, engine: str, key: str, epsilons: tuple[float, ...], batch: int | None = None
) -> Measurement:
    """What one step of an attack costs for a sample: the difference of two run lengths."""
    name, *lengths = LENGTHS[key]

    def measured(clock: Clock) -> float:
        times = [
            clock(partial(case.attack, engine, key, epsilons, PERTURBATIONS[key].parameters(**{name: length}), batch))
            for length in lengths
        ]
        return (times[1] - times[0]) / (lengths[1] - lengths[0]) / (len(case.images) * len(epsilons))

    return measured


def measurements_of(
    case: Case, engine: str, epsilons: tuple[float, ...], batch: int | None = None
) -> Iterator[tuple[str, Measurement]]:
    """What is measured of a network in one engine: (what, seconds an image as a function of the clock)."""
    n_images = len(case.images)
    parameters = PERTURBATIONS["fgsm"].parameters()
    yield "forward", lambda clock: clock(lambda: case.forward(engine, batch)) / n_images
    yield "gradient", lambda clock: clock(lambda: case.gradient(engine, batch)) / n_images
    yield (
        "fgsm",
        lambda clock: clock(lambda: case.attack(engine, "fgsm", parameters.strengths, parameters, batch)) / n_images,
    )
    for key in LENGTHS:
        yield key, step_seconds(case, engine, key, epsilons, batch)


def suite_seconds(costs: dict[str, float], square_share: float) -> float:
    """Seconds an image of the paper's attacks: FGSM at eleven epsilons, the others at seven."""
    steps = FULL_LENGTHS | {"aa_square": FULL_LENGTHS["aa_square"] * square_share}
    return costs["fgsm"] + N_PAPER_EPSILONS * sum(steps[key] * costs[key] for key in steps)


def measure_searches(case: Case, n_samples: int, stages: list[Stage], clock: Clock) -> dict[int, float]:
    """Measure the stages of Square in which the fused engine looks at the window alone: side to seconds an image."""
    n_repeats = -(-n_samples // len(case.images))
    pixels = to_float(case.images).repeat(n_repeats, 1, 1, 1)[:n_samples]
    found = {stage.side: search_seconds(case.compiled, pixels, stage, clock) for stage in stages}
    return {side: seconds for side, seconds in found.items() if seconds is not None}


def measure(index: int, options: argparse.Namespace, square_share: float) -> dict[str, Any]:
    device = torch.device(options.device)
    clock = make_clock(device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (options.images, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=generator)
    case = Case(index, device, images.to(device))
    limit = ConvolutionLimit(case.spec, options.images, device)
    # Two epsilons fill the fused engine's batches as seven do; the reference attacks one after the other anyway.
    epsilons = {"reference": (HARMLESS_EPSILON_255,), "fused": (HARMLESS_EPSILON_255, 2 * HARMLESS_EPSILON_255)}
    tasks = [
        (what, engine, task) for engine in epsilons for what, task in measurements_of(case, engine, epsilons[engine])
    ]
    found: dict[tuple[str, str], list[float]] = {(what, engine): [] for what, engine, _ in tasks}
    stages = stages_of(FULL_LENGTHS["aa_square"], IMAGE_SIZE, options.square_share)
    limits, searches = [], []
    for warming_up in (True, *[False] * options.rounds):
        for what in dict.fromkeys(what for what, _, _ in tasks):
            for name, engine, task in tasks:
                if name == what and not (warming_up and name not in {"forward", "gradient", "fgsm"}):
                    seconds = task(clock)
                    if not warming_up:
                        found[what, engine].append(seconds)
        if not warming_up:
            limits.append(limit.seconds(clock))
            searches.append(measure_searches(case, CPU_SAMPLES, stages, clock))
    costs = {
        engine: {what: median(values) for (what, by), values in found.items() if by == engine}
        for engine in ("reference", "fused")
    }
    suites = {engine: suite_seconds(costs[engine], square_share) for engine in costs}
    suites["whole"] = suites["fused"]
    local = {side: median(search[side] for search in searches) for side in searches[0]}
    whole = costs["fused"]["aa_square"]
    costs["fused"]["aa_square"] = mean_query_seconds(stages, whole, costs["fused"]["forward"], local)
    suites["fused"] = suite_seconds(costs["fused"], square_share)
    return {
        "index": index,
        "seconds": costs,
        "square_whole": whole,
        "square_local": local,
        "suite": suites,
        "limit": median(limits),
        "limit_gflops": limit.flops / median(limits) / 1e9,
    }


def print_header() -> None:
    print(
        "| network | forward | + gradient | FGSM × 11 | PGD | APGD-CE | Square, whole passes | Square | **suite** "
        "| fused forward, µs | convolutions alone, µs (GFLOP/s) | share of that limit | suite of whole passes at it |\n"
        + "|---" * 13
        + "|",
        flush=True,
    )


def print_row(row: dict[str, Any], square_share: float) -> None:
    reference, fused = row["seconds"]["reference"], row["seconds"]["fused"]
    ratios = [reference[what] / fused[what] for what in reference]
    ratios.insert(-1, reference["aa_square"] / row["square_whole"])
    suite = row["suite"]["reference"] / row["suite"]["fused"]
    # Square is most of the suite and, with whole passes, forward passes; what one could save is what the suite could.
    saved = N_PAPER_EPSILONS * FULL_LENGTHS["aa_square"] * square_share * (fused["forward"] - row["limit"])
    at_limit = row["suite"]["reference"] / (row["suite"]["whole"] - saved)
    name = f"#{row['index']} ({CLASSES[row['index']]})" if row["index"] in CLASSES else f"#{row['index']}"
    cells = [name, *(f"{ratio:.2f}" for ratio in ratios), f"**{suite:.2f}**", f"{fused['forward'] * 1e6:.0f}"]
    cells += [f"{row['limit'] * 1e6:.0f} ({row['limit_gflops']:.0f})", f"{row['limit'] / fused['forward']:.0%}"]
    print(f"| {' | '.join([*cells, f'{at_limit:.2f}'])} |", flush=True)


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


def read_square_share() -> float:
    """Read the mean share of Square's queries that are made, as `active_share.py` measured it."""
    if not ACTIVE_SHARE_FILE.exists():
        raise SystemExit(
            f"Reading Square's active share failed: expected {ACTIVE_SHARE_FILE}, got no such file. "
            "Run `python -m benchmarks.active_share`, or give --square-share."
        )
    share: float = json.loads(ACTIVE_SHARE_FILE.read_text())["mean_share"]
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, nargs="*", default=list(CLASSES), help="indices")
    parser.add_argument("--sample", type=int, default=0, help="networks of the stratified sample, 0 for none")
    parser.add_argument("--images", type=int, help="images: 32 on a CPU and 5,000 on CUDA if not given")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--square-share", type=float, help="share of Square's queries that are made, in place of the measured one"
    )
    parser.add_argument("--no-graphs", action="store_true", help="on CUDA: without CUDA graphs")
    parser.add_argument("--json", type=Path, help="also write everything measured here")
    options = parser.parse_args()
    configure_torch(threads=1)
    share = read_square_share() if options.square_share is None else options.square_share
    if torch.device(options.device).type == "cuda":
        from benchmarks import engine_gpu  # which is made of what stands here

        engine_gpu.run(options, share)
        return
    options.images = options.images or 32
    print(
        f"Ratios reference / fused of the cost an image and step; {options.images} images, {options.rounds} rounds, "
        f"torch {torch.__version__} on {options.device}, one thread; {share:.1%} of Square's queries are made\n"
    )
    print_header()
    rows = []
    for index in options.networks:
        rows.append(measure(index, options, share))
        print_row(rows[-1], share)
    sample = []
    for index in stratified_sample(options.sample) if options.sample else []:
        sample.append(measure(index, options, share))
        print_row(sample[-1], share)
    if sample:
        total = {engine: sum(row["suite"][engine] for row in sample) for engine in ("reference", "fused")}
        ratio = total["reference"] / total["fused"]
        print(f"\nWhole suite over the sample of {len(sample)}, weighted by cost: {ratio:.2f}")
    if options.json:
        options.json.write_text(
            json.dumps({"networks": rows, "sample": sample, "square_share": share}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
