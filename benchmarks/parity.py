"""Compare every attack with its library on trained networks, in bits, predicted classes, accuracies and CPU seconds.

    ROBUST201_DATA=FOLDER python -m benchmarks.parity --networks 21 309 --images 32
    ROBUST201_DATA=FOLDER python -m benchmarks.parity --paper --networks 21 --attacks fgsm pgd aa_square --images 16

The data folder contains `cifar10/test.parquet` and trained NAS-Bench-201 networks in
`checkpoints/NATS-tss-v1_0-3ffb9-full`. For each network, the compiled network is compared with the published one. Then
each attack runs on one thread:

- with its library (Foolbox, AutoAttack, `engine: reference`) on the published network, in both memory layouts;
- fused, on the compiled network, with random numbers as in a sweep (`engine: fused`). Outcomes of single images differ
  by chance, so McNemar's exact test compares the numbers of images that are correct after only one of the two attacks;
- fused, with the random numbers and batches of the library. On the published network, no bit of the first
  `--bit-images` images and their logits may differ. On the compiled network, which rounds differently, the images with
  a different predicted class are counted. Grid attacks have no random numbers; they are compared only on the published
  network, on all images.

By default an attack has one strength, and its steps, queries and rotations are cut to 30 forward passes per image. With
`--paper` it has all its strengths and its full length, except for Square (500 queries). The exit status is 1 if bits
differ. `python -m benchmarks.gpu --only parity` is the comparison on a GPU.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engine_case import load_trained
from robust201.core.records import ImageSet
from robust201.images import load_images, select
from robust201.models.arithmetic import configure_torch
from robust201.models.classifier import Classifier
from robust201.models.model import Model
from robust201.spaces.nasbench201.compiled import compile_network
from robust201.statistics.significance import mcnemar_p_values
from robust201.tasks import TASKS
from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import perturb
from tests.support.library_parity import compare, count_differing_bits, fused_images, library_images

ATTACKS = tuple(key for key, task in TASKS.items() if task.kind == "attack")
STRENGTHS: dict[str, dict[str, Any]] = {
    "Linf": {"epsilons_255": [1.0]},
    "L2": {"epsilons": [0.25]},
    "L1": {"epsilons": [6.0]},
}
MIN_LENGTHS = {"steps": 4, "queries": 20, "rotations": 3}
"""Minimum values of the parameters that determine an attack's duration."""

MAX_PASSES = 30
"""Maximum number of forward passes per image of a shortened attack."""

SEED = 0
HEADER = (
    "| network | attack | lengths | correct: library | fused | correct with only one, smallest p | differing bits "
    "| differing classes, compiled | fused, CPU s | library / fused | channels_last / fused |\n" + "|---" * 11 + "|"
)


def short_parameters(key: str, n_classes: int) -> Parameters:
    """Return parameters with one strength, shortened by a common factor to `MAX_PASSES` forward passes per image."""
    task = TASKS[key]
    strength = {} if task.constraint is None else STRENGTHS[task.constraint.name]
    parameters = default = task.parameters(**strength)
    lengths = {name: getattr(default, name) for name in MIN_LENGTHS if name in task.parameters.model_fields}
    for factor in np.geomspace(1, 1e-3, 61).tolist():
        shortened_lengths = {
            name: min(length, max(MIN_LENGTHS[name], int(length * factor))) for name, length in lengths.items()
        }
        parameters = task.parameters(**strength, **shortened_lengths)
        if task.passes(parameters, n_classes) <= MAX_PASSES:
            break
    return parameters


def paper_parameters(key: str) -> Parameters:
    """Return parameters with all strengths and the full length; Square has 500 queries."""
    overrides: dict[str, Any] = {"queries": 500} if key == "aa_square" else {}
    return TASKS[key].parameters(**overrides)


