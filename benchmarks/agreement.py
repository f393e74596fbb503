"""Compare what the two engines find on trained networks, image by image, at the paper's epsilons.

    ROBUST201_DATA=FOLDER python -m benchmarks.agreement --output FOLDER --networks 309 21 0
    python -m benchmarks.agreement --output FOLDER --table

The data folder holds `cifar10/test.parquet` and trained NAS-Bench-201 networks in
`checkpoints/NATS-tss-v1_0-3ffb9-full`. Each network is attacked three times, with the paper's parameters (Square with
500 queries), and the predicted class of every image is kept:

- reference: Foolbox and AutoAttack on the published network, through `engine: reference`;
- replayed: the fused engine on the compiled network with the libraries' draws, so only rounding can differ;
- fused: `engine: fused` as it is, with draws of its own, so single images differ by chance.

The second must agree with the first image by image. The third must agree statistically: McNemar's exact test of the
images that only one of the two fools, an evaluation each, and Holm's correction over all evaluations.

Every run is kept under --output, one file a network, key and run, and is not repeated.
"""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest

from benchmarks.trained import load_trained
from robust201.core.noise import derived_seed
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import AttackJob
from robust201.engine.batching import Batching
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Perturbed, Request
from robust201.engine.replay import ReplayedDraws
from robust201.images import load_images, select
from robust201.spaces.nasbench201.compiled import InferenceNetwork, compile_network
from robust201.tasks import TASKS
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import perturb

KEYS = ("clean", "fgsm", "pgd", "pgd_l2", "aa_apgd-ce", "aa_square")
RUNS = ("reference", "replayed", "fused")
SEED = 0
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class Case:
    """One trained network in both forms, with its images."""

    classifier: Classifier
    compiled: InferenceNetwork
    images: ImageSet


def load_case(folder: Path, index: int, images: ImageSet) -> Case:
    """Load a trained network and compile it."""
    network, spec = load_trained(folder, index, n_classes=images.n_classes)
    compiled = compile_network(network, spec, images.normalisation, n_classes=images.n_classes)
    return Case(Classifier(network, images.normalisation, images.n_classes), compiled, images)


def perturbed_images(case: Case, key: str, run: str, parameters: Parameters) -> Iterator[Perturbed]:
    """Attack all images at all epsilons."""
    row = TASKS[key]
    images, labels = torch.from_numpy(case.images.images), torch.from_numpy(case.images.labels)
    if run == "replayed" and row.constraint is not None:
        job = AttackJob(
            model=case.compiled,
            batching=Batching(samples=1, pool=1, as_library=True),
            draws=ReplayedDraws(derived_seed(SEED, key, 0)),
            images=images,
            labels=labels,
            indices=case.images.indices,
            epsilons=tuple(row.constraint.radius(strength) for strength in parameters.strengths),
        )
        yield from row.load("fused")(job, parameters)
        return
    engine = "reference" if run == "reference" else "fused"
    model = None if engine == "reference" else case.compiled
    # One batch of draws: what `replayed` replays.
    context = Context(case.classifier, SEED, len(images), key=key, engine=engine, model=model)
    yield from perturb(row, context, parameters, Request(parameters.strengths, images, labels, case.images.indices))


def predictions_of(case: Case, key: str, run: str, parameters: Parameters) -> NDArray[np.int64]:
    """Predicted class of each perturbed image, as a sweep measures it: (S, N)."""
    found = np.full((len(parameters.strengths), len(case.images)), -1, np.int64)
    for batch in perturbed_images(case, key, run, parameters):
        with torch.inference_mode():
            logits = case.classifier(batch.images) if run == "reference" else case.compiled.logits(batch.images)
        found[batch.strength, batch.positions.numpy()] = logits.argmax(dim=1).numpy()
    if (found < 0).any():
        raise RuntimeError(f"{key} ({run}): an image did not come back")
    return found


def measure(folder: Path, output: Path, index: int, images: ImageSet, queries: int) -> None:
    """Run what is missing of one network's three runs."""
    case = load_case(folder, index, images)
    for key in KEYS:
        for run in RUNS:
            file = output / f"{index:06d}-{key}-{run}.npz"
            if file.exists():
                continue
            parameters = TASKS[key].parameters(**({"queries": queries} if key == "aa_square" else {}))
            start = time.thread_time()
            predicted = predictions_of(case, key, run, parameters)
            seconds = time.thread_time() - start
            np.savez(file, predicted=predicted, labels=images.labels, strengths=parameters.strengths, seconds=seconds)
            print(f"#{index} {key} {run}: {seconds:.0f} CPU s", flush=True)


