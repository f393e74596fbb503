"""The steps of `benchmarks.gpu`: each measures one thing, returns plain values for a file, and makes its table of them.

No step needs Ray, data or a network connection.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import torch
import yaml
from torch.profiler import ProfilerActivity, profile

from benchmarks import gpu_speed, sweep_hours
from benchmarks.engine import read_square_share
from benchmarks.engine_case import (
    CLASSES,
    N_CLASSES,
    NORMALISATION,
    Case,
    convolutions_of,
    exhaust,
    make_clock,
    stratified_sample,
)
from benchmarks.gpu_speed import Setup, Sizes, configure
from benchmarks.parity import ATTACKS, compare_random
from robust201.bench.comparison import Lengths, Machine, Sweep, Way, compare, loops
from robust201.bench.generated import random_subjects
from robust201.core.precision import Precision
from robust201.engine.capacity import USED_SHARE, Capacity
from robust201.engine.classifier import Classifier
from robust201.engine.context import to_float
from robust201.engine.model import Model
from robust201.spaces.nasbench201.cells import evaluated_indices
from robust201.spaces.nasbench201.compiled.footprint import network_bytes
from robust201.spaces.zoo.space import Zoo
from robust201.tasks import TASKS
from robust201.tasks.parameters import Parameters

REPOSITORY = Path(__file__).resolve().parent.parent
GPU_TESTS = "tests/runtime/test_gpu.py"
MARGIN_BYTES = 128 * 2**20
"""Less than what CUDA alone takes for a process."""


@dataclass(frozen=True)
class Plan:
    """What all steps share: where they compute, how much, and where the files of earlier steps lie.

    Attributes:
        device: ``cuda``, or ``cpu`` for a rehearsal.
        folder: one JSON file per step.
        sizes: how much is measured of a network.
        networks: measured in every setup, and profiled if they are the first of their class.
        sample: networks of the stratified sample, from which GPU-hours are extrapolated.
        zoo: networks that no space compiles.
        parity_images: images of the proof of parity.
        parity_steps: steps of the attacks by gradient there; None for the paper's.
        parity_queries: queries of Square there.
        whole: networks of whole processes.
        whole_images: images of whole processes.
        whole_batches: of the loop, besides all images.
        lengths: their attacks.
        sweep_images: images of the sweeps of two workers and of the kill.
        sweep_networks: networks of these.
    """

    device: str
    folder: Path
    sizes: Sizes = field(default_factory=Sizes)
    networks: tuple[int, ...] = tuple(CLASSES)
    sample: tuple[int, ...] = field(default_factory=lambda: tuple(stratified_sample(8)))
    zoo: tuple[str, ...] = ("resnet18", "resnet50", "vgg16")
    parity_images: int = 16
    parity_steps: int | None = None
    parity_queries: int = 200
    whole: tuple[str, ...] = ("309", "13714")
    whole_images: int = 1000
    whole_batches: tuple[int, ...] = (gpu_speed.USUAL_BATCH,)
    lengths: Lengths = field(default_factory=lambda: Lengths(pgd_steps=10, apgd_steps=10, queries=350))
    sweep_images: int = 500
    sweep_networks: tuple[int, ...] = (21, 309, 991, 13714)
    sweep_keys: Mapping[str, Any] = field(
        default_factory=lambda: {"clean": {}, "pgd": {"steps": 20}, "aa_square": {"queries": 1000}}
    )

    @property
    def torch_device(self) -> torch.device:
        """Where it computes."""
        return torch.device(self.device)

    def arithmetic(self, precision: Precision) -> Precision:
        """A precision of the device: a CPU has no tf32, and rehearses it as fp32."""
        return "fp32" if self.device == "cpu" and precision == "tf32" else precision


def rehearsal(folder: Path) -> Plan:
    """Everything on a CPU, with networks and lengths so small that only mistakes show."""
    one = (1.0,)
    return Plan(
        "cpu",
        folder,
        sizes=Sizes(
            images=8,
            usual_batch=8,
            batches=(8,),
            rounds=1,
            channels=2,
            cells=1,
            capacity=Capacity(8, 8),
            peak=((4,), 4, 2),
            backend="eager",
        ),
        networks=(309,),
        sample=(309,),
        zoo=("resnet18-w4",),
        parity_images=4,
        parity_steps=2,
        parity_queries=2,
        whole=("309",),
        whole_images=2,
        whole_batches=(2,),
        lengths=Lengths(one, one, pgd_steps=1, apgd_steps=1, queries=1),
        sweep_images=4,
        sweep_networks=(309, 0),
        sweep_keys={"clean": {}, "pgd": {"steps": 1, "epsilons_255": [1]}},
    )


Values = dict[str, Any]


def read_values(folder: Path, name: str) -> Values | None:
    """Read what a step found; None where it has not run."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write_values(folder: Path, name: str, values: Values) -> None:
    """Write what a step found, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.write_text(json.dumps(values, indent=1) + "\n")
    part.rename(folder / f"{name}.json")


Measure = Callable[[Plan], Values]
Show = Callable[[Values], Iterator[str]]


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        name: of its file.
        measure: does the work.
        show: lines of its table.
    """

    name: str
    measure: Measure
    show: Show