class Case:
    """A trained network in published and compiled form, and the images."""

    def __init__(self, folder: Path, index: int, images: ImageSet) -> None:
        self.index, self.images = index, images
        network, spec = load_trained(folder, index, n_classes=images.n_classes)
        network_copy, _ = load_trained(folder, index, n_classes=images.n_classes)
        self.published = Classifier(network, images.normalisation, images.n_classes)
        self.channels_last = Classifier(network_copy, images.normalisation, images.n_classes, channels_last=True)
        self.compiled = compile_network(network, spec, images.normalisation, n_classes=images.n_classes)
        self.pixels, self.labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)

    def attack(self, engine: str, classifier: Classifier, model: Model, key: str, parameters: Parameters) -> Any:
        """Attack all images at all strengths; return the attacked images (S, N, 3, H, W)."""
        context = Context(classifier, SEED, len(self.images), key=key, engine=engine, model=model)
        request = Request(parameters.strengths, self.pixels, self.labels, self.images.indices)
        attacked = torch.full((len(parameters.strengths), *self.pixels.shape), torch.nan)
        for batch in perturb(TASKS[key], context, parameters, request):
            attacked[batch.strength_index, batch.positions] = batch.images
        return attacked

    def is_correct(self, model: Model, perturbed: torch.Tensor) -> NDArray[np.bool_]:
        """Return whether each attacked image is classified correctly (S, N)."""
        with torch.inference_mode():
            classes = [model.logits(images).argmax(dim=1) for images in perturbed]
        return (torch.stack(classes) == self.labels).numpy()

    def count_differing_bits(self, key: str, parameters: Parameters, n_images: int) -> list[int]:
        """Return, for each strength, in how many bits the library's and the fused attack's images and logits differ."""
        pixels, labels = self.pixels[:n_images], self.labels[:n_images]
        if TASKS[key].constraint is None:
            images_by_engine = [
                self.attack(engine, self.published, self.published, key, parameters)
                for engine in ("reference", "fused")
            ]
            return [count_differing_bits(*images) for images in zip(*images_by_engine, strict=True)]  # type: ignore[no-untyped-call]
        comparisons = compare(key, self.published, pixels, labels, parameters, seed=SEED).values()
        return [comparison.image_bits + comparison.logit_bits for comparison in comparisons]

    def differing_classes(self, key: str, parameters: Parameters) -> list[int]:
        """Return, for each strength, how many images get another class if the compiled network is attacked."""
        constraint = TASKS[key].constraint
        if constraint is None:
            return []
        epsilons = [constraint.radius(strength) for strength in parameters.strengths]
        fused_batches = fused_images(  # type: ignore[no-untyped-call]
            key, self.published, self.pixels, self.labels, epsilons, SEED, parameters, model=self.compiled
        )
        n_differing = []
        for epsilon, fused_batch in zip(epsilons, fused_batches, strict=True):
            library_batch = library_images(  # type: ignore[no-untyped-call]
                key, self.published, to_float(self.pixels), self.labels, epsilon, SEED, parameters
            )
            classes = [
                model.logits(attacked).argmax(1)
                for model, attacked in ((self.published, library_batch), (self.compiled, fused_batch))
            ]
            n_differing.append(int((classes[0] != classes[1]).sum()))
        return n_differing

    def describe(self) -> str:
        """Return a description of how the compiled network differs from the published one on clean images."""
        pixels = to_float(self.pixels)
        logits, _, gradient = self.published.loss_and_gradient(pixels, self.labels)
        compiled_logits, _, compiled_gradient = self.compiled.loss_and_gradient(pixels, self.labels)
        return (
            f"#{self.index}, compiled: largest logit {float(logits.abs().max()):.1f}, largest difference of a logit "
            f"{float((compiled_logits - logits).abs().max()):.1e}; gradient, relative (L2) "
            f"{float((compiled_gradient - gradient).norm() / gradient.norm()):.1e}, signs that differ "
            f"{float((compiled_gradient.sign() != gradient.sign()).float().mean()):.1e}"
        )


def measure(case: Case, key: str, parameters: Parameters, n_bit_images: int) -> tuple[list[str], int]:
    """Run an attack with all methods; return the cells of the table's row and the number of differing bits."""
    seconds, is_correct = [], []
    for engine, classifier, model in (
        ("reference", case.published, case.published),
        ("reference", case.channels_last, case.channels_last),
        ("fused", case.published, case.compiled),
    ):
        start = time.thread_time()
        perturbed = case.attack(engine, classifier, model, key, parameters)
        seconds.append(time.thread_time() - start)
        is_correct.append(case.is_correct(model, perturbed))
    library, fused = is_correct[0], is_correct[2]
    n_correct_with_one = (library & ~fused).sum(axis=1), (~library & fused).sum(axis=1)
    bits = case.count_differing_bits(key, parameters, n_bit_images)
    lengths = ", ".join(f"{getattr(parameters, name)} {name}" for name in MIN_LENGTHS if hasattr(parameters, name))
    pairs = " ".join(f"{first}/{second}" for first, second in zip(*n_correct_with_one, strict=True))
    cells = [f"#{case.index}", f"`{key}`", lengths, join_numbers(library.sum(axis=1)), join_numbers(fused.sum(axis=1))]
    cells += [
        f"{pairs}, {mcnemar_p_values(*n_correct_with_one).min():.3f}",
        join_numbers(bits),
        join_numbers(case.differing_classes(key, parameters)),
    ]
    cells += [f"{seconds[2]:.2f}", *(f"{library_seconds / seconds[2]:.2f}" for library_seconds in seconds[:2])]
    return cells, sum(bits)


def join_numbers(numbers: Sequence[int] | NDArray[Any]) -> str:
    return " ".join(map(str, numbers))


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
    from robust201.bench.generated import random_network

    digits = select(load_images("digits"), count=n_images, seed=0)
    network, images = random_network(str(index), digits, channels=size[0], cells=size[1])
    classifier = Classifier(network, images.normalisation, images.n_classes, device=device)
    pixels, labels = torch.from_numpy(images.images).to(device), torch.from_numpy(images.labels.copy())
    # Every fourth label is made wrong, because the attacks treat misclassified images differently.
    labels[3::4] = (labels[3::4] + 1) % images.n_classes
    for key in ("fgsm", "pgd", "pgd_l2", "aa_apgd-ce", "aa_square"):
        fields = TASKS[key].parameters.model_fields
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


def main() -> int:
    """Print the comparison; return 1 if any bits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", type=int, default=[21, 309])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument(
        "--bit-images", type=int, default=16, help="number of images whose bits are compared, in one batch"
    )
    parser.add_argument("--paper", action="store_true", help="all strengths and full lengths; Square: 500 queries")
    options = parser.parse_args()
    configure_torch(threads=1)
    folder = Path(os.environ.get("ROBUST201_DATA", "data"))
    images = select(load_images("cifar10", path=folder / "cifar10"), count=options.images, seed=SEED)
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "foolbox", "pyautoattack"))
    print(f"{len(images)} images, {versions}\n\n{HEADER}", flush=True)
    descriptions, n_bits = [], 0
    for index in options.networks:
        case = Case(folder, index, images)
        descriptions.append(case.describe())
        for key in options.attacks:
            parameters = paper_parameters(key) if options.paper else short_parameters(key, images.n_classes)
            cells, n_differing_bits = measure(case, key, parameters, options.bit_images)
            n_bits += n_differing_bits
            print(f"| {' | '.join(cells)} |", flush=True)
    print("\n".join(("", *descriptions, f"{n_bits} differing bits")))
    return int(n_bits > 0)


if __name__ == "__main__":
    sys.exit(main())
