"""Steps of `benchmarks.gpu`: each step measures values, which are saved in a file, and prints a table of them.

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
    COST_LEVELS,
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
from benchmarks.generated import random_network
from robust201.core.precision import Precision
from robust201.images import load_images, select
from robust201.models.batch_sizes import BatchSizes, Maxima
from robust201.models.classifier import Classifier
from robust201.models.device import GraphCapture, configure_torch, device_memory
from robust201.models.gpu_memory import USED_FRACTION, fit_memory
from robust201.models.graphed_model import GraphedModel
from robust201.spaces.nasbench201.compiled import InferenceNetwork
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.batching import MAX_IMAGES_PER_SAMPLE
from robust201.tasks.attack_kit.context import to_float
from robust201.tasks.parameters import Parameters
from tests.support.library_parity import compare

USUAL_BATCH = 250
EPSILONS_255 = tuple(HARMLESS_EPSILON_255 * factor for factor in range(1, N_PAPER_EPSILONS + 1))
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32")

Values = dict[str, Any]
"""Measured values of a step, as they are saved in its JSON file."""


@dataclass(frozen=True)
class Plan:
    """Settings that all steps share.

    Attributes:
        device: ``cuda``, or ``cpu`` for a trial run.
        folder: folder with one JSON file per step.
        networks: indices of the architectures to measure.
        images: number of images per network.
        batches: usual and largest batch size for the attack libraries (Foolbox and AutoAttack).
        rounds: repetitions of speed measurements.
        size: the networks' channels in the first stage, and cells per stage.
        parity_images: number of images of the parity step.
        parity_parameters: attack parameters of the parity step.
    """

    device: str
    folder: Path
    networks: tuple[int, ...] = tuple(COST_LEVELS)
    images: int = 4000
    batches: tuple[int, int] = (USUAL_BATCH, 4000)
    rounds: int = 2
    size: tuple[int, int] = (16, 5)
    parity_images: int = 16
    parity_parameters: dict[str, int] = field(default_factory=lambda: {"queries": 200})

    @property
    def torch_device(self) -> torch.device:
        """The device as a `torch.device`."""
        return torch.device(self.device)

    def supported_precision(self, precision: Precision) -> Precision:
        """Return the precision, or fp32 instead of tf32 on a CPU, which does not support tf32."""
        return "fp32" if self.device == "cpu" and precision == "tf32" else precision


def make_rehearsal_plan(folder: Path) -> Plan:
    """Return a plan that runs every step on the CPU with tiny networks and attacks, to find programming errors."""
    return Plan(
        "cpu",
        folder,
        networks=(309,),
        images=8,
        batches=(4, 8),
        rounds=1,
        size=(2, 1),
        parity_images=4,
        parity_parameters={"steps": 2, "queries": 2},
    )


def read_values(folder: Path, name: str) -> Values | None:
    """Read a step's values; return None if the step has not run."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write_values(folder: Path, name: str, values: Values) -> None:
    """Write a step's values atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary_path = folder / f"{name}.part"
    temporary_path.write_text(json.dumps(values, indent=1) + "\n")
    temporary_path.rename(folder / f"{name}.json")


@dataclass(frozen=True)
class Step:
    """A step of the benchmark.

    Attributes:
        name: file name of its values, without the suffix.
        measure: function that measures the values.
        show: function that yields the lines of the table.
    """

    name: str
    measure: Callable[[Plan], Values]
    show: Callable[[Values], Iterator[str]]


def steps_of(plan: Plan) -> list[Step]:
    """Return all steps. Parity and memory come first, because speed is meaningless if one of them fails."""
    speed_steps = [
        Step(f"speed-{index}-{precision}", partial(measure_speed, index, precision), show_speed)
        for precision in PRECISIONS
        for index in plan.networks
    ]
    return [
        Step("parity", measure_parity, show_parity),
        Step("memory", measure_memory, show_memory),
        *speed_steps,
    ]


def describe_machine(device: str) -> str:
    """Return a description of the device and of the software versions."""
    if device != "cuda":
        return f"CPU, PyTorch {torch.__version__}"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"{torch.cuda.get_device_name()}, {memory:.0f} GiB, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"


def compare_on_digits(
    index: int, device: torch.device, *, n_images: int, attack_parameters: dict[str, int], size: tuple[int, int]
) -> Iterator[tuple[str, list[int], list[int]]]:
    """Compare bits on digits with random weights; this needs no data folder.

    Args:
        index: index of the network.
        device: device to compute on.
        n_images: number of images in the batch.
        attack_parameters: values of parameters such as steps and queries, for the attacks that have them.
        size: channels and cells of the network.

    Yields:
        Attack key, and the numbers of correct images and of differing bits at each epsilon.
    """
    digits = select(load_images("digits"), count=n_images, seed=0)
    network, images = random_network(str(index), digits, channels=size[0], cells=size[1])
    classifier = Classifier(network, images.normalisation, images.n_classes, device=device)
    pixels, labels = torch.from_numpy(images.images).to(device), torch.from_numpy(images.labels.copy())
    # Every fourth label is made wrong, because the attacks treat misclassified images differently.
    labels[3::4] = (labels[3::4] + 1) % images.n_classes
    for key in ("fgsm", "pgd", "pgd_l2", "aa_apgd-ce", "aa_square"):
        fields = TASKS[key].field_names
        supported_parameters: dict[str, Any] = {
            name: value for name, value in attack_parameters.items() if name in fields
        }
        parameters = TASKS[key].parameters(**supported_parameters)
        comparisons = compare(key, classifier, pixels, labels.to(device), parameters, seed=1).values()
        yield (
            key,
            [comparison.n_correct for comparison in comparisons],
            [comparison.image_bits + comparison.logit_bits for comparison in comparisons],
        )


def measure_parity(plan: Plan) -> Values:
    """Count the bits of images and logits that differ between the fused attacks and the libraries."""
    configure_torch(1, "fp32")
    rows = []
    for index in plan.networks:
        comparisons = compare_on_digits(
            index,
            plan.torch_device,
            n_images=plan.parity_images,
            attack_parameters=plan.parity_parameters,
            size=plan.size,
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
        variant: ``usual`` (libraries, default layout), ``reference`` (the same with cuDNN's fastest algorithms) or
            ``channels_last`` for the libraries; for the fused engine, ``graphs`` (captured CUDA graphs) or ``calls``
            (ordinary calls of the kernels).
        batch: images per batch; None for the fused engine, which chooses the batch size itself.
    """

    variant: str
    batch: int | None = None

    @property
    def is_fused(self) -> bool:
        """Whether this is the fused engine."""
        return self.variant in ("graphs", "calls")

    @property
    def label(self) -> str:
        """Label in files and tables."""
        return f"fused, {self.variant}" if self.is_fused else f"{self.variant} {self.batch}"


