"""Perturbation of images by any task, and checks that each perturbed batch meets the following contract.

A task yields batches in any order and of any size, but each position once per strength. The images are float32, in
[0, 1] and inside their balls. Whenever the task yields a batch, torch's global state (random generators, gradient mode)
must be unchanged, since the caller's code runs until the next batch is requested.
"""

import dataclasses
from collections.abc import Iterator

import torch

from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import Context, Perturbed, Request, StageProgress, to_float
from robust201.attacks.random_numbers import RandomNumbers
from robust201.attacks.runner import run_attack
from robust201.core.errors import ConfigError, EvaluationError, PerturbationError
from robust201.networks.watch import Watch
from robust201.tasks import Task
from robust201.tasks.constraints import Constraint
from robust201.tasks.parameters import Parameters
from robust201.tasks.strengths import format_strength, unit_of


def perturb(
    task: Task, context: Context, parameters: Parameters, request: Request, *, name: str = ""
) -> Iterator[Perturbed]:
    """Perturb images with the context's engine, and check each batch.

    `name` is the name of the evaluation in messages; if it is empty, the key is used.

    Raises:
        ConfigError: the task has no function for the engine, the engine does not support the parameters, the network
            has too few classes, the images have an unsupported shape, or a ball is larger than the range of pixels.
        EvaluationError: the network returned NaN or infinity to an attack, or a custom attack changed the network.
        PerturbationError: the task failed, a batch breaks the contract, or an image is missing at the end. This and
            EvaluationError are raised by the iterator.
    """
    _check_support(task, context, parameters, request)
    watch = Watch(context.classifier.device, request.on_passes) if task.kind == "attack" else None
    if watch is not None and task.uses_runner(context.engine):
        request = _check_stages(request, watch, context, name=name or task.key)
        model = BatchedModel.of(context, watch, request.images[0].numel() if len(request.images) else 1)
        perturbed = run_attack(task, parameters, model, request, RandomNumbers(context.seed, context.key))
    else:
        if watch is not None:
            context = dataclasses.replace(context, classifier=context.classifier.watched(watch))
        perturbed = task.load(context.engine)(context, parameters, request)
    return check_batches(perturbed, context, request, task.constraint, watch, name=name or task.key)


def _check_stages(request: Request, watch: Watch, context: Context, *, name: str) -> Request:
    """Return the request, with a `save_stage` that first checks that all results of the network were finite.

    Otherwise the faults of a stage that fools no image, and yields no batch, would be lost: a resume has a new watch.
    """
    save = request.save_stage
    if save is None:
        return request

    def save_checked(progress: StageProgress) -> None:
        if int(watch.n_faults):
            raise _fault_error(watch, context, request, name)
        save(progress)

    return dataclasses.replace(request, save_stage=save_checked)


def _fault_error(watch: Watch, context: Context, request: Request, name: str) -> EvaluationError:
    faults = watch.describe_faults(context.attacked_model, to_float(request.images), request.labels, request.indices)
    return EvaluationError(
        f"Attacking images failed for {name}: {faults} An attack cannot move such images, so the network would look "
        "robust."
    )


def _check_support(task: Task, context: Context, parameters: Parameters, request: Request) -> None:
    shape = request.images.shape[1:]
    reasons = (
        parameters.unsupported_engine_reason(context.engine),
        parameters.unsupported_classes_reason(context.classifier.n_classes),
        parameters.unsupported_shape_reason(*shape[1:]),
        None if task.constraint is None else task.constraint.excessive_strength_reason(request.strengths, shape),
    )
    reason = next(filter(None, reasons), None)
    if reason is not None:
        raise ConfigError(f"Perturbing failed for {task.key}: {reason}")


