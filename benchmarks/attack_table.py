"""Compare every attack with its library on trained networks: bits, accuracies and CPU seconds, in one table.

    ROBUST201_DATA=FOLDER python -m benchmarks.attack_table --networks 21 309 --images 32 --out attack-table.json

The data folder holds `cifar10/test.parquet` and trained NAS-Bench-201 networks in
`checkpoints/NATS-tss-v1_0-3ffb9-full`. Each attack runs at one strength, one thread, on the same images:

- library, and library in channels_last: the reference engine, which calls Foolbox or AutoAttack on the published
  network;
- fused: `engine: fused` as it is, on the compiled network with draws of its own. Single images differ from the
  library's by chance: McNemar's exact test on the images that only one of the two leaves right;
- replayed: the fused attack on the published network with the library's draws and batches, on the first images alone:
  the number of bits that differ. Grids draw nothing.

The three timed runs alternate, `--repeats` times, and the least CPU time of each counts. Steps, queries and rotations
are cut to `--passes` forward passes per image, as far as they can be; `--passes 1000000` runs every attack in full.
Results are kept in the JSON file, by network and attack: the same command goes on where it was stopped.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.trained import load_trained
from robust201.core.files import write_text
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Perturbed, Request
from robust201.engine.model import Model
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import compile_network
from robust201.statistics.significance import mcnemar_p_values
from robust201.tasks import TASKS
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import perturb
from tests.support.library_parity import compare, differing_bits

ATTACKS = tuple(key for key, row in TASKS.items() if row.kind == "attack")
STRENGTHS = {"Linf": ("epsilons_255", 1.0), "L2": ("epsilons", 0.25), "L1": ("epsilons", 6.0)}
LENGTHS = {"steps": 4, "queries": 20, "rotations": 3}
"""What decides how long an attack takes, and the least of it."""

SEED = 0
LAYOUTS = ("library", "library_channels_last")
ENGINES = (*LAYOUTS, "fused")


def choose_parameters(key: str, passes: float, n_classes: int, epsilon_255: float = 1.0) -> Parameters:
    """Set one strength, and cut an attack's lengths by one factor until an image takes so many forward passes.

    The strength of Linf attacks is `epsilon_255`.
    """
    row = TASKS[key]
    given: dict[str, Any] = {}
    if row.constraint is not None:
        name, strength = STRENGTHS[row.constraint.name]
        given[name] = [epsilon_255 if row.constraint.name == "Linf" else strength]
    whole = row.parameters(**given)
    lengths = {name: getattr(whole, name) for name in LENGTHS if name in row.parameters.model_fields}
    chosen = whole
    for factor in np.geomspace(1, 1e-3, 61).tolist():
        cut = {name: min(value, max(LENGTHS[name], int(value * factor))) for name, value in lengths.items()}
        chosen = row.parameters(**given, **cut)
        if row.passes(chosen, n_classes) <= passes:
            break
    return chosen


class Case:
    """A trained network in the three forms that are timed, and the images that it is attacked on."""

    def __init__(self, folder: Path, index: int, images: ImageSet) -> None:
        network, spec = load_trained(folder, index, n_classes=images.n_classes)
        self.plain = Classifier(network, images.normalisation, images.n_classes)
        again, _ = load_trained(folder, index, n_classes=images.n_classes)
        channels_last = Classifier(again, images.normalisation, images.n_classes, channels_last=True)
        self.library = {"library": self.plain, "library_channels_last": channels_last}
        self.compiled = compile_network(network, spec, images.normalisation, n_classes=images.n_classes)
        self.images = images
        self.pixels, self.labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)

    def attack(self, engine: str, key: str, parameters: Parameters) -> NDArray[np.bool_]:
        """Attack all images; say which are right after it."""
        classifier = self.library.get(engine, self.plain)
        model: Model = self.compiled if engine == "fused" else classifier
        found = self._gather(engine, key, parameters, self.images, classifier, model)
        with torch.inference_mode():
            return (model.logits(found).argmax(dim=1) == self.labels).numpy()

    def differing_bits(self, key: str, parameters: Parameters, n_images: int) -> int:
        """Count the bits of images and logits in which the replayed attack differs from the library."""
        pixels, labels = self.pixels[:n_images], self.labels[:n_images]
        if TASKS[key].constraint is not None:
            found = compare(key, self.plain, pixels, labels, parameters, seed=SEED)
            return sum(one.image_bits + one.logit_bits for one in found.values())
        few = ImageSet(
            self.images.dataset,
            self.images.images[:n_images],
            self.images.labels[:n_images],
            self.images.indices[:n_images],
            self.images.n_classes,
            self.images.normalisation,
            "",
        )
        one, other = (
            self._gather(engine, key, parameters, few, self.plain, self.plain) for engine in ("library", "fused")
        )
        found_bits: int = differing_bits(one, other)  # type: ignore[no-untyped-call]
        return found_bits

    def _gather(
        self, engine: str, key: str, parameters: Parameters, images: ImageSet, classifier: Classifier, model: Model
    ) -> torch.Tensor:
        pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
        name = "fused" if engine == "fused" else "reference"
        context = Context(classifier, SEED, len(images), key=key, engine=name, model=model)
        request = Request(parameters.strengths, pixels, labels, images.indices)
        found = torch.full(pixels.shape, torch.nan)
        batches: Iterable[Perturbed] = perturb(TASKS[key], context, parameters, request)
        for batch in batches:
            found[batch.positions] = batch.images
        return found


def measure(case: Case, key: str, parameters: Parameters, *, repeats: int, parity_images: int) -> dict[str, Any]:
    """Attack with all three forms in turn, and compare what they found and what it took."""
    seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    right: dict[str, NDArray[np.bool_]] = {}
    for _ in range(repeats):
        for engine in ENGINES:
            start = time.thread_time()
            right[engine] = case.attack(engine, key, parameters)
            seconds[engine].append(time.thread_time() - start)
    library, fused = right["library"], right["fused"]
    only = int((library & ~fused).sum()), int((~library & fused).sum())
    return {
        "parameters": parameters.model_dump(mode="json"),
        "right": {engine: int(found.sum()) for engine, found in right.items()},
        "only_library": only[0],
        "only_fused": only[1],
        "p_value": float(mcnemar_p_values(*only)),
        "differing_bits": case.differing_bits(key, parameters, parity_images),
        "seconds": seconds,
    }


def table(results: Mapping[str, Any]) -> str:
    """Write the Markdown table: ratios are CPU seconds of the library to those of `fused`."""
    head = (
        *("network", "attack", "lengths", "right: library / fused", "only one of them, p", "differing bits"),
        *("fused, CPU s", "library", "library, channels_last"),
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in results.items():
        network, _, key = name.partition("/")
        least = {engine: min(seconds) for engine, seconds in row["seconds"].items()}
        lengths = ", ".join(f"{row['parameters'][one]} {one}" for one in LENGTHS if one in row["parameters"])
        ratios = " | ".join(f"{least[engine] / least['fused']:.2f}" for engine in LAYOUTS)
        lines.append(
            f"| #{network} | `{key}` | {lengths} | {row['right']['library']} / {row['right']['fused']} "
            f"| {row['only_library']} and {row['only_fused']}, {row['p_value']:.2f} | {row['differing_bits']} "
            f"| {least['fused']:.2f} | {ratios} |"
        )
    return "\n".join(lines)


def fill(
    kept: dict[str, Any],
    wanted: Iterable[tuple[int, str]],
    run: Callable[[int, str], dict[str, Any]],
    keep: Callable[[], None],
) -> None:
    """Measure what is not kept yet, and keep each result as it comes."""
    for network, key in wanted:
        name = f"{network}/{key}"
        if name not in kept:
            kept[name] = run(network, key)
            keep()


def main() -> int:
    """Measure, keep and print; the exit status is 1 where bits differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", type=int, default=[21, 309])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--passes", type=float, default=30.0, help="forward passes per image that lengths are cut to")
    parser.add_argument("--epsilon-255", type=float, default=1.0, help="strength of the attacks in Linf")
    parser.add_argument("--parity-images", type=int, default=4, help="images of which bits are compared")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("attack-table.json"))
    options = parser.parse_args()
    configure_torch(threads=1)
    folder = Path(os.environ.get("ROBUST201_DATA", "data"))
    settings = {
        name: getattr(options, name) for name in ("images", "passes", "epsilon_255", "parity_images", "repeats")
    } | {name: version(name) for name in ("torch", "foolbox", "pyautoattack")}
    payload: dict[str, Any] = {"settings": settings, "results": {}}
    if options.out.exists():
        payload = json.loads(options.out.read_text(encoding="utf-8"))
        if payload["settings"] != settings:
            parser.error(f"{options.out}: expected a file of these settings, got one of {payload['settings']}.")
    images = select(load_images("cifar10", path=folder / "cifar10"), count=options.images, seed=SEED)
    cases: dict[int, Case] = {}

    def run(network: int, key: str) -> dict[str, Any]:
        if network not in cases:
            cases.clear()
            cases[network] = Case(folder, network, images)
            for engine in ENGINES:  # what a form computes once is not part of an attack
                cases[network].attack(engine, "fgsm", choose_parameters("fgsm", options.passes, images.n_classes))
        parameters = choose_parameters(key, options.passes, images.n_classes, options.epsilon_255)
        found = measure(cases[network], key, parameters, repeats=options.repeats, parity_images=options.parity_images)
        print(f"#{network} {key}: {sum(map(sum, found['seconds'].values())):.1f} CPU s", file=sys.stderr, flush=True)
        return found

    results = payload["results"]
    fill(
        results,
        ((network, key) for network in options.networks for key in options.attacks),
        run,
        lambda: write_text(options.out, json.dumps(payload, indent=1) + "\n"),
    )
    print(table(results))
    return int(any(row["differing_bits"] for row in results.values()))


if __name__ == "__main__":
    sys.exit(main())
