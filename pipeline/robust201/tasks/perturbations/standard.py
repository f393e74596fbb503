"""AutoAttack's standard version, which runs four attacks, each on the images that still resist.

Source: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", ICML 2020; `pyautoattack.AutoAttack` with `version="standard"`. The attacks are APGD on the cross-entropy,
APGD on the targeted DLR loss, targeted FAB, and Square. In the fused engine each attack uses the same random numbers as
when it is evaluated under its own key, so the images that resist the first attack are exactly those that resist
`aa_apgd-ce`. Images that resist all four attacks are returned unchanged.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import find_attack
from robust201.tasks.attack_kit.attack_job import AttackJob, SingleRun, attack_with_restarts, batches_by_strength
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Apgd, ApgdTargeted, FabTargeted, Square, Standard
from robust201.tasks.perturbations import apgd, apgd_targeted, fab, square, square_lp

if TYPE_CHECKING:
    from pyautoattack import AutoAttack
    from pyautoattack.autoattack import AttackName

    LibraryStage = tuple[AttackName, Callable[[AutoAttack], None]]
    """AutoAttack's name of an attack, and a function that sets the attack's parameters on a new `AutoAttack`."""


def reference(context: Context, parameters: Standard, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack, one of its attacks at a time, each on the images that still resist."""
    attack_parameters = _attack_parameters(parameters)
    stages: tuple[LibraryStage, ...] = (
        ("apgd-ce", lambda adversary: apgd.configure_library(adversary, context, attack_parameters.apgd_ce)),
        (
            "apgd-t",
            lambda adversary: apgd_targeted.configure_library(adversary, context, attack_parameters.apgd_targeted),
        ),
        ("fab-t", lambda adversary: fab.configure_library(adversary, context, attack_parameters.fab_targeted)),
        ("square", lambda adversary: square.configure_library(adversary, context, attack_parameters.square)),
    )
    constraint = CONSTRAINTS[parameters.norm]
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import run_autoattack

    for strength_index, strength in enumerate(request.strengths):
        for batch_number, batch in context.batches(len(request.images)):
            positions = positions_of(batch, request.images.device)
            pixels, labels = to_float(request.images[batch]), request.labels[batch]
            correct = context.classifier.logits(pixels).argmax(dim=1) == labels
            if not correct.all():
                yield Perturbed(strength_index, positions[~correct], pixels[~correct])
            remaining = correct.nonzero().flatten()
            for stage, (name, configure) in enumerate(stages, start=1):
                if len(remaining) == 0:
                    break
                if request.on_stage is not None:
                    request.on_stage(stage, f"aa_{name}")
                adversarial = run_autoattack(
                    context,
                    batch_number,
                    (name,),
                    configure,
                    constraint,
                    strength,
                    (pixels[remaining], labels[remaining]),
                )
                correct = context.classifier.logits(adversarial).argmax(dim=1) == labels[remaining]
                if not correct.all():
                    yield Perturbed(strength_index, positions[remaining[~correct]], adversarial[~correct])
                remaining = remaining[correct]
            if len(remaining):
                yield Perturbed(strength_index, positions[remaining], pixels[remaining])


class _AttackParameters(NamedTuple):
    """Parameters of the four attacks."""

    apgd_ce: Apgd
    apgd_targeted: ApgdTargeted
    fab_targeted: FabTargeted
    square: Square


def _attack_parameters(parameters: Standard) -> _AttackParameters:
    """Return the parameters of the four attacks: the requested steps and queries, and the norm's defaults otherwise."""
    steps, queries, norm = parameters.steps, parameters.queries, parameters.norm
    return _AttackParameters(
        apgd_ce=find_attack("aa_apgd-ce", norm).parameters(steps=steps),
        apgd_targeted=find_attack("aa_apgd-t", norm).parameters(steps=steps),
        fab_targeted=find_attack("aa_fab-t", norm).parameters(steps=steps),
        square=find_attack("aa_square", norm).parameters(queries=queries),
    )