GRAPHS = Setup("graphs")


def setups_of(plan: Plan) -> list[Setup]:
    """Return all set-ups.

    cuDNN's choices of algorithms are cached by shape. Therefore no other set-up has the batch size of ``usual``, the
    only one without a search for the fastest algorithms.
    """
    usual, largest = plan.batches
    return [
        Setup("usual", usual),
        Setup("reference", largest),
        Setup("channels_last", largest),
        GRAPHS,
        Setup("calls"),
    ]


def configure(setup: Setup, precision: Precision) -> None:
    """Configure PyTorch as a worker does for the fused engine, or as users of the libraries do."""
    configure_torch(1, precision)
    if not setup.is_fused:
        torch.use_deterministic_algorithms(mode=False)
        torch.backends.cudnn.deterministic = False
        torch.backends.cudnn.benchmark = setup.variant != "usual"


def make_images(count: int, device: torch.device) -> torch.Tensor:
    """Return `count` random images; times do not depend on their pixels."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=torch.uint8, generator=generator).to(device)


def make_case(index: int, precision: Precision, plan: Plan) -> Case:
    """Return a case with random weights and a classifier for each variant of the libraries."""
    case = Case(index, plan.torch_device, make_images(plan.images, plan.torch_device), *plan.size, precision)
    case.classifiers["usual"] = case.classifiers["reference"]
    return case


def make_model(case: Case, plan: Plan, variant: str) -> InferenceNetwork | GraphedModel:
    """Return the case's compiled network with the batch sizes of a worker."""
    device, memory = case.device, device_memory(case.device)
    if memory is None:
        case.compiled.batch_sizes = BatchSizes(Maxima(8, 8), is_padded=True)
    else:
        attack_bytes = MAX_IMAGES_PER_SAMPLE * 3 * IMAGE_SIZE**2 * 4
        shape = (3, IMAGE_SIZE, IMAGE_SIZE)
        fit_memory(case.compiled, shape, device, memory, share=1.0, attack_bytes=attack_bytes)
    if variant != "graphs" or memory is None or case.compiled.is_constant:
        return case.compiled
    return GraphedModel(case.compiled, GraphCapture(device))


