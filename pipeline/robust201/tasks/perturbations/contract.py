"""How images are perturbed, and the checks that hold every perturbation to its contract.

A perturbation is a function ``(context, parameters, request)``, an attack of the fused engine one ``(job, parameters)``
(see `tasks.attack_kit.context` and `tasks.attack_kit.attack_job`). It gives batches, and may order and merge them as it
likes, as long as each position appears once per strength. It yields outside of any changed torch state (random
generators, gradient mode): what happens between two batches is the caller's.
"""

from collections.abc import Iterator

import torch

from robust201.core.errors import ConfigError, PerturbationError
from robust201.tasks import Task
from robust201.tasks.attack_kit.attack_job import job_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, to_float
from robust201.tasks.constraints import Constraint
from robust201.tasks.parameters import Parameters


def perturb(row: Task, context: Context, parameters: Parameters, request: Request) -> Iterator[Perturbed]:
    """Perturb images by the context's engine, unchecked.

    Raises:
        ConfigError: the row has no function for the engine, the engine cannot compute with the parameters, or the
            network has too few classes, or a ball is larger than the images' range.
    """
    refusal = parameters.refusal(context.engine) or parameters.class_refusal(context.classifier.n_classes)
    if refusal is None and row.constraint is not None:
        refusal = row.constraint.refusal(request.strengths, request.images.shape[1:])
    if refusal is not None:
        raise ConfigError(f"Perturbing failed for {row.key}: {refusal}")
    function = row.load(context.engine)
    if not row.wants_job(context.engine):
        perturbed: Iterator[Perturbed] = function(context, parameters, request)
        return perturbed
    radius = float if row.constraint is None else row.constraint.radius
    epsilons = [radius(strength) for strength in request.strengths]
    attacked: Iterator[Perturbed] = function(job_of(context, request, epsilons), parameters)
    return attacked


def checked(
    perturbed: Iterator[Perturbed],
    *,
    name: str,
    request: Request,
    constraint: Constraint | None,
) -> Iterator[Perturbed]:
    """Pass perturbed batches through, holding them to the contract.

    Args:
        perturbed: what a `perturb` function yields.
        name: the unit's label, for messages.
        request: the images given and the strengths asked for.
        constraint: the ball around each image that its perturbed one must lie in; None for no bound.

    Yields:
        The same batches. A strength is complete when N images of it have come: a repeated position raises at once.

    Raises:
        PerturbationError: a batch is of the wrong shape or type, names a strength or position that was not given, is
            out of [0, 1], NaN or out of its ball, repeats a position, or at the end a position is missing.
    """
    images, strengths = request.images, request.strengths
    counts = torch.zeros((len(strengths), len(images)), dtype=torch.int32, device=images.device)
    for batch in perturbed:
        _check_names(batch, name, len(images), strengths)
        _check_pixels(batch, name, request, constraint)
        seen = counts[batch.strength]
        seen.index_add_(0, batch.positions, torch.ones_like(batch.positions, dtype=torch.int32))
        if bool((seen > 1).any()):
            raise _coverage_error(name, counts, strengths)
        yield batch
    if not bool((counts == 1).all()):
        raise _coverage_error(name, counts, strengths)


def _coverage_error(name: str, counts: torch.Tensor, strengths: tuple[float, ...]) -> PerturbationError:
    surplus = (counts > 1).nonzero()
    strength, position = (surplus if len(surplus) else (counts != 1).nonzero())[0].tolist()
    return PerturbationError(
        f"Perturbing failed for {name}: expected each image once a strength, got image {position} "
        f"{int(counts[strength, position])} times at strength {strengths[strength]:g}. This is a bug in the attack."
    )


def _check_names(batch: Perturbed, name: str, n_images: int, strengths: tuple[float, ...]) -> None:
    if not 0 <= batch.strength < len(strengths):
        raise PerturbationError(
            f"Perturbing failed for {name}: expected a strength index below {len(strengths)}, got {batch.strength}. "
            "This is a bug in the attack."
        )
    if batch.positions.ndim != 1 or batch.positions.dtype != torch.int64 or len(batch.positions) == 0:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected one or more positions (B,) int64, got "
            f"{batch.positions.dtype} {tuple(batch.positions.shape)}. This is a bug in the attack."
        )
    first, last = int(batch.positions.min()), int(batch.positions.max())
    if first < 0 or last >= n_images:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected positions in [0, {n_images}), got {first} to {last}. "
            "This is a bug in the attack."
        )


def _check_pixels(batch: Perturbed, name: str, request: Request, constraint: Constraint | None) -> None:
    images = request.images
    shape = (len(batch.positions), *images.shape[1:])
    if tuple(batch.images.shape) != shape or batch.images.dtype != torch.float32:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected float32 images of shape {shape}, "
            f"got {batch.images.dtype} {tuple(batch.images.shape)}. This is a bug in the attack."
        )
    # min and max propagate NaN, and a comparison with NaN is false
    if not bool((batch.images.min() >= 0) & (batch.images.max() <= 1)):
        raise PerturbationError(
            f"Perturbing failed for {name}: expected pixels in [0, 1], got "
            f"[{float(batch.images.min())}, {float(batch.images.max())}]. "
            "This is a bug in the attack, or NaN in the network's weights."
        )
    if constraint is not None:
        strength = request.strengths[batch.strength]
        radius = constraint.radius(strength)
        distance = float(constraint.distances(batch.images - to_float(images[batch.positions])).max())
        if not distance <= constraint.reach(strength):
            raise PerturbationError(
                f"Perturbing failed for {name}: expected {constraint.name} distances up to epsilon {radius:.6g}, "
                f"got {distance:.6g}. This is a bug in the attack."
            )
