"""Perturbation of images, and checks that the perturbation keeps its contract.

A perturbation is a function ``(context, parameters, request)`` (see `tasks.attack_kit.context`). An attack of the fused
engine is a function ``(job, parameters)`` instead (see `tasks.attack_kit.attack_job`). The function yields batches in
any order and of any size, as long as each position appears once per strength. When it yields, torch's global state
(random generators, gradient mode) must be unchanged, since the caller's code runs between two batches.
"""

import dataclasses
from collections.abc import Iterator
from typing import NoReturn

import torch

from robust201.core.errors import ConfigError, NetworkError, PerturbationError
from robust201.models.watch import Watch, WatchedModel
from robust201.tasks import Task
from robust201.tasks.attack_kit.attack_job import make_job
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, to_float
from robust201.tasks.constraints import Constraint
from robust201.tasks.parameters import Parameters


def perturb(
    task: Task, context: Context, parameters: Parameters, request: Request, *, name: str = ""
) -> Iterator[Perturbed]:
    """Perturb images with the context's engine, without checks of the images.

    Args:
        task: the task.
        context: the network, and the sources of random numbers and of images.
        parameters: the task's parameters.
        request: images and strengths.
        name: name of the evaluation, for messages; empty for the key.

    Raises:
        ConfigError: the task has no function for the engine, the engine does not support the parameters, the network
            has too few classes, the images have an unsupported shape, or a ball is larger than the range of pixels.
        NetworkError: the network returned NaN or infinity to an attack (raised by the iterator).
    """
    reason = parameters.unsupported_engine_reason(context.engine)
    if reason is None:
        reason = parameters.unsupported_classes_reason(context.classifier.n_classes)
    if reason is None:
        reason = parameters.unsupported_shape_reason(*request.images.shape[2:])
    if reason is None and task.constraint is not None:
        reason = task.constraint.excessive_strength_reason(request.strengths, request.images.shape[1:])
    if reason is not None:
        raise ConfigError(f"Perturbing failed for {task.key}: {reason}")
    function = task.load(context.engine)
    if task.kind != "attack":
        perturbed: Iterator[Perturbed] = function(context, parameters, request)
        return perturbed
    watch = Watch(context.classifier.device)
    if task.takes_job(context.engine):
        radius = float if task.constraint is None else task.constraint.radius
        epsilons = [radius(strength) for strength in request.strengths]
        watched_model = WatchedModel(context.attacked_model, watch)
        adversarial = function(make_job(context, request, epsilons, watched_model), parameters)
    else:
        watched_context = dataclasses.replace(context, classifier=context.classifier.watched(watch))
        adversarial = function(watched_context, parameters, request)
    return _check_results(adversarial, watch, context, request, name or task.key)


def _check_results(
    perturbed: Iterator[Perturbed], watch: Watch, context: Context, request: Request, name: str
) -> Iterator[Perturbed]:
    """Yield the batches of an attack, after checking that the network returned only finite results to it."""

    def check() -> None:
        if watch.has_faults():
            faults = watch.describe_faults(
                context.attacked_model, to_float(request.images), request.labels, request.indices
            )
            raise NetworkError(f"Attacking images failed for {name}: {faults}")

    for batch in perturbed:
        check()
        yield batch
    check()


def check_batches(
    perturbed: Iterator[Perturbed],
    *,
    name: str,
    request: Request,
    constraint: Constraint | None,
) -> Iterator[Perturbed]:
    """Check each perturbed batch against the contract, and yield it.

    Args:
        perturbed: the batches of a perturbation.
        name: name of the evaluation, for messages.
        request: original images and strengths.
        constraint: ball around each original image that must contain the perturbed image; None for an unbounded attack.

    Yields:
        The same batches. A repeated position raises an error immediately, a missing one at the end.

    Raises:
        PerturbationError: a batch has the wrong shape or type, an unknown strength or position, pixels outside of [0,
            1] or outside of the ball, or NaN; a position is repeated, or missing at the end.
    """
    images, strengths = request.images, request.strengths
    n_yields = torch.zeros((len(strengths), len(images)), dtype=torch.int32, device=images.device)
    for batch in perturbed:
        _check_form(batch, name, images, strengths)
        if _count_violations(batch, n_yields[batch.strength_index], request, constraint):
            _explain_violation(batch, name, n_yields, request, constraint)
        yield batch
    if not bool((n_yields == 1).all()):
        raise _coverage_error(name, n_yields, strengths)


