"""The reference implementation of attacks (engine `reference`), which calls Foolbox or AutoAttack for each batch.

Sources: Rauber et al., "Foolbox Native", JOSS 5(53), 2020; Croce and Hein, "Reliable evaluation of adversarial
robustness with an ensemble of diverse parameter-free attacks", ICML 2020 (`pyautoattack`). FGSM and PGD attack every
image, including those that are misclassified without an attack. The other attacks change only images that are
classified correctly, and return the clean image if they do not succeed.
"""

import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import eagerpy
import numpy as np
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from pyautoattack.fab_pt import FABAttack_PT
from pyautoattack.square import SquareAttack

from robust201.attacks.apgd_steps import STEP_DECAY_THRESHOLD
from robust201.attacks.context import Context, Perturbed, Request, positions_of, to_float
from robust201.attacks.fmn import keep_in_balls, project_l2, select_nearest
from robust201.tasks.attacks import (
    Apgd,
    ApgdTargeted,
    Attack,
    FabTargeted,
    Fgsm,
    Fmn,
    Pgd,
    PgdVariant,
    Spatial,
    Square,
)
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Parameters

# Foolbox's model zoo, which is not used here, imports GitPython. By default GitPython fails if git is missing.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
with warnings.catch_warnings():
    # One of Foolbox's blur attacks imports SciPy's filters under their old name.
    warnings.filterwarnings("ignore", message=r"Please import `gaussian_filter`", category=DeprecationWarning)
    import foolbox

__all__ = ["attack", "foolbox"]


def attack(context: Context, options: Any, request: Request) -> Iterator[Perturbed]:
    """Attack a request's images with the attack's library, in batches of `context.batch_size` images."""
    if isinstance(options, Fmn):
        yield from _minimum_norm_batches(context, options, request)
        return
    stages = options.stages(context.key)
    for strength_index, strength in enumerate(request.strengths):
        radius = CONSTRAINTS[options.norm].radius(strength) if isinstance(options, Attack) else None
        for batch_number, batch in context.batches(len(request.images)):
            positions = positions_of(batch, request.images.device)
            pixels, labels = to_float(request.images[batch]), request.labels[batch]
            run = functools.partial(_run, context, batch_number, radius)
            if type(options) in _FOOLBOX_ATTACKS:
                yield Perturbed(strength_index, positions, run(options, pixels, labels))
                continue
            stage_results = _run_stages(context, request, stages, run, pixels, labels)
            if len(stages) == 1:  # evaluating whole batches gives the same rounding at all epsilons
                rows, images = (torch.cat(tensors) for tensors in zip(*stage_results, strict=True))
                yield Perturbed(strength_index, positions, images[rows.argsort()])
            else:
                yield from (Perturbed(strength_index, positions[rows], images) for rows, images in stage_results)


_Run = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""(options, pixels (B, C, H, W), labels (B,)) → perturbed pixels."""


def _run(
    context: Context, batch_number: int, radius: float | None, options: Any, pixels: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    with context.seeded(batch_number) as seed:
        if type(options) in _FOOLBOX_ATTACKS:
            perturbed = _run_foolbox(context, options, radius, pixels, labels)
        else:
            with torch.no_grad():
                perturbed = _AUTOATTACK_ATTACKS[type(options)](context, options, radius, seed).perturb(pixels, labels)
    # Rounding in interpolations and projections may move values slightly outside [0, 1].
    return perturbed.detach().clamp(0, 1)


def _run_stages(
    context: Context,
    request: Request,
    stages: Sequence[tuple[str, Parameters]],
    run: _Run,
    pixels: torch.Tensor,
    labels: torch.Tensor,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Run AutoAttack's attacks on a batch, each on the images that still resist, and yield rows and images."""
    remaining, images = torch.arange(len(pixels), device=pixels.device), pixels
    for number, (key, options) in enumerate([("", None), *stages]):
        if number:
            if request.on_stage is not None and len(stages) > 1:
                request.on_stage(number, key, len(remaining))
            images = run(options, pixels[remaining], labels[remaining])
        correct = context.classifier.logits(images).argmax(dim=1) == labels[remaining]
        if not correct.all():
            yield remaining[~correct], images[~correct]
        remaining = remaining[correct]
        if len(remaining) == 0:
            return
    yield remaining, pixels[remaining]


# --- Foolbox -------------------------------------------------------------------------------------------------------


def _linf_pgd(options: Pgd | PgdVariant) -> Any:
    return foolbox.attacks.LinfPGD(
        rel_stepsize=options.rel_stepsize, steps=options.steps, random_start=options.random_start
    )


def _pgd_variant(options: PgdVariant) -> Any:
    if options.norm == "Linf":
        return _linf_pgd(options)
    return foolbox.attacks.L2PGD(abs_stepsize=options.step_size, steps=options.steps, random_start=options.random_start)


def _spatial(options: Spatial) -> Any:
    return foolbox.attacks.SpatialAttack(
        max_translation=options.max_translation,
        max_rotation=options.max_rotation,
        num_translations=options.translations,
        num_rotations=options.rotations,
        grid_search=True,
    )


_FOOLBOX_ATTACKS: Mapping[type[Parameters], Callable[[Any], Any]] = {
    Fgsm: lambda _options: foolbox.attacks.LinfFastGradientAttack(),
    Pgd: _linf_pgd,
    PgdVariant: _pgd_variant,
    Spatial: _spatial,
}
"""Class of the options → function that makes Foolbox's attack. `Fmn` is missing: a run serves all strengths (see
`_minimum_norm_batches`)."""


