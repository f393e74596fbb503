"""Where the gain comes from: the fused engine's CPU time as parts of it are switched off one at a time.

    ROBUST201_DATA=FOLDER python -m benchmarks.gains --networks 309 21 13714 resnet18

One network after the other, one thread, in this process; images and weights as in `benchmarks.user_loop`. All attacks
run on the same images with the engine's own draws. What is switched off:

- windows: Square computes whole images for every query;
- shared batches: the attacks run once per epsilon, so that batches hold the images of one; FGSM takes a gradient for
  each;
- early exit: Square goes on with images that it has fooled (the libraries drop them too, so it is no gain over them);
- compiled network: the published modules through autograd, in channels_last; then with their BatchNorms folded into
  the convolutions; then in PyTorch's default layout. A network that no space compiles begins here.

The last rows are the libraries, once per epsilon, in both layouts (`engine: reference`).
"""

import argparse
import copy
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.trained import ARCHIVE, load_trained
from benchmarks.user_loop import PAPER, read_images
from benchmarks.windows import WholePasses
from robust201.bench.generated import random_network
from robust201.core.records import ImageSet
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import AttackJob, job_of
from robust201.engine.batching import Batching
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, Perturbed, Request
from robust201.engine.model import Model
from robust201.spaces import find_architecture
from robust201.spaces.nasbench201.compiled import InferenceNetwork
from robust201.tasks import TASKS
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import perturb

SEED = 0


class WithoutDropping(Batching):
    """Square makes all queries for all samples."""

    def queries_together(self, query: int) -> int:
        """As many as there may be."""
        del query
        return 10**9


@dataclass(frozen=True)
class Subject:
    """A network in all its forms, with images and the attacks' parameters."""

    images: ImageSet
    parameters: dict[str, Parameters]
    published: Classifier
    channels_last: Classifier
    folded: Classifier | None
    compiled: InferenceNetwork | None

    def context(self, classifier: Classifier, key: str, engine: str, model: Model | None = None) -> Context:
        """What surrounds one attack."""
        return Context(classifier, SEED, len(self.images), key=key, engine=engine, model=model)

    def request(self, key: str) -> Request:
        """All images at all of a key's strengths."""
        images, labels = torch.from_numpy(self.images.images), torch.from_numpy(self.images.labels)
        return Request(self.parameters[key].strengths, images, labels, self.images.indices)


Attack = Callable[[Subject, str], Iterable[Perturbed]]
"""(subject, key) → everything that the attack found."""


def jobs(subject: Subject, key: str, model: Model, *, apart: bool) -> list[AttackJob]:
    """The engine's job of a key: one, or one per epsilon."""
    request = subject.request(key)
    epsilons = [strength / 255 for strength in request.strengths]
    context = subject.context(subject.channels_last, key, "fused", model)
    return [job_of(context, request, chosen) for chosen in ([[one] for one in epsilons] if apart else [epsilons])]


def fused(
    choose: Callable[[Subject], Model],
    *,
    apart: bool = False,
    change: Callable[[AttackJob], AttackJob] = lambda job: job,
) -> Attack:
    """The fused engine's attack on one form of the network."""

    def attack(subject: Subject, key: str) -> Iterable[Perturbed]:
        for job in jobs(subject, key, choose(subject), apart=apart):
            yield from TASKS[key].load("fused")(change(job), subject.parameters[key])

    return attack


def reference(choose: Callable[[Subject], Classifier]) -> Attack:
    """The libraries' attack."""

    def attack(subject: Subject, key: str) -> Iterable[Perturbed]:
        context = subject.context(choose(subject), key, "reference")
        return perturb(TASKS[key], context, subject.parameters[key], subject.request(key))

    return attack


def without_dropping(job: AttackJob) -> AttackJob:
    return replace(job, batching=WithoutDropping(job.batching.samples, job.batching.pool))


def fastest(subject: Subject) -> Model:
    """The form that a sweep attacks."""
    return subject.compiled or subject.channels_last


def ways(subject: Subject) -> dict[str, Attack]:
    """What is timed, by its name in the table."""
    found = {"everything on": fused(fastest)}
    compiled = subject.compiled
    if compiled is not None:
        found["no windows"] = fused(lambda _: WholePasses(compiled))
    found["no shared batches: one epsilon at a time"] = fused(fastest, apart=True)
    found["no early exit"] = fused(fastest, change=without_dropping)
    folded = subject.folded
    if folded is not None:
        found["not compiled: published modules, BatchNorms folded"] = fused(lambda _: folded)
    if compiled is not None:
        found["not compiled: published modules"] = fused(lambda subject: subject.channels_last)
    found["not compiled, default layout"] = fused(lambda subject: subject.published)
    found["libraries, channels_last"] = reference(lambda subject: subject.channels_last)
    found["libraries, default layout"] = reference(lambda subject: subject.published)
    return found