def release(model: InferenceNetwork | GraphedModel) -> None:
    """Free the memory of recorded passes."""
    if isinstance(model, GraphedModel):
        model.release()


def passes_of(case: Case, model: InferenceNetwork | GraphedModel) -> dict[str, tuple[Callable[[], object], int]]:
    """Return, for a forward and a gradient pass, a function that computes a full batch, and the size of this batch."""

    def repeat_images(n_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(n_samples, device=case.device) % len(case.images)
        return to_float(case.images[positions]), case.labels[positions]

    pixels, _ = repeat_images(model.batch_sizes.maximum() or 0)
    gradient_inputs = repeat_images(model.batch_sizes.maximum(gradient=True) or 0)
    return {
        "forward": (partial(model.logits, pixels), len(pixels)),
        "gradient": (partial(model.loss_and_gradient, *gradient_inputs), len(gradient_inputs[0])),
    }


def peak_bytes(device: torch.device, task: Callable[[], object]) -> int | None:
    """Return the additional bytes of memory that a task reserves; None on a CPU, where they cannot be measured.

    Reserved rather than allocated memory is measured, because no other code can use the memory of a captured graph.
    """
    if device.type != "cuda":
        task()
        return None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    initial_bytes = torch.cuda.memory_reserved(device)
    task()
    return torch.cuda.max_memory_reserved(device) - initial_bytes


def _run_attack(case: Case, key: str, parameters: Parameters) -> None:
    exhaust(case.attack("fused", key, EPSILONS_255, parameters))


def measure_memory(plan: Plan) -> Values:
    """Measure the memory of passes and of whole attacks, to check that they fit the device."""
    configure_torch(1, "fp32")
    device = plan.torch_device
    passes, attacks = [], []
    for index in plan.networks:
        case = make_case(index, "fp32", plan)
        for name, (task, n_samples) in passes_of(case, make_model(case, plan, "plain")).items():
            task()
            row = {"network": index, "pass": name, "samples": n_samples}
            passes.append(row | {"bytes": peak_bytes(device, task)})
        for key, parameters in (("aa_square", {"queries": 200}), ("aa_apgd-ce", {"steps": 2})):
            case.model = model = make_model(case, plan, "graphs")
            attack = partial(_run_attack, case, key, TASKS[key].parameters(**parameters))
            attacks.append({"network": index, "key": key, "bytes": peak_bytes(device, attack)})
            release(model)
    return {"passes": passes, "attacks": attacks, "total": (device_memory(device) or (0, 0))[1]}


def _gib(n_bytes: int | None) -> str:
    return "unmeasured" if n_bytes is None else f"{n_bytes / 2**30:.2f}"


def show_memory(values: Values) -> Iterator[str]:
    """Yield the lines of a table of passes and of a table of attacks."""
    yield "| network | pass | samples | peak, GiB |"
    yield "|---" * 4 + "|"
    for row in values["passes"]:
        cells = (row["pass"], f"{row['samples']:,}", _gib(row["bytes"]))
        yield f"| #{row['network']} | {' | '.join(cells)} |"
    yield ""
    yield (
        f"Whole attacks. The device has {_gib(values['total'])} GiB; batch sizes are planned for "
        f"{USED_FRACTION:.0%} of it."
    )
    yield ""
    yield "| network | attack | peak reserved, GiB |"
    yield "|---" * 3 + "|"
    for row in values["attacks"]:
        yield f"| #{row['network']} | `{row['key']}` | {_gib(row['bytes'])} |"


def prepare_measurements(case: Case, setup: Setup, plan: Plan) -> tuple[dict[str, Measurement], Callable[[], None]]:
    """Set up the case's model, and return its measurements and a function that frees its memory."""
    if not setup.is_fused:
        return dict(measurements_of(case, setup.variant, EPSILONS_255[:1], setup.batch)), torch.cuda.empty_cache
    case.model = model = make_model(case, plan, setup.variant)
    n_samples = 2 * model.batch_sizes.attack_samples
    n_epsilons = min(N_PAPER_EPSILONS, -(-n_samples // len(case.images)))
    measurements = dict(measurements_of(case, "fused", EPSILONS_255[:n_epsilons]))
    for pass_name, (task, n_samples) in passes_of(case, model).items():
        measurements[pass_name] = partial(_seconds_per_sample, task, n_samples)
    return measurements, partial(release, model)


def _seconds_per_sample(task: Callable[[], object], n_samples: int, clock: Clock) -> float:
    return clock(task) / n_samples


def measure_speed(index: int, precision: Precision, plan: Plan) -> Values:
    """Measure seconds per image for the passes and attack steps of one network, with each set-up."""
    used_precision, clock = plan.supported_precision(precision), make_clock(plan.torch_device)
    configure(GRAPHS, used_precision)
    case = make_case(index, used_precision, plan)
    seconds: dict[str, dict[str, float]] = {}
    errors = {}
    for setup in setups_of(plan):
        configure(setup, used_precision)
        measurements, release = prepare_measurements(case, setup, plan)
        try:
            for measure in measurements.values():
                measure(clock)  # warm-up, in which libraries choose kernels and graphs are captured
            rounds = [{name: measure(clock) for name, measure in measurements.items()} for _ in range(plan.rounds)]
            seconds[setup.label] = {name: median(times[name] for times in rounds) for name in measurements}
        except torch.OutOfMemoryError:
            if setup.is_fused:
                raise
            errors[setup.label] = "out of memory"
        release()
    return {
        "index": index,
        "precision": precision,
        "images": plan.images,
        "seconds": seconds,
        "suite": {label: suite_seconds(costs) for label, costs in seconds.items()},
        "failed": errors,
    }


def show_speed(values: Values) -> Iterator[str]:
    """Yield the lines of a table with one row per set-up; the fastest is last."""
    seconds, suite = values["seconds"], values["suite"]
    fused_suite = suite[GRAPHS.label]
    library_labels = [label for label in suite if not label.startswith("fused")]
    usual, best = library_labels[0], min(library_labels, key=suite.__getitem__)
    yield (
        f"#{values['index']}, {values['precision']}, {values['images']:,} images; **the fused engine is "
        f"{suite[usual] / fused_suite:.2f} times as fast as the usual loop and {suite[best] / fused_suite:.2f} times "
        "as fast as the fastest loop over the libraries**"
    )
    columns = list(seconds[usual])
    yield ""
    yield f"| setup | {' | '.join(f'{column}, µs' for column in columns)} | suite, ms per image | suite / fused |"
    yield "|---" * (len(columns) + 3) + "|"
    for label in sorted(suite, key=suite.__getitem__, reverse=True):
        cells = [f"{seconds[label][column] * 1e6:.2f}" for column in columns]
        yield f"| {label} | {' | '.join(cells)} | {suite[label] * 1e3:.3f} | {suite[label] / fused_suite:.2f} |"
    for label, error in values["failed"].items():
        yield f"- {label}: {error}"