def _run_foolbox(
    context: Context, options: Any, radius: float | None, pixels: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    criterion = _criterion(context, options, pixels, labels)
    foolbox_attack = _FOOLBOX_ATTACKS[type(options)](options)
    with warnings.catch_warnings(), torch.enable_grad():
        # torch warns because Foolbox's spatial attack calls torch.meshgrid without `indexing`.
        warnings.filterwarnings("ignore", message="torch.meshgrid: in an upcoming release")
        perturbed: torch.Tensor = foolbox_attack(_foolbox_model(context), pixels, criterion, epsilons=radius)[1]
    return perturbed


def _foolbox_model(context: Context) -> Any:
    return foolbox.PyTorchModel(context.classifier, bounds=(0, 1), device=context.classifier.device)


def _criterion(context: Context, options: Any, pixels: torch.Tensor, labels: torch.Tensor) -> Any:
    if isinstance(options, Pgd) and options.target == "least_likely":
        return foolbox.criteria.TargetedMisclassification(context.classifier.logits(pixels).argmin(dim=1))
    if isinstance(options, PgdVariant) and options.label == "predicted":
        labels = context.classifier.logits(pixels).argmax(dim=1)
    return foolbox.criteria.Misclassification(labels)


class _ProjectedL2FMN(foolbox.attacks.L2FMNAttack):  # type: ignore[misc]  # the library has no types
    """Foolbox's attack with the published projection to the ball of epsilon, which Foolbox 3.3.4 omits."""

    def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
        return x0 + eagerpy.astensor(project_l2((x - x0).raw, epsilon.raw))


def _minimum_norm_classes(options: Fmn) -> list[Any]:
    """Return Foolbox's class for each run of the attack."""
    if options.norm != "L2":
        return [{"Linf": foolbox.attacks.LInfFMNAttack, "L1": foolbox.attacks.L1FMNAttack}[options.norm]]
    projected, unprojected = _ProjectedL2FMN, foolbox.attacks.L2FMNAttack
    return {"ball": [projected], "none": [unprojected], "both": [projected, unprojected]}[options.projection]


def _minimum_norm_batches(context: Context, options: Fmn, request: Request) -> Iterator[Perturbed]:
    """Attack every batch; each run of the attack serves all strengths."""
    attacks = [
        library_class(steps=options.steps, max_stepsize=options.max_stepsize, gamma=options.gamma)
        for library_class in _minimum_norm_classes(options)
    ]
    constraint = CONSTRAINTS[options.norm]
    for batch_number, batch in context.batches(len(request.images)):
        clean = to_float(request.images[batch])
        with context.seeded(batch_number), torch.enable_grad():
            criterion = foolbox.criteria.Misclassification(request.labels[batch])
            results = [attack.run(_foolbox_model(context), clean, criterion).detach() for attack in attacks]
        nearest = select_nearest(clean, results, options.norm)
        for strength_index, strength in enumerate(request.strengths):
            radii = np.full(len(clean), constraint.radius(strength))
            perturbed = keep_in_balls(constraint, clean, nearest, radii)
            yield Perturbed(strength_index, positions_of(batch, clean.device), perturbed)


# --- AutoAttack ----------------------------------------------------------------------------------------------------


def _make_apgd(context: Context, options: Apgd, radius: float, seed: int) -> Any:
    arguments = {
        "n_iter": options.steps,
        "n_restarts": options.restarts,
        "norm": options.norm,
        "eps": radius,
        "seed": seed,
        "eot_iter": 1,
        "rho": STEP_DECAY_THRESHOLD,
        "device": context.classifier.device,
        "logger": logging.getLogger("auto-attack"),
        "use_largereps": options.norm == "L1" and options.larger_epsilons,
    }
    if isinstance(options, ApgdTargeted):
        n_targets = min(options.targets, context.classifier.n_classes - 1)
        return APGDAttack_targeted(context.classifier, n_target_classes=n_targets, **arguments)
    return APGDAttack(context.classifier, loss="ce", **arguments)


def _make_fab(context: Context, options: FabTargeted, radius: float, seed: int) -> Any:
    return FABAttack_PT(
        context.classifier,
        n_restarts=1,
        n_iter=options.steps,
        eps=radius,
        seed=seed,
        norm=options.norm,
        device=context.classifier.device,
        targeted=True,
        n_target_classes=min(options.targets, context.classifier.n_classes - 1),
    )


class _SquareWithTiesMisclassified(SquareAttack):  # type: ignore[misc]  # the library has no types
    """Treats images with a margin of 0 or NaN as misclassified; with such images, the library can fail in L2 and L1."""

    def margin_and_loss(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        margins, losses = super().margin_and_loss(x, y)
        return torch.where(margins > 0, margins, -1.0), losses


def _make_square(context: Context, options: Square, radius: float, seed: int) -> Any:
    attack_class = SquareAttack if options.norm == "Linf" else _SquareWithTiesMisclassified
    return attack_class(
        context.classifier,
        norm=options.norm,
        n_queries=options.queries,
        eps=radius,
        p_init=options.p_init,
        n_restarts=options.restarts,
        seed=seed,
        loss="margin",
        resc_schedule=False,
        device=context.classifier.device,
    )


_AUTOATTACK_ATTACKS: Mapping[type[Parameters], Callable[..., Any]] = {
    Apgd: _make_apgd,
    ApgdTargeted: _make_apgd,
    FabTargeted: _make_fab,
    Square: _make_square,
}
"""Class of the options → function that makes AutoAttack's attack: (context, options, radius, seed)."""