def steps_of(plan: Plan) -> list[Step]:
    """List all steps: those whose failure would make the others worthless come first."""
    speed = [
        Step(f"speed-{index}-{precision}", partial(measure_speed, index, precision), show_speed)
        for precision, networks in _speed_networks(plan).items()
        for index in networks
    ]
    profiles = [
        Step(f"profile-{index}", partial(measure_profile, index), show_profile) for index in _one_per_class(plan)
    ]
    return [
        Step("machine", measure_machine, show_machine),
        Step("tests", measure_tests, show_tests),
        Step("parity", measure_parity, show_parity),
        Step("memory", measure_memory, show_memory),
        *speed,
        Step("hours", measure_hours, show_hours),
        Step("layouts", measure_layouts, show_layouts),
        *profiles,
        *(Step(f"whole-{name}", partial(measure_whole, name), show_whole) for name in plan.whole),
        Step("two-workers", measure_two_workers, show_two_workers),
        Step("kill", measure_kill, show_kill),
    ]


def _speed_networks(plan: Plan) -> dict[Precision, tuple[int, ...]]:
    everything = tuple(dict.fromkeys((*plan.networks, *plan.sample)))
    return {"fp32": everything, "tf32": everything}


def _one_per_class(plan: Plan) -> list[int]:
    first: dict[str, int] = {}
    for index in plan.networks:
        first.setdefault(CLASSES.get(index, ""), index)
    return list(first.values())


# --- the machine -----------------------------------------------------------------------------------------------------


def measure_machine(plan: Plan) -> Values:
    """Versions, memory, and the best rate of convolutions in each precision."""
    device = plan.torch_device
    on_cuda = device.type == "cuda"
    peaks = {}
    precisions: tuple[Precision, ...] = ("fp32", "tf32")
    for precision in precisions:
        configure(Setup("graphs"), plan.arithmetic(precision))
        peaks[precision] = gpu_speed.convolution_peak(device, plan.sizes)
    return {
        "device": torch.cuda.get_device_name(device) if on_cuda else "CPU",
        "memory": gpu_speed.memory_of(device)[1],
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version() if on_cuda else 0,  # type: ignore[no-untyped-call]
        "peaks": peaks,
    }


def show_machine(found: Values) -> Iterator[str]:
    """One line."""
    peaks = ", ".join(f"{name} {rate / 1e12:.2f} TFLOP/s" for name, rate in found["peaks"].items())
    yield (
        f"{found['device']}, {found['memory'] / 2**30:.0f} GiB; PyTorch {found['torch']}, CUDA {found['cuda']}, cuDNN "
        f"{found['cudnn']}; convolutions at most: {peaks}"
    )


# --- pytest -m gpu ---------------------------------------------------------------------------------------------------


