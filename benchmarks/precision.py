"""Compare a trained network's precisions with fp32: time, logits, gradients, and accuracies under the same draws.

    ROBUST201_DATA=FOLDER python -m benchmarks.precision --networks 309 21 0
    ROBUST201_DATA=FOLDER python -m benchmarks.precision --device cuda --images 2000 --batch 2000

The data folder is that of `benchmarks.agreement`. All figures are the fused engine's but for the times of the published
network, which the reference engine attacks. Square runs with 500 queries. A CPU has no tf32.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.agreement import SEED
from benchmarks.trained import load_trained
from robust201.core.precision import Precision
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Request, to_float
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import InferenceNetwork, compile_network
from robust201.tasks import TASKS
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import perturb

PARAMETERS: dict[str, dict[str, Any]] = {
    "clean": {},
    "fgsm": {"epsilons_255": (0.1, 0.5, 1, 2, 4, 8)},
    "pgd": {"epsilons_255": (0.1, 0.5, 1, 2)},
    "aa_square": {"epsilons_255": (0.1, 0.5, 1, 2, 4), "queries": 500},
}
_REPEATS = 7


class Subject:
    """A trained network in one precision, as both engines see it. Call `use` before it computes."""

    def __init__(self, folder: Path, index: int, images: ImageSet, device: torch.device, precision: Precision) -> None:
        network, spec = load_trained(folder, index, n_classes=images.n_classes)
        given = images.normalisation
        self.precision, self.images = precision, images
        self.classifier = Classifier(network, given, images.n_classes, device=device, precision=precision)
        self.compiled: InferenceNetwork = compile_network(
            network, spec, given, n_classes=images.n_classes, device=device, precision=precision
        )
        self.pixels = to_float(torch.from_numpy(images.images).to(device))
        self.labels = torch.from_numpy(images.labels).to(device)

    def use(self) -> "Subject":
        """Set the process's switches for this precision."""
        configure_torch(1, self.precision)
        return self

    def microseconds(self, compute: Callable[["Subject"], object], n_images: int) -> float:
        """Time one call, an image."""
        self.use()
        on_cuda = self.classifier.device.type == "cuda"
        # On a CPU the thread's own time, which other work on the machine does not lengthen.
        clock = time.perf_counter if on_cuda else time.thread_time
        start = clock()
        compute(self)
        if on_cuda:
            torch.cuda.synchronize()
        return (clock() - start) / n_images * 1e6

    def correct(self, key: str, parameters: Parameters) -> NDArray[np.bool_]:
        """Images that are classified correctly after an attack: (S, N)."""
        row = TASKS[key]
        context = Context(self.use().classifier, SEED, len(self.images), key=key, engine="fused", model=self.compiled)
        images = torch.from_numpy(self.images.images).to(self.classifier.device)
        found = np.zeros((len(parameters.strengths), len(self.images)), np.bool_)
        request = Request(parameters.strengths, images, self.labels, self.images.indices)
        for batch in perturb(row, context, parameters, request):
            right = self.compiled.logits(batch.images).argmax(dim=1) == self.labels[batch.positions]
            found[batch.strength, batch.positions.cpu().numpy()] = right.cpu().numpy()
        return found


def compare_times(subjects: list[Subject], batch: int) -> None:
    """Print the times of a forward pass and of a gradient, interleaved."""
    cut = slice(0, batch)
    computations: dict[str, Callable[[Subject], object]] = {
        "fused, logits": lambda subject: subject.compiled.logits(subject.pixels[cut]),
        "fused, gradient": lambda subject: subject.compiled.loss_and_gradient(subject.pixels[cut], subject.labels[cut]),
        "published, logits": lambda subject: subject.classifier(subject.pixels[cut]),
    }
    for name, compute in computations.items():
        rounds = [
            [subject.microseconds(compute, len(subject.pixels[cut])) for subject in subjects] for _ in range(_REPEATS)
        ]
        medians = [median(column) for column in zip(*rounds, strict=True)]
        times = ", ".join(f"{subject.precision} {value:.1f}" for subject, value in zip(subjects, medians, strict=True))
        print(f"  {name}, µs an image: {times}", flush=True)


def compare_numbers(base: Subject, other: Subject) -> None:
    """Print how far a precision's logits, gradients and accuracies are from fp32's."""
    logits, _, gradient = base.use().compiled.loss_and_gradient(base.pixels, base.labels)
    near_logits, _, near_gradient = other.use().compiled.loss_and_gradient(other.pixels, other.labels)
    cosine = torch.cosine_similarity(gradient.flatten(1), near_gradient.flatten(1))
    print(
        f"  {other.precision}: logits up to {float(logits.abs().max()):.1f} differ by up to "
        f"{float((logits - near_logits).abs().max()):.3f}; cosine of gradients, median {float(cosine.median()):.4f}, "
        f"least {float(cosine.min()):.4f}",
        flush=True,
    )
    for key, given in PARAMETERS.items():
        parameters = TASKS[key].parameters(**given)
        was, now = base.correct(key, parameters), other.correct(key, parameters)
        cells = [
            f"{strength:g}: {before.mean():.3f} {after.mean():.3f} ({int((before != after).sum())})"
            for strength, before, after in zip(parameters.strengths, was, now, strict=True)
        ]
        print(f"  {key}, accuracy fp32 and {other.precision} (images that differ): {'; '.join(cells)}", flush=True)


def main() -> None:
    """Compare the networks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    parser.add_argument("--networks", type=int, nargs="+", default=[309, 21, 0], help="indices")
    parser.add_argument("--images", type=int, default=200, help="CIFAR-10 test images, spread over the classes")
    parser.add_argument("--batch", type=int, default=64, help="images of one call that is timed")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    folder, device = arguments.data, torch.device(arguments.device)
    images = select(load_images("cifar10", path=folder), count=arguments.images, seed=SEED)
    precisions: tuple[Precision, ...] = ("fp32", "tf32", "bf16") if device.type == "cuda" else ("fp32", "bf16")
    for index in arguments.networks:
        print(f"#{index}", flush=True)
        subjects = [Subject(folder, index, images, device, precision) for precision in precisions]
        with torch.no_grad():
            compare_times(subjects, arguments.batch)
        for other in subjects[1:]:
            compare_numbers(subjects[0], other)


if __name__ == "__main__":
    main()