@dataclass(frozen=True)
class Evaluation:
    """One strength of one key on one network, by all three runs.

    Attributes:
        correct: images that each run leaves correctly classified, by run.
        changed: images whose predicted class differs between the reference and the replayed run.
        flipped: images that are correct in one of these two runs only.
        only_reference: images that are correct after the reference engine and not after the fused one.
        only_fused: the other way round.
    """

    correct: dict[str, int]
    changed: int
    flipped: int
    only_reference: int
    only_fused: int

    @property
    def p_value(self) -> float:
        """McNemar's exact test: two-sided binomial on the images that only one run fools."""
        discordant = self.only_reference + self.only_fused
        return float(binomtest(self.only_fused, discordant).pvalue) if discordant else 1.0


def read_evaluations(output: Path, index: int, key: str) -> list[Evaluation]:
    """Read one key's evaluations, one a strength."""
    predicted, correct = {}, {}
    for run in RUNS:
        with np.load(output / f"{index:06d}-{key}-{run}.npz") as kept:
            predicted[run] = kept["predicted"]
            correct[run] = kept["predicted"] == kept["labels"]
    return [
        Evaluation(
            correct={run: int(correct[run][strength].sum()) for run in RUNS},
            changed=int((predicted["reference"][strength] != predicted["replayed"][strength]).sum()),
            flipped=int((correct["reference"][strength] != correct["replayed"][strength]).sum()),
            only_reference=int((correct["reference"][strength] & ~correct["fused"][strength]).sum()),
            only_fused=int((correct["fused"][strength] & ~correct["reference"][strength]).sum()),
        )
        for strength in range(len(predicted["reference"]))
    ]


def holm(p_values: list[float]) -> list[float]:
    """Correct p-values for their number (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, position in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[position]))
        corrected[position] = largest
    return corrected


def print_table(output: Path) -> bool:
    """Print what was found; tell whether the engines agree."""
    indices = sorted({int(file.name.split("-")[0]) for file in output.glob("*-aa_square-fused.npz")})
    if not indices:
        raise SystemExit(
            f"Reading runs failed for {output}: expected finished networks, got none. Make them with: "
            "python -m benchmarks.agreement --output FOLDER --networks 309"
        )
    rows = {(index, key): read_evaluations(output, index, key) for index in indices for key in KEYS}
    evaluations = [evaluation for row in rows.values() for evaluation in row]
    corrected = iter(holm([evaluation.p_value for evaluation in evaluations]))
    print(
        "| network | key | correct, reference | correct, replayed draws | images whose class differs "
        "| correct, own draws | only reference / only fused | smallest p | Holm |\n" + "|---" * 9 + "|"
    )
    for (index, key), row in rows.items():
        holms = [next(corrected) for _ in row]
        cells = [f"#{index}", f"`{key}`"]
        cells += [" ".join(str(evaluation.correct[run]) for evaluation in row) for run in ("reference", "replayed")]
        cells += [" ".join(str(evaluation.changed) for evaluation in row)]
        cells += [" ".join(str(evaluation.correct["fused"]) for evaluation in row)]
        cells += [" ".join(f"{evaluation.only_reference}/{evaluation.only_fused}" for evaluation in row)]
        cells += [f"{min(evaluation.p_value for evaluation in row):.3f}", f"{min(holms):.3f}"]
        print(f"| {' | '.join(cells)} |")
    most = max(max(evaluation.changed, evaluation.flipped) for evaluation in evaluations)
    smallest = min(holm([evaluation.p_value for evaluation in evaluations]))
    print(
        f"\n{len(evaluations)} evaluations. Equal draws: at most {most} image(s) differ in one. "
        f"Own draws: smallest corrected p {smallest:.3f}."
    )
    return most <= 1 and smallest >= SIGNIFICANT


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    parser.add_argument("--output", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--networks", type=int, nargs="*", default=[309, 21, 0])
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--queries", type=int, default=500, help="queries of Square")
    parser.add_argument("--table", action="store_true", help="print what is there")
    options = parser.parse_args()
    if options.table:
        raise SystemExit(0 if print_table(options.output) else 1)
    configure_torch(threads=1)
    options.output.mkdir(parents=True, exist_ok=True)
    images = select(load_images("cifar10", path=options.data / "cifar10"), count=options.images, seed=SEED)
    for index in options.networks:
        measure(options.data, options.output, index, images, options.queries)


if __name__ == "__main__":
    main()