@dataclasses.dataclass(frozen=True)
class Stage:
    """One attack of an ensemble.

    Attributes:
        key: key of the attack, which determines its random numbers.
        run: function that runs the attack once.
        n_runs: number of runs.
        group_size: number of samples that are attacked together.
        groups_by_image: whether a group contains its images at all epsilons, for speed.
    """

    key: str
    run: SingleRun
    n_runs: int
    group_size: int
    groups_by_image: bool = False


def _stages(job: AttackJob, parameters: Standard) -> tuple[Stage, ...]:
    attack_parameters = _attack_parameters(parameters)
    batch_size = job.batching.batch_size
    square_run = square.single_run if parameters.norm == "Linf" else square_lp.single_run
    return (
        Stage(
            find_attack("aa_apgd-ce", parameters.norm).key,
            apgd.single_run(attack_parameters.apgd_ce),
            attack_parameters.apgd_ce.restarts,
            batch_size,
        ),
        Stage(
            find_attack("aa_apgd-t", parameters.norm).key,
            apgd_targeted.single_run(attack_parameters.apgd_targeted),
            attack_parameters.apgd_targeted.targets * attack_parameters.apgd_targeted.restarts,
            batch_size,
        ),
        Stage(
            find_attack("aa_fab-t", parameters.norm).key,
            fab.single_run(attack_parameters.fab_targeted),
            attack_parameters.fab_targeted.targets,
            batch_size * len(job.epsilons),
            groups_by_image=True,
        ),
        Stage(
            find_attack("aa_square", parameters.norm).key,
            square_run(attack_parameters.square),
            attack_parameters.square.restarts,
            max(batch_size, job.batching.pool_size),
        ),
    )


def fused(job: AttackJob, parameters: Standard) -> Iterator[Perturbed]:
    """Attack at all epsilons together. The samples that resist one stage fill the batches of the next stage."""
    correct = job.is_correct()
    for samples in job.chunks(np.flatnonzero(~correct)):
        yield from batches_by_strength(samples, samples.clean)
    correct_positions = np.flatnonzero(correct)
    strength_indices = np.arange(len(job.epsilons)).repeat(len(correct_positions))
    positions = np.tile(correct_positions, len(job.epsilons))
    remaining = np.arange(len(strength_indices))
    for stage_number, stage in enumerate(_stages(job, parameters), start=1):
        if job.on_stage is not None:
            job.on_stage(stage_number, stage.key)
        stage_job = dataclasses.replace(job, random_numbers=job.random_numbers.for_key(stage.key))
        resisting = [np.zeros(0, np.int64)]
        for rows in _split(job, remaining, positions, stage):
            samples = stage_job.samples(strength_indices[rows], positions[rows])
            adversarial, misclassified = attack_with_restarts(stage_job, samples, stage.run, stage.n_runs)
            is_fooled = misclassified.cpu().numpy()
            fooled_rows = np.flatnonzero(is_fooled)
            if len(fooled_rows):
                yield from batches_by_strength(
                    samples.take(fooled_rows),
                    adversarial[torch.from_numpy(fooled_rows).to(adversarial.device)],
                )
            resisting.append(rows[~is_fooled])
        remaining = np.sort(np.concatenate(resisting))
    for start in range(0, len(remaining), job.batching.batch_size):
        rows = remaining[start : start + job.batching.batch_size]
        samples = job.samples(strength_indices[rows], positions[rows])
        yield from batches_by_strength(samples, samples.clean)


def _split(
    job: AttackJob, remaining: NDArray[np.int64], positions: NDArray[np.int64], stage: Stage
) -> Iterator[NDArray[np.int64]]:
    """Split the remaining samples, numbered strength by strength, into groups that a stage attacks together."""
    ordered = remaining[np.argsort(positions[remaining], kind="stable")] if stage.groups_by_image else remaining
    group_size = max(1, len(remaining) if job.batching.uses_library_batches else stage.group_size)
    for start in range(0, len(remaining), group_size):
        yield np.sort(ordered[start : start + group_size])