def measure_tests(plan: Plan) -> Values:
    """The tests that need a GPU; on a CPU they are collected and skipped."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # Without pyproject's options, which ask for plugins, and without its errors for warnings: CUDA has its own.
        options = ["-o", "addopts=", "-W", "default", "-p", "no:cacheprovider", "-q", "-m", "gpu"]
        words = ["-m", "pytest", *options, f"--junitxml={report}"]
        ended = subprocess.run(
            [sys.executable, *words, GPU_TESTS], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        if not report.exists():
            raise RuntimeError(f"pytest ended with {ended.returncode}: {ended.stdout[-1000:]} {ended.stderr[-1000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - pytest's own file
    outcome = {f"{case.get('name')}": next((child.tag for child in case), "passed") for case in cases}
    failures = {
        str(case.get("name")): str(child.get("message"))[:500]
        for case in cases
        for child in case
        if child.tag in ("failure", "error")
    }
    return {"exit_code": ended.returncode, "outcome": outcome, "failures": failures, "device": plan.device}


def show_tests(found: Values) -> Iterator[str]:
    """Counts, and every failure."""
    outcomes = list(found["outcome"].values())
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))
    yield f"`pytest -m gpu`: {counts or 'no test was found'}"
    for name, message in found["failures"].items():
        yield f"- {name}: {message}"


# --- parity ----------------------------------------------------------------------------------------------------------


def measure_parity(plan: Plan) -> Values:
    """Differing bits of images and logits between the fused attacks and the libraries."""
    configure(Setup("graphs"), "fp32")
    rows = []
    for index in plan.networks:
        found = compare_random(
            str(index),
            plan.torch_device,
            n_images=plan.parity_images,
            steps=plan.parity_steps,
            queries=plan.parity_queries,
            size=(plan.sizes.channels, plan.sizes.cells),
        )
        rows += [{"network": index, "attack": key, "correct": correct, "bits": bits} for key, correct, bits in found]
    return {"rows": rows, "images": plan.parity_images, "queries": plan.parity_queries}


def show_parity(found: Values) -> Iterator[str]:
    """A row per network and attack."""
    yield "| network | attack | images correct at each epsilon | differing bits at each epsilon |"
    yield "|---" * 4 + "|"
    for row in found["rows"]:
        correct, bits = (" ".join(map(str, row[name])) for name in ("correct", "bits"))
        yield f"| #{row['network']} | `{row['attack']}` | {correct} | {bits} |"
    yield ""
    yield f"{sum(sum(row['bits']) for row in found['rows'])} differing bits in {len(ATTACKS)} attacks"


# --- memory ----------------------------------------------------------------------------------------------------------


def peak_bytes(device: torch.device, task: Callable[[], object], *, reserved: bool = False) -> int | None:
    """What a task holds at once beyond what was held before; None on a CPU, which does not say.

    A captured graph's memory counts as free between its replays, but nothing else can use it: `reserved` counts it, and
    the allocator's gaps.
    """
    if device.type != "cuda":
        task()
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held, peak = (
        (torch.cuda.memory_reserved, torch.cuda.max_memory_reserved)
        if reserved
        else (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated)
    )
    before = held(device)
    task()
    return peak(device) - before


def _run_attack(case: Case, key: str, epsilons: tuple[float, ...], parameters: Parameters) -> None:
    exhaust(case.attack("fused", key, epsilons, parameters))


def measure_memory(plan: Plan) -> Values:
    """Passes against the estimate of bytes per sample, and whole attacks against the device."""
    device, sizes = plan.torch_device, plan.sizes
    configure(Setup("graphs"), "fp32")
    capacity = gpu_speed.capacity_of(device, sizes)
    passes, attacks = [], []
    for index in plan.networks:
        case = gpu_speed.make_case(index, device, "fp32", sizes)
        for gradient in (False, True):
            n_samples = capacity.gradients if gradient else capacity.logits
            rows = torch.arange(n_samples, device=device) % len(case.images)
            pixels, labels = to_float(case.images[rows]), case.labels[rows]
            network = case.compiled
            task: Callable[[], object] = partial(network.logits, pixels)
            if gradient:
                task = partial(network.loss_and_gradient, pixels, labels)
            task()
            passes.append(
                {
                    "network": index,
                    "gradient": gradient,
                    "samples": n_samples,
                    "bytes": peak_bytes(device, task),
                    "estimate": n_samples * network_bytes(sizes.channels, sizes.cells, 32, gradient=gradient),
                }
            )
        for key, changes in (("aa_square", {"queries": plan.parity_queries}), ("aa_apgd-ce", {"steps": 2})):
            case.model = gpu_speed.in_buckets(case, capacity, "graphs")
            case.model_batch = capacity.logits
            parameters = TASKS[key].parameters(**changes)
            task = partial(_run_attack, case, key, gpu_speed.PAPER_EPSILONS_255, parameters)
            attacks.append({"network": index, "key": key, "bytes": peak_bytes(device, task, reserved=True)})
            case.model.release()
    free, total = gpu_speed.memory_of(device)
    return {"passes": passes, "attacks": attacks, "free": free, "total": total, "capacity": list(capacity)}


def _gib(n_bytes: int | None) -> str:
    return "unmeasured" if n_bytes is None else f"{n_bytes / 2**30:.2f}"


def show_memory(found: Values) -> Iterator[str]:
    """Passes, then attacks."""
    yield "| network | pass | samples | peak, GiB | estimate, GiB | peak / estimate |"
    yield "|---" * 6 + "|"
    for row in found["passes"]:
        share = "unmeasured" if row["bytes"] is None else f"{row['bytes'] / row['estimate']:.0%}"
        what = "with gradient" if row["gradient"] else "forward"
        cells = (what, f"{row['samples']:,}", _gib(row["bytes"]), _gib(row["estimate"]), share)
        yield f"| #{row['network']} | {' | '.join(cells)} |"
    yield ""
    yield f"Whole attacks; {_gib(found['total'])} GiB, of which {USED_SHARE:.0%} are planned with"
    yield ""
    yield "| network | attack | reserved at most, GiB |"
    yield "|---" * 3 + "|"
    for row in found["attacks"]:
        yield f"| #{row['network']} | `{row['key']}` | {_gib(row['bytes'])} |"


# --- speed -----------------------------------------------------------------------------------------------------------


def measure_speed(index: int, precision: Precision, plan: Plan) -> Values:
    """Passes and attacks of one network in every setup."""
    every = index in plan.networks and precision == "fp32"
    found = gpu_speed.measure(
        index, plan.torch_device, plan.arithmetic(precision), plan.sizes, read_square_share(), every=every
    )
    machine = read_values(plan.folder, "machine")
    found["peak"] = None if machine is None else machine["peaks"][precision]
    return found | {"precision": precision}


def show_speed(found: Values) -> Iterator[str]:
    """A row per setup, fastest last."""
    seconds, suite = found["seconds"], found["suite"]
    ours = suite[Setup("graphs").label]
    usual, best = gpu_speed.usual_baseline(suite), gpu_speed.best_baseline(suite)
    columns = list(seconds[usual])
    yield (
        f"#{found['index']}, {found['precision']}, {found['images']:,} images, rounds: {found['rounds']}; **"
        f"{suite[usual] / ours:.2f} times as fast as the usual loop, {suite[best] / ours:.2f} times as the best**"
    )
    yield ""
    yield f"| setup | {' | '.join(f'{what}, µs' for what in columns)} | suite, ms an image | suite / fused |"
    yield "|---" * (len(columns) + 3) + "|"
    for label in sorted(suite, key=suite.__getitem__, reverse=True):
        cells = [f"{seconds[label][what] * 1e6:.2f}" for what in columns]
        yield f"| {label} | {' | '.join(cells)} | {suite[label] * 1e3:.3f} | {suite[label] / ours:.2f} |"
    for label, why in found["failed"].items():
        yield f"- {label}: {why}"
    forward = seconds[Setup("graphs").label]["forward"]
    rate = found["flops"] / forward
    peak = "" if found["peak"] is None else f", {rate / found['peak']:.0%} of the convolution peak"
    yield ""
    yield (
        f"Fused forward: {1 / forward:,.0f} images/s, {rate / 1e12:.2f} TFLOP/s{peak}; convolutions alone / forward: "
        f"{found['limit'] / forward:.0%}"
    )


# --- GPU-hours -------------------------------------------------------------------------------------------------------


def measure_hours(plan: Plan) -> Values:
    """GPU-hours of the paper's sweep, by precision and engine, from the networks measured so far."""
    everything = evaluated_indices()
    hours: dict[str, Values] = {}
    for precision, networks in _speed_networks(plan).items():
        rows = [
            row for index in networks if (row := read_values(plan.folder, f"speed-{index}-{precision}")) is not None
        ]
        if not rows:
            continue
        measured = set[str].intersection(*(set(row["suite"]) for row in rows))  # in all of them
        for name in ("libraries, usual", "libraries, best", "fused"):
            chosen = [_label(name, row["suite"], measured) for row in rows]
            count = sweep_hours.merged_macs if name == "fused" else sweep_hours.published_macs
            macs = [count(row["index"]) for row in rows]
            pairs = list(zip(rows, chosen, strict=True))
            suite = sweep_hours.fit_cost(macs, [row["suite"][label] for row, label in pairs])
            forward = sweep_hours.fit_cost(macs, [row["seconds"][label]["forward"] for row, label in pairs])
            ready = sum(row["ready_seconds"] for row in rows) / len(rows) if name == "fused" else 0.0
            seconds = sweep_hours.sweep_seconds(suite, forward, [count(index) for index in everything], ready)
            hours[f"{precision}, {name}"] = {
                "hours": {dataset: value / 3600 for dataset, value in seconds.items()},
                "error": suite.error,
                "networks": len(rows),
            }
    if not hours:
        raise RuntimeError("expected the files of speed steps, got none: run these first")
    return {"hours": hours, "space": len(everything)}