def fold_batch_norms(network: nn.Module) -> bool:
    """Fold each BatchNorm that follows a convolution in a sequence; say whether there was one."""
    found = False
    for module in list(network.modules()):
        if isinstance(module, nn.Sequential):
            for (name, first), (next_name, second) in pairwise(list(module.named_children())):
                if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                    setattr(module, name, fuse_conv_bn_eval(first.eval(), second.eval()))
                    setattr(module, next_name, nn.Identity())
                    found = True
    return found


def make_subject(name: str, data: Path, images: ImageSet, parameters: dict[str, Parameters]) -> Subject:
    if name.isdigit() and (data / ARCHIVE / f"{int(name):06d}.pickle.pbz2").exists():
        network, _ = load_trained(data, int(name), n_classes=images.n_classes)
    else:
        network, images = random_network(name, images)

    def classifier(form: nn.Module, *, channels_last: bool) -> Classifier:
        return Classifier(form, images.normalisation, images.n_classes, channels_last=channels_last)

    space, architecture = find_architecture(int(name) if name.isdigit() else name)
    compiled = space.compile(
        architecture,
        network.eval(),
        images.normalisation,
        n_classes=images.n_classes,
        device=torch.device("cpu"),
        precision="fp32",
    )
    assert compiled is None or isinstance(compiled, InferenceNetwork)
    folded = copy.deepcopy(network).eval()
    is_folded = fold_batch_norms(folded)
    return Subject(
        images,
        parameters,
        published=classifier(copy.deepcopy(network), channels_last=False),
        channels_last=classifier(copy.deepcopy(network), channels_last=True),
        folded=classifier(folded, channels_last=True) if is_folded and compiled is not None else None,
        compiled=compiled,
    )


def seconds_of(attack: Attack, subject: Subject, key: str) -> float:
    """CPU seconds of the thread."""
    start = time.thread_time()
    for _ in attack(subject, key):
        pass
    return time.thread_time() - start


def print_table(name: str, subject: Subject, rounds: int) -> dict[str, dict[str, float]]:
    """Time every way, in turn, and print the table: seconds by way and key."""
    attacks = ways(subject)
    times: dict[str, dict[str, list[float]]] = {way: {key: [] for key in subject.parameters} for way in attacks}
    for attack in attacks.values():
        seconds_of(attack, subject, "fgsm")  # a first call imports, and lets libraries choose their kernels
    for _ in range(rounds):
        for key in subject.parameters:
            for way, attack in attacks.items():
                times[way][key].append(seconds_of(attack, subject, key))
    found = {way: {key: median(values) for key, values in by_key.items()} for way, by_key in times.items()}
    label = f"#{name}" if name.isdigit() else name
    print(f'\n| {label} | {" | ".join(subject.parameters)} | all, s | times "everything on" |')
    print("|---" * (len(subject.parameters) + 3) + "|")
    base = sum(found["everything on"].values())
    for way, by_key in found.items():
        total = sum(by_key.values())
        cells = [way, *(f"{value:.2f}" for value in by_key.values()), f"{total:.2f}", f"{total / base:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["309", "21", "13714", "resnet18"])
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--epsilons", type=float, nargs="+", default=PAPER.epsilons, help="in 1/255")
    parser.add_argument("--fgsm-epsilons", type=float, nargs="+", default=PAPER.fgsm_epsilons)
    parser.add_argument("--pgd-steps", type=int, default=4, help="the paper makes 40")
    parser.add_argument("--apgd-steps", type=int, default=10, help="the paper makes 100")
    parser.add_argument("--queries", type=int, default=500, help="the paper makes 5,000")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ROBUST201_DATA", "data")))
    parser.add_argument("--json", type=Path, help="also write all seconds here")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    configure_torch(threads=1)
    images = read_images(options.data, options.images)
    given: dict[str, dict[str, Any]] = {
        "fgsm": {"epsilons_255": options.fgsm_epsilons},
        "pgd": {"epsilons_255": options.epsilons, "steps": options.pgd_steps},
        "aa_apgd-ce": {"epsilons_255": options.epsilons, "steps": options.apgd_steps},
        "aa_square": {"epsilons_255": options.epsilons, "queries": options.queries},
    }
    parameters = {key: TASKS[key].parameters(**fields) for key, fields in given.items()}
    print(
        f"CPU seconds of one thread; {options.images} images of {images.dataset}, {options.pgd_steps} steps of PGD, "
        f"{options.apgd_steps} of APGD-CE, {options.queries} queries of Square; rounds: {options.rounds}"
    )
    found = {}
    for name in options.networks:
        found[name] = print_table(name, make_subject(name, options.data, images, parameters), options.rounds)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
