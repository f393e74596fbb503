"""Check and measure the engine on a GPU, in one run of less than eight minutes.

    python -m benchmarks.gpu --out gpu.json
    python -m benchmarks.gpu --device cpu            # tries out every step with tiny networks

Each step runs in its own process with a time limit, so a step that fails or hangs does not stop the others. The rows of
each step are printed, and written to --out, when it ends. The steps need no data and no network connection; the last
one starts Ray, if it is installed. Weights are random, because times do not depend on them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import yaml
from torch.nn import functional

from benchmarks.engine_case import HARMLESS_EPSILON_255, NORMALISATION, Case, exhaust, make_clock
from robust201.attacks.batching import MAX_IMAGES_PER_SAMPLE
from robust201.attacks.context import to_float
from robust201.core.precision import Precision
from robust201.networks.batch_sizes import BatchSizes, Maxima
from robust201.networks.classifier import Classifier
from robust201.networks.device import (
    GraphCapture,
    configure_torch,
    copy_to_device,
    describe_device,
    device_memory,
    is_gpu,
    peak_bytes,
)
from robust201.networks.gpu_memory import fit_memory
from robust201.networks.graphed_model import GraphedModel
from robust201.networks.model import Model
from robust201.networks.zoo.zoo_space import NETWORKS
from robust201.tasks import TASKS

GPU_TESTS = ("tests/run/test_gpu.py", "tests/api/test_api.py")
"""Files with tests that need a GPU."""

Rows = Iterator[dict[str, Any]]


class Size(NamedTuple):
    """Sizes of a run.

    Attributes:
        device: the device.
        networks: indices of the measured cells.
        cell: channels in the first stage, and cells per stage.
        images: number of images.
        steps: steps of gradient attacks.
        queries: queries of Square.
        zoo: names and widths of measured zoo networks.
    """

    device: torch.device
    networks: tuple[int, ...] = (309, 13714)
    cell: tuple[int, int] = (16, 5)
    images: int = 4096
    steps: int = 20
    queries: int = 2000
    zoo: tuple[tuple[str, int], ...] = (("resnet18", 64), ("vgg16", 64))

    @property
    def is_rehearsal(self) -> bool:
        return not is_gpu(self.device)


def size_for(device: torch.device) -> Size:
    """Return the sizes for a GPU, or tiny sizes for a CPU."""
    if is_gpu(device):
        return Size(device)
    return Size(device, (309,), (2, 1), images=8, steps=2, queries=20, zoo=(("resnet18", 8),))


def make_case(index: int, size: Size) -> Case:
    """Return a cell with random weights, whose batch sizes fit the memory as in a worker of a sweep."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (size.images, 3, 32, 32), dtype=torch.uint8, generator=generator)
    case = Case(index, size.device, images.to(size.device), *size.cell)
    memory = device_memory(size.device)
    if memory is None:
        case.compiled.batch_sizes = BatchSizes(Maxima(8, 8), is_padded=True)
    else:
        fit_memory(
            case.compiled,
            (3, 32, 32),
            size.device,
            memory,
            share=1.0,
            attack_bytes=MAX_IMAGES_PER_SAMPLE * 4 * 3 * 32**2,
        )
    return case


def measure_cost(size: Size, task: Callable[[], object]) -> dict[str, float | None]:
    """Return a task's seconds, and its peak memory on a GPU in GiB."""
    clock = make_clock(size.device)
    if size.is_rehearsal:
        return {"seconds": clock(task), "peak_gib": None}
    seconds: list[float] = []
    n_bytes = peak_bytes(size.device, lambda: seconds.append(clock(task)))
    return {"seconds": seconds[0], "peak_gib": n_bytes / 2**30}


def measure_attacks(size: Size) -> Rows:
    """Run strong attacks, some of which use cumulative sums, with deterministic algorithms only."""
    keys = ("aa_fab-t", "aa_apgd-ce_l1", "aa_apgd-t", "fmn_l2", "pgd_l2")
    for index in size.networks:
        case = make_case(index, size._replace(images=min(size.images, 512)))
        for key in keys:
            options = TASKS[key].parameters(steps=size.steps)
            attack = partial(case.attack, key, options.strengths[:2], options)
            yield {"network": index, "attack": key, **measure_cost(size, lambda: exhaust(attack()))}  # noqa: B023