def _label(name: str, suite: dict[str, float], measured: Collection[str]) -> str:
    if name == "fused":
        return Setup("graphs").label
    return gpu_speed.usual_baseline(suite) if name == "libraries, usual" else gpu_speed.best_baseline(suite, measured)


def show_hours(found: Values) -> Iterator[str]:
    """A row per precision and engine."""
    datasets = list(sweep_hours.DATASETS)
    yield f"GPU-hours of the paper's sweep, {found['space']:,} networks"
    yield ""
    yield f"| precision, engine | networks measured | {' | '.join(datasets)} | in all | largest error of the fit |"
    yield "|---" * (len(datasets) + 4) + "|"
    for name, row in found["hours"].items():
        cells = [f"{row['hours'][dataset]:,.1f}" for dataset in datasets]
        total = sum(row["hours"].values())
        yield f"| {name} | {row['networks']} | {' | '.join(cells)} | {total:,.1f} | {row['error']:.0%} |"


# --- layouts ---------------------------------------------------------------------------------------------------------


def measure_layouts(plan: Plan) -> Values:
    """Networks that no space compiles, in both memory layouts: a sweep computes the zoo's in channels_last."""
    device = plan.torch_device
    clock = make_clock(device)
    pixels = to_float(gpu_speed.make_images(plan.sizes.usual_batch, device))
    labels = torch.zeros(len(pixels), dtype=torch.int64, device=device)
    rows = []
    precisions: tuple[Precision, ...] = ("fp32", "tf32")
    for precision in precisions:
        arithmetic = plan.arithmetic(precision)
        configure(Setup("calls"), arithmetic)
        for name in plan.zoo:
            for layout in ("default", "channels_last"):
                classifier = Classifier(
                    Zoo().build(name, n_classes=N_CLASSES),
                    NORMALISATION,
                    N_CLASSES,
                    device=device,
                    precision=arithmetic,
                    channels_last=layout == "channels_last",
                )
                seconds = {}
                tasks: dict[str, Callable[[], object]] = {
                    "forward": partial(classifier.logits, pixels),
                    "gradient": partial(classifier.loss_and_gradient, pixels, labels),
                }
                for what, task in tasks.items():
                    task()
                    seconds[what] = min(clock(task) for _ in range(5)) / len(pixels)
                rows.append({"network": name, "precision": precision, "layout": layout, "seconds": seconds})
    return {"rows": rows, "batch": len(pixels)}


