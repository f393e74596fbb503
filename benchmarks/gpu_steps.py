"""Steps of `benchmarks.gpu`: each measures values for a file, and makes a table from them.

No step needs Ray, data or a network connection.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.engine_case import (
    CLASSES,
    HARMLESS_EPSILON_255,
    IMAGE_SIZE,
    N_PAPER_EPSILONS,
    Case,
    Clock,
    Measurement,
    exhaust,
    make_clock,
    measurements_of,
    suite_seconds,
)
from benchmarks.parity import compare_random
from robust201.core.precision import Precision
from robust201.models.arithmetic import configure_torch
from robust201.models.buckets import Bucketed
from robust201.models.capacity import USED_FRACTION, Capacity, choose_capacity
from robust201.models.graphs import GraphCapture
from robust201.spaces.nasbench201.compiled.network import network_bytes
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.attack_job import MAX_IMAGES_PER_SAMPLE
from robust201.tasks.attack_kit.context import to_float
from robust201.tasks.parameters import Parameters

USUAL_BATCH = 250
EPSILONS_255 = tuple(HARMLESS_EPSILON_255 * number for number in range(1, N_PAPER_EPSILONS + 1))
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32")

Values = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Settings that all steps share.

    Attributes:
        device: ``cuda``, or ``cpu`` for a trial run.
        folder: folder of one JSON file per step.
        networks: networks to measure.
        images: number of images per network.
        batches: the libraries' usual and largest batch sizes.
        rounds: repetitions of speed measurements.
        size: channels and cells of the networks.
        capacity: samples per batch of the fused engine; None chooses it by the device's memory.
        parity_images: number of images of the parity step.
        lengths: attack parameters of the parity step.
    """

    device: str
    folder: Path
    networks: tuple[int, ...] = tuple(CLASSES)
    images: int = 4000
    batches: tuple[int, int] = (USUAL_BATCH, 4000)
    rounds: int = 2
    size: tuple[int, int] = (16, 5)
    capacity: Capacity | None = None
    parity_images: int = 16
    lengths: dict[str, int] = field(default_factory=lambda: {"queries": 200})

    @property
    def torch_device(self) -> torch.device:
        """Device to compute on."""
        return torch.device(self.device)

    def arithmetic(self, precision: Precision) -> Precision:
        """Return the precision to use: fp32 instead of tf32 on a CPU."""
        return "fp32" if self.device == "cpu" and precision == "tf32" else precision


def rehearsal(folder: Path) -> Plan:
    """Return a plan for the CPU whose networks and attacks are so small that it only reveals mistakes."""
    return Plan(
        "cpu",
        folder,
        networks=(309,),
        images=8,
        batches=(4, 8),
        rounds=1,
        size=(2, 1),
        capacity=Capacity(8, 8),
        parity_images=4,
        lengths={"steps": 2, "queries": 2},
    )


def read_values(folder: Path, name: str) -> Values | None:
    """Read a step's values; None if it has not run."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write_values(folder: Path, name: str, values: Values) -> None:
    """Write a step's values atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.part"
    part.write_text(json.dumps(values, indent=1) + "\n")
    part.rename(folder / f"{name}.json")


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        name: name of its file.
        measure: function that measures its values.
        show: function that yields the lines of its table.
    """

    name: str
    measure: Callable[[Plan], Values]
    show: Callable[[Values], Iterator[str]]


def steps_of(plan: Plan) -> list[Step]:
    """Return all steps; those whose failure invalidates the others come first."""
    speed = [
        Step(f"speed-{index}-{precision}", partial(measure_speed, index, precision), show_speed)
        for precision in PRECISIONS
        for index in plan.networks
    ]
    return [
        Step("parity", measure_parity, show_parity),
        Step("memory", measure_memory, show_memory),
        *speed,
    ]


def describe_machine(device: str) -> str:
    """Describe the device and versions."""
    if device != "cuda":
        return f"CPU, PyTorch {torch.__version__}"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"{torch.cuda.get_device_name()}, {memory:.0f} GiB, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"


def measure_parity(plan: Plan) -> Values:
    """Count differing bits of images and logits between the fused attacks and the libraries."""
    configure_torch(1, "fp32")
    rows = []
    for index in plan.networks:
        comparisons = compare_random(
            index, plan.torch_device, n_images=plan.parity_images, lengths=plan.lengths, size=plan.size
        )
        rows += [
            {"network": index, "attack": key, "correct": correct, "bits": bits} for key, correct, bits in comparisons
        ]
    return {"rows": rows}


def show_parity(values: Values) -> Iterator[str]:
    """Yield a table with one row per network and attack."""
    yield "| network | attack | images correct at each epsilon | differing bits at each epsilon |"
    yield "|---" * 4 + "|"
    for row in values["rows"]:
        correct, bits = (" ".join(map(str, row[name])) for name in ("correct", "bits"))
        yield f"| #{row['network']} | `{row['attack']}` | {correct} | {bits} |"
    yield ""
    yield f"{sum(sum(row['bits']) for row in values['rows'])} differing bits"


class Setup(NamedTuple):
    """An engine's set-up.

    Attributes:
        form: for the libraries ``usual`` (default layout), ``reference`` (the same with cuDNN's fastest algorithms) or
            ``channels_last``; for the fused engine ``graphs`` or ``calls``.
        batch: images per batch; None with the fused engine, which chooses it.
    """

    form: str
    batch: int | None = None

    @property
    def is_fused(self) -> bool:
        """Whether this is the fused engine."""
        return self.form in ("graphs", "calls")

    @property
    def label(self) -> str:
        """Name in files and tables."""
        return f"fused, {self.form}" if self.is_fused else f"{self.form} {self.batch}"


GRAPHS = Setup("graphs")


def setups_of(plan: Plan) -> list[Setup]:
    """Return all set-ups. cuDNN caches its choice by shape, so only one set-up has the usual batch size."""
    usual, largest = plan.batches
    return [
        Setup("usual", usual),
        Setup("reference", largest),
        Setup("channels_last", largest),
        *(GRAPHS, Setup("calls")),
    ]


def configure(setup: Setup, precision: Precision) -> None:
    """Configure torch like a worker, or like users of the libraries."""
    configure_torch(1, precision)
    if not setup.is_fused:
        torch.use_deterministic_algorithms(mode=False)
        torch.backends.cudnn.deterministic = False
        torch.backends.cudnn.benchmark = setup.form != "usual"


def make_images(count: int, device: torch.device) -> torch.Tensor:
    """Return random pixels, on which times do not depend."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=generator).to(device)


def memory_of(device: torch.device) -> tuple[int, int]:
    """Return free and total bytes for this process; for a CPU, those of a small GPU."""
    if device.type != "cuda":
        return 2**33, 2**33
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device), total