def check_batches(
    perturbed: Iterator[Perturbed],
    context: Context,
    request: Request,
    constraint: Constraint | None,
    watch: Watch | None,
    *,
    name: str,
) -> Iterator[Perturbed]:
    """Check each perturbed batch against the contract, and yield it; the host waits once per batch.

    `constraint` is the ball around each image that must contain the perturbed image, or None for an unbounded attack.

    Raises:
        EvaluationError: the network returned NaN or infinity.
        PerturbationError: a batch has the wrong shape or type, pixels outside of [0, 1] or outside of the ball, or NaN;
            a position is repeated, or missing at the end.
    """
    n_yields = torch.from_numpy(request.are_yielded()).to(request.images.device, torch.int32)

    def read_count(violations: torch.Tensor) -> int:
        """Return a number of violations from the device; raise an error if the watch has recorded faults."""
        n_recorded = torch.zeros_like(violations) if watch is None else watch.n_faults
        n_violations, n_faults = torch.stack((violations, n_recorded)).cpu().tolist()
        if n_faults and watch is not None:
            raise _fault_error(watch, context, request, name)
        return int(n_violations)

    for batch in perturbed:
        _check_shape_and_type(batch, name, request)
        if read_count(_count_violations(batch, n_yields[batch.strength_index], request, constraint)):
            raise _violation_error(batch, name, n_yields, request, constraint)
        yield batch
    if read_count((n_yields != 1).sum()):
        raise _coverage_error(name, n_yields != 1)


def _count_violations(
    batch: Perturbed, n_yields: torch.Tensor, request: Request, constraint: Constraint | None
) -> torch.Tensor:
    """Add a batch's positions to the counts `n_yields`, and return the number of contract violations: () int64.

    All checks are computed on the device, so the host does not wait.
    """
    n_yields.index_add_(0, batch.positions, torch.ones_like(batch.positions, dtype=torch.int32))
    lowest, highest = batch.images.aminmax()
    # A comparison with NaN is false.
    violations = [(n_yields > 1).sum(), ~((lowest >= 0) & (highest <= 1))]
    if constraint is not None:
        distances = constraint.distances(batch.images - to_float(request.images.index_select(0, batch.positions)))
        violations.append((~(distances <= constraint.reach(request.strengths[batch.strength_index]))).sum())
    return torch.stack(violations).sum()


def _violation_error(
    batch: Perturbed, name: str, n_yields: torch.Tensor, request: Request, constraint: Constraint | None
) -> PerturbationError:
    """Return the error of a batch that breaks the contract; the host may wait."""
    if bool((n_yields > 1).any()):
        return _coverage_error(name, n_yields > 1)
    lowest, highest = float(batch.images.min()), float(batch.images.max())
    if constraint is None or not (lowest >= 0 and highest <= 1):
        advice = ", which must clamp pixels to [0, 1] and must not divide by zero"
        return _bug_error(name, "pixels in [0, 1]", f"[{lowest}, {highest}]", advice)
    strength = request.strengths[batch.strength_index]
    distance = float(constraint.distances(batch.images - to_float(request.images[batch.positions])).max())
    epsilon = format_strength(strength, unit_of(constraint, "attack"))
    ball = f"{constraint.name} distances up to epsilon {epsilon} ({constraint.radius(strength):.6g})"
    return _bug_error(name, ball, f"{distance:.6g}")


def _coverage_error(name: str, is_wrong: torch.Tensor) -> PerturbationError:
    position = int(is_wrong.nonzero()[0, 1])
    return _bug_error(name, "each image once per strength", f"image {position} more often or not at all")


def _check_shape_and_type(batch: Perturbed, name: str, request: Request) -> None:
    """Check a batch's shape and type, without waiting for the device."""
    shape = (len(batch.positions), *request.images.shape[1:])
    if tuple(batch.images.shape) != shape or batch.images.dtype != torch.float32:
        raise _bug_error(name, f"float32 images of shape {shape}", f"{batch.images.dtype} {tuple(batch.images.shape)}")


def _bug_error(name: str, expected: str, got: str, advice: str = "") -> PerturbationError:
    return PerturbationError(
        f"Perturbing failed for {name}: expected {expected}, got {got}. This is a bug in the attack{advice}. "
        "Correct or remove the attack."
    )