def show_layouts(found: Values) -> Iterator[str]:
    """A row per network, precision and layout."""
    yield f"Batches of {found['batch']}"
    yield ""
    yield "| network | precision | layout | forward, µs an image | with gradient, µs |"
    yield "|---" * 5 + "|"
    for row in found["rows"]:
        times = (f"{row['seconds'][what] * 1e6:.2f}" for what in ("forward", "gradient"))
        yield f"| {row['network']} | {row['precision']} | {row['layout']} | {' | '.join(times)} |"


# --- profile ---------------------------------------------------------------------------------------------------------

KERNEL_GROUPS = (
    ("copies", re.compile(r"memcpy|memset|copy|clone|contiguous", re.IGNORECASE)),
    (
        "convolutions",
        re.compile(r"conv|gemm|winograd|xmma|cutlass|cudnn|fprop|dgrad|implicit|linear|mm\b", re.IGNORECASE),
    ),
    ("pooling", re.compile(r"pool", re.IGNORECASE)),
    ("reductions", re.compile(r"reduce|mean|amax|softmax|sum", re.IGNORECASE)),
    ("gathers", re.compile(r"gather|index|scatter|where", re.IGNORECASE)),
)
"""Groups of kernels by their names, in the order in which they are tried; the rest is elementwise work."""