def _count_violations(batch: Perturbed, n_yields: torch.Tensor, request: Request, constraint: Constraint | None) -> int:
    """Count a batch's positions in `n_yields`, and return how many of its values break the contract.

    All checks are computed on the device, so the host waits once per batch.
    """
    n_images = len(request.images)
    positions = batch.positions.clamp(0, n_images - 1)  # an index outside would end the process on a GPU
    n_yields.index_add_(0, positions, torch.ones_like(positions, dtype=torch.int32))
    # A comparison with NaN is false.
    is_pixel_valid = (batch.images >= 0) & (batch.images <= 1)
    violations = [(positions != batch.positions).sum(), (n_yields > 1).sum(), (~is_pixel_valid).sum()]
    if constraint is not None:
        distances = constraint.distances(batch.images - to_float(request.images[positions]))
        violations.append((~(distances <= constraint.reach(request.strengths[batch.strength_index]))).sum())
    return int(torch.stack(violations).sum())


def _explain_violation(
    batch: Perturbed, name: str, n_yields: torch.Tensor, request: Request, constraint: Constraint | None
) -> NoReturn:
    """Raise the error of a batch that breaks the contract; the host may wait."""
    min_position, max_position = int(batch.positions.min()), int(batch.positions.max())
    if min_position < 0 or max_position >= len(request.images):
        raise PerturbationError(
            f"Perturbing failed for {name}: expected positions in [0, {len(request.images)}), got {min_position} to "
            f"{max_position}. This is a bug in the attack."
        )
    if bool((n_yields > 1).any()):
        raise _coverage_error(name, n_yields, request.strengths)
    lowest, highest = float(batch.images.min()), float(batch.images.max())
    if constraint is None or not (lowest >= 0 and highest <= 1):
        raise PerturbationError(
            f"Perturbing failed for {name}: expected pixels in [0, 1], got [{lowest}, {highest}]. This is a bug in the "
            "attack, which must clamp pixels to [0, 1] and must not divide by zero."
        )
    strength = request.strengths[batch.strength_index]
    distance = float(constraint.distances(batch.images - to_float(request.images[batch.positions])).max())
    raise PerturbationError(
        f"Perturbing failed for {name}: expected {constraint.name} distances up to epsilon "
        f"{constraint.radius(strength):.6g} (strength {strength:g}), got {distance:.6g}. This is a bug in the attack."
    )


def _coverage_error(name: str, n_yields: torch.Tensor, strengths: tuple[float, ...]) -> PerturbationError:
    repeated = (n_yields > 1).nonzero()
    strength_index, position = (repeated if len(repeated) else (n_yields != 1).nonzero())[0].tolist()
    return PerturbationError(
        f"Perturbing failed for {name}: expected each image once per strength, got "
        f"{int(n_yields[strength_index, position])} copies of image {position} at strength "
        f"{strengths[strength_index]:g}. This is a bug in the attack."
    )


def _check_form(batch: Perturbed, name: str, images: torch.Tensor, strengths: tuple[float, ...]) -> None:
    """Check what the host knows about a batch: strength, types and shapes."""
    if not 0 <= batch.strength_index < len(strengths):
        raise PerturbationError(
            f"Perturbing failed for {name}: expected a strength index below {len(strengths)}, got "
            f"{batch.strength_index}. This is a bug in the attack."
        )
    if batch.positions.ndim != 1 or batch.positions.dtype != torch.int64 or len(batch.positions) == 0:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected one or more positions (B,) int64, got "
            f"{batch.positions.dtype} {tuple(batch.positions.shape)}. This is a bug in the attack."
        )
    shape = (len(batch.positions), *images.shape[1:])
    if tuple(batch.images.shape) != shape or batch.images.dtype != torch.float32:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected float32 images of shape {shape}, "
            f"got {batch.images.dtype} {tuple(batch.images.shape)}. This is a bug in the attack."
        )
