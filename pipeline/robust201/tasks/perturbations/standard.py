"""AutoAttack's standard version: four attacks one after the other, each on the images that resist so far.

Source: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", ICML 2020; `pyautoattack.AutoAttack` with `version="standard"`. APGD on the cross-entropy, on the targeted DLR
loss, FAB towards one class after the other, Square. In the fused engine each draws what its own key draws, so the
images that the first leaves are those that `aa_apgd-ce` leaves. Images that resist all four come back clean.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks.attack_kit.attack_job import AttackJob, SingleRun, attack_with_restarts, batches_by_strength
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float
from robust201.tasks.constraints import CONSTRAINTS, Constraint
from robust201.tasks.parameters import Apgd, ApgdTargeted, FabTargeted, Square, Standard, in_ball
from robust201.tasks.perturbations import apgd, apgd_targeted, fab, fab_targeted, square, square_lp

if TYPE_CHECKING:
    from pyautoattack import AutoAttack
    from pyautoattack.autoattack import AttackName

    LibraryStage = tuple[AttackName, Callable[[AutoAttack], None]]


def reference(context: Context, parameters: Standard, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack, one of its attacks at a time, so that it shows what each leaves."""
    given = _attacks(parameters)
    stages: tuple[LibraryStage, ...] = (
        ("apgd-ce", lambda adversary: apgd.configure_library(adversary, context, given.ce, "ce")),
        ("apgd-t", lambda adversary: apgd_targeted.configure_library(adversary, context, given.targeted)),
        ("fab-t", lambda adversary: fab.configure_library(adversary, context, given.boundary)),
        ("square", lambda adversary: square.configure_library(adversary, context, given.queries)),
    )
    yield from library_stages(context, CONSTRAINTS[parameters.norm], request, stages)


def library_stages(
    context: Context, constraint: Constraint, request: Request, stages: "Sequence[LibraryStage]"
) -> Iterator[Perturbed]:
    """Run some of AutoAttack's attacks with the library, each on the images that resist so far."""
    # Imported here: the fused engine must not wait for a library that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import run_autoattack

    for strength, value in enumerate(request.strengths):
        for number, batch in context.batches(len(request.images)):
            positions = positions_of(batch, request.images.device)
            pixels, labels = to_float(request.images[batch]), request.labels[batch]
            right = context.classifier.logits(pixels).argmax(dim=1) == labels
            if not right.all():
                yield Perturbed(strength, positions[~right], pixels[~right])
            left = right.nonzero().flatten()
            for stage, (name, configure) in enumerate(stages, start=1):
                if len(left) == 0:
                    break
                if request.on_stage is not None:
                    request.on_stage(stage, f"aa_{name}")
                attacked = run_autoattack(
                    context, number, (name,), configure, constraint, value, (pixels[left], labels[left])
                )
                right = context.classifier.logits(attacked).argmax(dim=1) == labels[left]
                if not right.all():
                    yield Perturbed(strength, positions[left[~right]], attacked[~right], stage)
                left = left[right]
            if len(left):
                yield Perturbed(strength, positions[left], pixels[left])


class _Attacks(NamedTuple):
    """Parameters of the four."""

    ce: Apgd
    targeted: ApgdTargeted
    boundary: FabTargeted
    queries: Square


def _attacks(parameters: Standard) -> _Attacks:
    """Give the four their parameters: AutoAttack's defaults in that norm, but for what is given."""
    steps, queries = parameters.steps, parameters.queries
    norm = parameters.norm
    return _Attacks(
        ce=in_ball(Apgd, norm)(steps=steps),
        targeted=in_ball(ApgdTargeted, norm)(steps=steps),
        boundary=in_ball(FabTargeted, norm)(steps=steps),
        queries=in_ball(Square, norm)(queries=queries),
    )


@dataclasses.dataclass(frozen=True)
class Stage:
    """One of the attacks.

    Attributes:
        key: its own, which names its draws.
        run: one run of it.
        runs: how many there are.
        size: samples that are attacked side by side.
        by_image: whether all epsilons of an image are best attacked side by side.
    """

    key: str
    run: SingleRun
    runs: int
    size: int
    by_image: bool = False


def _stages(job: AttackJob, parameters: Standard) -> tuple[Stage, ...]:
    ce, targeted, boundary, queries = _attacks(parameters)
    ball = "" if parameters.norm == "Linf" else f"_{parameters.norm.lower()}"
    samples, pool = job.batching.samples, max(job.batching.samples, job.batching.pool)
    single_run = square.single_run if parameters.norm == "Linf" else square_lp.single_run
    return (
        Stage(f"aa_apgd-ce{ball}", apgd.single_run(ce), ce.restarts, samples),
        Stage(f"aa_apgd-t{ball}", apgd_targeted.single_run(targeted), targeted.targets * targeted.restarts, samples),
        Stage(
            f"aa_fab-t{ball}",
            fab_targeted.single_run(boundary),
            boundary.targets,
            samples * len(job.epsilons),
            by_image=True,
        ),
        Stage(f"aa_square{ball}", single_run(queries), queries.restarts, pool),
    )


def fused(job: AttackJob, parameters: Standard) -> Iterator[Perturbed]:
    """Attack all epsilons together."""
    yield from attack_in_stages(job, _stages(job, parameters))


def attack_in_stages(job: AttackJob, stages: Sequence[Stage]) -> Iterator[Perturbed]:
    """Attack all epsilons together; what one stage leaves fills the batches of the next."""
    correct = job.correct()
    for samples in job.chunks(np.flatnonzero(~correct)):
        yield from batches_by_strength(samples, samples.clean)
    chosen = np.flatnonzero(correct)
    strengths = np.arange(len(job.epsilons)).repeat(len(chosen))
    positions = np.tile(chosen, len(job.epsilons))
    left = np.arange(len(strengths))
    for number, stage in enumerate(stages, start=1):
        if job.on_stage is not None:
            job.on_stage(number, stage.key)
        staged = dataclasses.replace(job, draws=job.draws.of_key(stage.key))
        resisting = [np.zeros(0, np.int64)]
        for rows in _cut(job, left, positions, stage):
            samples = staged.samples(strengths[rows], positions[rows])
            found, wrong = attack_with_restarts(staged, samples, stage.run, stage.runs)
            fooled = wrong.cpu().numpy()
            places = np.flatnonzero(fooled)
            if len(places):
                yield from batches_by_strength(
                    samples.take(places), found[torch.from_numpy(places).to(found.device)], number
                )
            resisting.append(rows[~fooled])
        left = np.sort(np.concatenate(resisting))
    for start in range(0, len(left), job.batching.samples):
        rows = left[start : start + job.batching.samples]
        samples = job.samples(strengths[rows], positions[rows])
        yield from batches_by_strength(samples, samples.clean)


def _cut(
    job: AttackJob, left: NDArray[np.int64], positions: NDArray[np.int64], stage: Stage
) -> Iterator[NDArray[np.int64]]:
    """Cut samples, which are numbered strength by strength, into what a stage attacks side by side."""
    ordered = left[np.argsort(positions[left], kind="stable")] if stage.by_image else left
    size = max(1, len(left) if job.batching.as_library else stage.size)
    for start in range(0, len(left), size):
        yield np.sort(ordered[start : start + size])