def group_of(kernel: str) -> str:
    """The group of a kernel."""
    return next((name for name, pattern in KERNEL_GROUPS if pattern.search(kernel)), "elementwise")


def measure_profile(index: int, plan: Plan) -> Values:
    """Kernel times of a forward pass, a gradient and queries of Square, against the time that convolutions need."""
    device, sizes = plan.torch_device, plan.sizes
    configure(Setup("graphs"), "fp32")
    case = gpu_speed.make_case(index, device, "fp32", sizes)
    capacity = gpu_speed.capacity_of(device, sizes)
    clock = make_clock(device)
    machine = read_values(plan.folder, "machine")
    peak = machine["peaks"]["fp32"] if machine else gpu_speed.convolution_peak(device, sizes)
    convolutions = convolutions_of(case.spec, channels=sizes.channels, cells=sizes.cells).items()
    flops = 2.0 * sum(
        number * inputs * outputs * kernel**2 * (size // stride) ** 2
        for (inputs, outputs, kernel, stride, size), number in convolutions
    )
    found = {}
    for what, work in {"forward": 1.0, "gradient": 2.0, "square": 1.0}.items():
        graphs, calls = (gpu_speed.in_buckets(case, capacity, form) for form in ("graphs", "calls"))
        walls = {}
        for name, model in (("graphs", graphs), ("calls", calls)):
            case.model, case.model_batch = model, capacity.logits
            task, n_samples = _profiled(case, what, capacity)
            task()
            walls[name] = clock(task)
        found[what] = {
            "samples": n_samples,
            "wall_graphs": walls["graphs"],
            "wall_calls": walls["calls"],
            "ideal": work * flops * n_samples / peak,
            "groups": _kernel_seconds(device, task),
        }
        graphs.release()
        calls.release()
    return {"network": index, "class": CLASSES.get(index, ""), "passes": found}


class _Counted:
    """A model that counts the samples that it is shown."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.samples = 0

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        self.samples += len(pixels)
        return self._model.logits(pixels)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _profiled(case: Case, what: str, capacity: Capacity) -> tuple[Callable[[], object], int]:
    """A task, and how many samples go through the network in it."""
    if what == "square":
        epsilons = gpu_speed.PAPER_EPSILONS_255[: max(1, min(7, capacity.logits // len(case.images)))]
        changes: dict[str, Any] = {"queries": 64}
        parameters = TASKS["aa_square"].parameters(**changes)
        model, counted = case.model, _Counted(case.model)
        case.model = counted
        _run_attack(case, "aa_square", epsilons, parameters)
        case.model = model
        return partial(_run_attack, case, "aa_square", epsilons, parameters), counted.samples
    n_samples = capacity.logits if what == "forward" else capacity.gradients
    rows = torch.arange(n_samples, device=case.device) % len(case.images)
    pixels, labels = to_float(case.images[rows]), case.labels[rows]
    task = (
        partial(case.model.logits, pixels)
        if what == "forward"
        else partial(case.model.loss_and_gradient, pixels, labels)
    )
    return task, n_samples


def _kernel_seconds(device: torch.device, task: Callable[[], object]) -> dict[str, float]:
    """Seconds by group of kernels."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as profiler:
        task()
        if on_cuda:
            torch.cuda.synchronize(device)
    groups: dict[str, float] = {}
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if microseconds and not (on_cuda and str(event.device_type).endswith("CPU")):
            group = group_of(event.key)
            groups[group] = groups.get(group, 0.0) + microseconds / 1e6
    return groups


def losses(row: Values) -> dict[str, float]:
    """Seconds by what keeps a pass from the time that its convolutions need at the peak, the largest first."""
    groups = dict(row["groups"])
    busy = sum(groups.values())
    found = {"convolutions below their peak": groups.pop("convolutions", 0.0) - row["ideal"]}
    found |= groups
    found["device idle, launches"] = row["wall_graphs"] - busy
    return {name: seconds for name, seconds in sorted(found.items(), key=lambda item: -item[1]) if seconds > 0}


def show_profile(found: Values) -> Iterator[str]:
    """A row per pass with its three largest losses."""
    yield "| network | pass | with graphs, µs a sample | without | convolutions at the peak | three largest losses |"
    yield "|---" * 6 + "|"
    for what, row in found["passes"].items():
        per_sample = 1e6 / row["samples"]
        three = ", ".join(f"{name} {seconds * per_sample:.2f}" for name, seconds in list(losses(row).items())[:3])
        times = (row["wall_graphs"], row["wall_calls"], row["ideal"])
        cells = [f"{seconds * per_sample:.2f}" for seconds in times]
        yield f"| #{found['network']} ({found['class']}) | {what} | {' | '.join(cells)} | {three} |"


# --- whole processes -------------------------------------------------------------------------------------------------


def _read_libraries(plan: Plan) -> None:
    """Start a process that loads PyTorch and its CUDA libraries: the first one timed is not to pay for the disk."""
    work = f"import torch; torch.conv2d(*(torch.ones(1, 1, 3, 3, device='{plan.device}') for _ in range(2)))"
    subprocess.run([sys.executable, "-c", work], check=True)


def measure_whole(name: str, plan: Plan) -> Values:
    """A user's loop and `robust201 run` as processes."""
    _read_libraries(plan)
    ways: list[Way] = [
        *loops(plan.whole_images, plan.whole_batches),
        Sweep(),
        *([Sweep(cuda_graphs=False)] if plan.device == "cuda" else []),
    ]
    with tempfile.TemporaryDirectory() as folder:
        (subject,) = random_subjects(
            [name], plan.whole_images, Path(folder), channels=plan.sizes.channels, cells=plan.sizes.cells
        )
        compared = compare(subject, ways, plan.lengths, Machine(1, plan.device), Path(folder) / "runs")
    return compared.to_payload()


def show_whole(found: Values) -> Iterator[str]:
    """A row per way."""
    yield f"#{found['network']}, {found['images']:,} images, whole processes, start-up apart"
    yield ""
    yield "| way | seconds | with start-up |"
    yield "|---" * 3 + "|"
    for label, row in found["seconds"].items():
        yield f"| {label} | {row['whole']['wall'] - row['start']['wall']:.1f} | {row['whole']['wall']:.1f} |"
    ratio, with_start = found["ratio"]["wall"], found["ratio_with_start"]["wall"]
    yield ""
    yield f"{ratio:.2f} times as fast as the best loop, {with_start:.2f} with start-up"


# --- two workers, and a kill -----------------------------------------------------------------------------------------


def _write_sweep(plan: Plan, folder: Path, *, share: float) -> Path:
    folder.mkdir(parents=True)
    sweep = {
        "name": folder.name,
        "results": str(folder / "results"),
        "network": {"channels": plan.sizes.channels, "cells": plan.sizes.cells},
        "architectures": list(plan.sweep_networks),
        "weights": {"random": {"seeds": [0]}},
        "datasets": {"digits": {"corruptions": None}},
        "images": {"count": plan.sweep_images},
        "keys": dict(plan.sweep_keys),
        "execution": {
            "executor": "inline",
            "device": plan.device,
            "gpus_per_worker": share,
            "gmacs_per_second": 1000,
        },
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep))
    return path