def measure_precision(size: Size) -> Rows:
    """Measure relative errors of a convolution and a matrix product in a process that first enables TF32 globally."""
    generator = torch.Generator().manual_seed(0)
    images, weight, left, right = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((16, 64, 16, 16), (64, 64, 3, 3), (256, 256), (256, 256))
    )
    operations: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor, torch.Tensor]] = {
        "convolution": (functional.conv2d, images, weight),
        "product": (torch.matmul, left, right),
    }
    precisions: tuple[Precision, ...] = ("fp32",) if size.is_rehearsal else ("fp32", "tf32")
    for precision in precisions:
        for name, (compute, *arguments) in operations.items():
            setattr(torch.backends, "fp32_precision", "tf32")  # noqa: B010  # PyTorch's stubs lack the attribute
            configure_torch(1, precision)
            exact = compute(*(argument.float().double() for argument in arguments))
            result = compute(*(argument.float().to(size.device) for argument in arguments)).cpu()
            error = float((result - exact).abs().max() / exact.abs().max())
            yield {"precision": precision, "operation": name, "relative_error": error}


def run_tests(size: Size) -> Rows:
    """Run the tests that need a GPU."""
    argv = [sys.executable, *("-m", "pytest", "-q", "-n", "0", "-m", "gpu"), *GPU_TESTS]
    argv += ["--collect-only"] * size.is_rehearsal
    start = time.monotonic()
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = process.stdout.strip().splitlines() or ["no output"]
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    seconds = time.monotonic() - start
    yield {"exit_code": process.returncode, "result": lines[-1], "failures": failures, "seconds": seconds}