def capacity_of(plan: Plan) -> Capacity:
    """Return the number of samples per batch of the fused engine."""
    if plan.capacity is not None:
        return plan.capacity
    free, total = memory_of(plan.torch_device)
    needs = (network_bytes(*plan.size, IMAGE_SIZE, gradient=gradient) for gradient in (False, True))
    return choose_capacity(
        free_bytes=free,
        total_bytes=total,
        share=1.0,
        sample_bytes=Capacity(*needs),
        image_size=IMAGE_SIZE,
        images_held=MAX_IMAGES_PER_SAMPLE,
    )


def make_case(index: int, precision: Precision, plan: Plan) -> Case:
    """Return a case with random weights and all classifiers."""
    case = Case(index, plan.torch_device, make_images(plan.images, plan.torch_device), *plan.size, precision)
    case.classifiers["usual"] = case.classifiers["reference"]
    return case


def bucket_model(case: Case, capacity: Capacity, form: str) -> Bucketed:
    """Return the case's compiled network with bucketed batches, as a worker uses it."""
    graphs = form == "graphs" and case.device.type == "cuda" and not case.compiled.is_constant
    return Bucketed(case.compiled, capacity, device=case.device, prepare=GraphCapture(case.device) if graphs else None)


def passes_of(case: Case, model: Any, capacity: Capacity) -> dict[str, tuple[Callable[[], object], int]]:
    """Return a forward pass and a gradient pass with full batches: task and number of samples."""

    def tiled(n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(n_samples, device=case.device) % len(case.images)
        return to_float(case.images[rows]), case.labels[rows]

    pixels, _ = tiled(capacity.logits)
    onto = tiled(capacity.gradients)
    return {
        "forward": (partial(model.logits, pixels), len(pixels)),
        "gradient": (partial(model.loss_and_gradient, *onto), len(onto[0])),
    }


def peak_bytes(device: torch.device, task: Callable[[], object]) -> int | None:
    """Return the memory that a task reserves additionally; None on a CPU, where it cannot be measured.

    Reserved rather than allocated memory is measured, because only its graph can use a captured graph's memory.
    """
    if device.type != "cuda":
        task()
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    task()
    return torch.cuda.max_memory_reserved(device) - before


def _run_attack(case: Case, key: str, parameters: Parameters) -> None:
    exhaust(case.attack("fused", key, EPSILONS_255, parameters))


def measure_memory(plan: Plan) -> Values:
    """Compare the memory of passes with its estimate, and the memory of whole attacks with the device's memory."""
    configure_torch(1, "fp32")
    device, capacity = plan.torch_device, capacity_of(plan)
    passes, attacks = [], []
    for index in plan.networks:
        case = make_case(index, "fp32", plan)
        for what, (task, n_samples) in passes_of(case, case.compiled, capacity).items():
            task()
            estimate = n_samples * network_bytes(*plan.size, IMAGE_SIZE, gradient=what == "gradient")
            row = {"network": index, "pass": what, "samples": n_samples, "estimate": estimate}
            passes.append(row | {"bytes": peak_bytes(device, task)})
        for key, changes in (("aa_square", {"queries": 200}), ("aa_apgd-ce", {"steps": 2})):
            model = bucket_model(case, capacity, "graphs")
            case.model, case.model_batch = model, capacity.logits
            attack = partial(_run_attack, case, key, TASKS[key].parameters(**changes))
            attacks.append({"network": index, "key": key, "bytes": peak_bytes(device, attack)})
            model.release()
    return {"passes": passes, "attacks": attacks, "total": memory_of(device)[1]}


def _gib(n_bytes: int | None) -> str:
    return "unmeasured" if n_bytes is None else f"{n_bytes / 2**30:.2f}"


def show_memory(values: Values) -> Iterator[str]:
    """Yield a table of passes and a table of attacks."""
    yield "| network | pass | samples | peak, GiB | estimate, GiB |"
    yield "|---" * 5 + "|"
    for row in values["passes"]:
        cells = (row["pass"], f"{row['samples']:,}", _gib(row["bytes"]), _gib(row["estimate"]))
        yield f"| #{row['network']} | {' | '.join(cells)} |"
    yield ""
    yield f"Whole attacks; {_gib(values['total'])} GiB in total, of which plans use {USED_FRACTION:.0%}"
    yield ""
    yield "| network | attack | peak reserved, GiB |"
    yield "|---" * 3 + "|"
    for row in values["attacks"]:
        yield f"| #{row['network']} | `{row['key']}` | {_gib(row['bytes'])} |"


def tasks_of(case: Case, setup: Setup, capacity: Capacity) -> tuple[dict[str, Measurement], Callable[[], None]]:
    """Set the case's model up, and return its measurements and a function that frees its memory."""
    if not setup.is_fused:
        return dict(measurements_of(case, setup.form, EPSILONS_255[:1], setup.batch)), torch.cuda.empty_cache
    model = bucket_model(case, capacity, setup.form)
    case.model, case.model_batch = model, capacity.logits
    n_epsilons = min(N_PAPER_EPSILONS, -(-2 * capacity.logits // len(case.images)))  # fills two batches
    tasks = dict(measurements_of(case, "fused", EPSILONS_255[:n_epsilons]))
    for what, (task, n_samples) in passes_of(case, model, capacity).items():
        tasks[what] = partial(_full_pass, task, n_samples)
    return tasks, model.release


def _full_pass(task: Callable[[], object], n_samples: int, clock: Clock) -> float:
    return clock(task) / n_samples


def measure_speed(index: int, precision: Precision, plan: Plan) -> Values:
    """Measure seconds per image of passes and attack steps of one network, by set-up."""
    arithmetic, clock, capacity = plan.arithmetic(precision), make_clock(plan.torch_device), capacity_of(plan)
    configure(GRAPHS, arithmetic)
    case = make_case(index, arithmetic, plan)
    seconds: dict[str, dict[str, float]] = {}
    failed = {}
    for setup in setups_of(plan):
        configure(setup, arithmetic)
        tasks, release = tasks_of(case, setup, capacity)
        try:
            for task in tasks.values():
                task(clock)  # warm-up: libraries choose kernels, graphs are captured
            rounds = [{what: task(clock) for what, task in tasks.items()} for _ in range(plan.rounds)]
            seconds[setup.label] = {what: median(times[what] for times in rounds) for what in tasks}
        except torch.OutOfMemoryError:
            if setup.is_fused:
                raise
            failed[setup.label] = "out of memory"
        release()
    return {
        "index": index,
        "precision": precision,
        "images": plan.images,
        "seconds": seconds,
        "suite": {label: suite_seconds(costs) for label, costs in seconds.items()},
        "failed": failed,
    }


def show_speed(values: Values) -> Iterator[str]:
    """Yield a table with one row per set-up, fastest last."""
    seconds, suite = values["seconds"], values["suite"]
    fused_suite = suite[GRAPHS.label]
    libraries = [label for label in suite if not label.startswith("fused")]
    usual, best = libraries[0], min(libraries, key=suite.__getitem__)
    yield (
        f"#{values['index']}, {values['precision']}, {values['images']:,} images; **"
        f"{suite[usual] / fused_suite:.2f} times as fast as the usual loop, {suite[best] / fused_suite:.2f} times as "
        "the best**"
    )
    columns = list(seconds[usual])
    yield ""
    yield f"| setup | {' | '.join(f'{what}, µs' for what in columns)} | suite, ms per image | suite / fused |"
    yield "|---" * (len(columns) + 3) + "|"
    for label in sorted(suite, key=suite.__getitem__, reverse=True):
        cells = [f"{seconds[label][what] * 1e6:.2f}" for what in columns]
        yield f"| {label} | {' | '.join(cells)} | {suite[label] * 1e3:.3f} | {suite[label] / fused_suite:.2f} |"
    for label, why in values["failed"].items():
        yield f"- {label}: {why}"