def _start(plan: Plan, *words: str) -> subprocess.Popen[bytes]:
    environment = Machine(1, plan.device).environment()
    command = [sys.executable, "-m", "robust201", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _finish(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    with ThreadPoolExecutor(len(processes)) as readers:  # one that nobody reads would wait
        said = list(readers.map(lambda process: process.communicate()[1], processes))
    for process, lines in zip(processes, said, strict=True):
        if process.returncode:
            raise RuntimeError(f"robust201 ended with {process.returncode}: {lines.decode()[-1000:]}")


def measure_two_workers(plan: Plan) -> Values:
    """A sweep in one process with the whole device, and in two with half of it each."""
    found = {}
    _read_libraries(plan)
    with tempfile.TemporaryDirectory() as folder:
        for n_workers in (1, 2):
            sweep = str(_write_sweep(plan, Path(folder) / f"{n_workers}-workers", share=1 / n_workers))
            _finish([_start(plan, "plan", sweep, "--save")])
            start = time.perf_counter()
            shares = [f"{number + 1}/{n_workers}" for number in range(n_workers)]
            _finish([_start(plan, "run", sweep, "--share", share) for share in shares])
            found[str(n_workers)] = time.perf_counter() - start
    return {"seconds": found, "networks": len(plan.sweep_networks), "images": plan.sweep_images}


def show_two_workers(found: Values) -> Iterator[str]:
    """One line."""
    one, two = found["seconds"]["1"], found["seconds"]["2"]
    yield (
        f"{found['networks']} networks, {found['images']} images: one worker {one:.1f} s, two on half of the device "
        f"each {two:.1f} s, start-up included: {one / two:.2f} times as fast"
    )


def _used_bytes(plan: Plan, process: subprocess.Popen[bytes]) -> int:
    """Memory in use on the device, whoever uses it; on a CPU that of a process."""
    if plan.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    if process.poll() is not None or not psutil.pid_exists(process.pid):
        return 0
    return int(psutil.Process(process.pid).memory_info().rss)


def measure_kill(plan: Plan, *, patience: float = 240.0) -> Values:
    """Kill a worker in the middle of its work, wait for its memory, and resume."""
    if plan.device == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        sweep = _write_sweep(plan, Path(folder) / "kill", share=1.0)
        before = _used_bytes(plan, _ended())
        process = _start(plan, "run", str(sweep))
        start = time.monotonic()
        shards = sweep.parent / "results" / "shards"
        while not (shards.exists() and any(shards.rglob("*.parquet"))):
            if process.poll() is not None:
                _finish([process])
            if process.poll() is not None or time.monotonic() - start > patience:
                process.kill()
                raise RuntimeError("expected a first result file of a running worker, got none")
            time.sleep(0.02)
        held = _used_bytes(plan, process) - before
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed = time.monotonic()
        while _used_bytes(plan, process) - before > MARGIN_BYTES and time.monotonic() - killed < patience:
            time.sleep(0.02)
        freed_after = time.monotonic() - killed
        left = _used_bytes(plan, process) - before
        n_before = len(list(shards.rglob("*.parquet")))
        _finish([_start(plan, "run", str(sweep))])
        n_after = len(list(shards.rglob("*.parquet")))
    return {"held": held, "left": left, "seconds": freed_after, "shards": [n_before, n_after]}


def _ended() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process


def show_kill(found: Values) -> Iterator[str]:
    """One line."""
    yield (
        f"A killed worker held {found['held'] / 2**20:,.0f} MiB; {found['left'] / 2**20:,.0f} MiB were left after "
        f"{found['seconds']:.2f} s. Resuming went from {found['shards'][0]} to {found['shards'][1]} result files."
    )