def make_passes(model: Model, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Return functions that compute logits and gradients of all images."""
    return {
        "forward": lambda: model.logits(to_float(images)),
        "gradient": lambda: model.loss_and_gradient(to_float(images), labels)[2],
    }


def images_per_second(size: Size, compute: Callable[[], object]) -> float:
    """Return the median speed of five calls, after two warm-up calls that choose kernels and record graphs."""
    clock = make_clock(size.device)
    for _ in range(2):
        compute()
    return size.images / sorted(clock(compute) for _ in range(5))[2]


def measure_passes(size: Size) -> Rows:
    """Measure passes with autograd and the compiled network, whose outputs must have equal bits with CUDA graphs."""
    for index in size.networks:
        case = make_case(index, size)
        models: dict[str, Model] = {"compiled": case.compiled, "autograd": case.published}
        if not size.is_rehearsal:
            models["graphs"] = GraphedModel(case.compiled, GraphCapture(size.device))
        compiled = {name: compute() for name, compute in make_passes(case.compiled, case.images, case.labels).items()}
        for variant, model in models.items():
            for name, compute in make_passes(model, case.images, case.labels).items():
                row = {"network": index, "variant": variant, "pass": name}
                has_same_bits = torch.equal(compute(), compiled[name])
                yield row | {"images_per_second": images_per_second(size, compute), "bits_of_compiled": has_same_bits}


def measure_square(size: Size) -> Rows:
    """Measure Square with pinned copies of proposals, and with blocking copies."""
    copies = {"pinned": copy_to_device, "blocking": lambda tensor, device: tensor.to(device)}
    for index in size.networks[:1]:
        case = make_case(index, size)
        options = TASKS["aa_square"].parameters(queries=size.queries)
        for name, copy in copies.items():
            with patch("robust201.attacks.samples.copy_to_device", copy):
                row = measure_cost(
                    size,
                    lambda: exhaust(case.attack("aa_square", (HARMLESS_EPSILON_255,), options)),  # noqa: B023
                )
            microseconds = (row["seconds"] or 0) / size.images / size.queries * 1e6
            yield {"network": index, "copies": name, **row, "microseconds_per_query": microseconds}


def measure_layouts(size: Size) -> Rows:
    """Measure passes of zoo networks in both memory layouts."""
    images = torch.randint(0, 256, (size.images, 3, 32, 32), dtype=torch.uint8).to(size.device)
    labels = torch.zeros(size.images, dtype=torch.int64, device=size.device)
    for name, width in size.zoo:
        for channels_last in (False, True):
            torch.manual_seed(0)
            network = NETWORKS[name].build(width, 10)
            model = Classifier(network, NORMALISATION, 10, device=size.device, channels_last=channels_last)
            for pass_name, compute in make_passes(model, images, labels).items():
                row = {"network": name, "channels_last": channels_last, "pass": pass_name}
                yield row | {"images_per_second": images_per_second(size, compute)}


def run_sweep(size: Size) -> Rows:
    """Run a sweep of ten networks (on a CPU: two) with random weights, on Ray if it is installed."""
    executor = "ray" if find_spec("ray") else "inline"
    sweep = {
        "format": 1,
        "name": "gpu",
        "results": "results",
        "network": {"channels": size.cell[0], "cells": size.cell[1]},
        "weights": {"random": {"seeds": [0]}},
        "architectures": [0, 309] if size.is_rehearsal else [0, 9, 21, 123, 309, 991, 1462, 2528, 9930, 13714],
        "datasets": {"digits": {}},
        "images": {"count": 16 if size.is_rehearsal else 200, "seed": 0},
        "keys": {"clean": {}, "fgsm": {}, "pgd": {"steps": size.steps}, "aa_square": {"queries": size.queries // 10}},
        "execution": {"executor": executor, "threads": 1, "device": size.device.type},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sweep.yaml")
        path.write_text(yaml.safe_dump(sweep))
        start = time.monotonic()
        argv = [sys.executable, "-m", "robust201", "run", str(path)]
        process = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    lines = (process.stdout + process.stderr).strip().splitlines() or ["no output"]
    seconds = time.monotonic() - start
    yield {"executor": executor, "exit_code": process.returncode, "seconds": seconds, "last_line": lines[-1]}


@dataclass(frozen=True)
class Step:
    """A step of the benchmark, with the maximum number of seconds that it may take."""

    measure: Callable[[Size], Rows]
    max_seconds: int


STEPS = {
    "attacks": Step(measure_attacks, 90),
    "precision": Step(measure_precision, 20),
    "passes": Step(measure_passes, 60),
    "square": Step(measure_square, 50),
    "layouts": Step(measure_layouts, 40),
    "tests": Step(run_tests, 130),
    "sweep": Step(run_sweep, 80),
}
"""Steps in order; their limits add up to less than eight minutes."""


def measure_in_process(name: str, device: str) -> dict[str, Any]:
    """Run a step in a child process; return its rows and seconds, or an error message."""
    argv = [sys.executable, "-m", "benchmarks.gpu", "--device", device, "--step", name]
    start = time.monotonic()
    try:
        process = subprocess.run(argv, capture_output=True, text=True, timeout=STEPS[name].max_seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {STEPS[name].max_seconds} seconds", "rows": []}
    if process.returncode:
        return {"error": (process.stderr.strip().splitlines() or ["no output"])[-1], "rows": []}
    return {"rows": json.loads(process.stdout.splitlines()[-1]), "step_seconds": time.monotonic() - start}


def print_step(name: str, result: dict[str, Any]) -> None:
    """Print a step's table, or its error."""
    print(f"\n## {name}: {result.get('error') or format(result['step_seconds'], '.0f') + ' s'}\n")
    if result["rows"]:
        print("| " + " | ".join(result["rows"][0]) + " |\n" + "|---" * len(result["rows"][0]) + "|")
    for row in result["rows"]:
        entries = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values())
        print("| " + " | ".join(entries) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--step", choices=STEPS, help="run only this step, in this process, and print its rows as JSON")
    options = parser.parse_args()
    device = torch.device(options.device)
    if is_gpu(device) and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU. Use --device cpu to try out the steps.")
    if options.step:
        configure_torch(1)
        print(json.dumps(list(STEPS[options.step].measure(size_for(device)))))
        return 0
    machine = f"{describe_device(device)}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
    print(machine)
    results = {}
    for name in STEPS:
        results[name] = measure_in_process(name, options.device)
        print_step(name, results[name])
        if options.out:
            options.out.write_text(json.dumps({"machine": machine, "steps": results}, indent=1) + "\n")
    return int(any("error" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
