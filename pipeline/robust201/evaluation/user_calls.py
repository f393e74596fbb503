"""Calls to user-defined functions, and checks of their results."""

import dataclasses
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.context import Context, Perturbed, Request, positions_of, to_float
from robust201.core.errors import EvaluationError, PerturbationError
from robust201.core.user_code import describe_failure
from robust201.networks.network_check import NetworkGuard
from robust201.networks.watch import Watch


def call_attack(
    attack: Callable[..., object],
    function_name: str,
    function_parameters: Mapping[str, Any],
    context: Context,
    request: Request,
) -> Iterator[Perturbed]:
    """Perturb images batch by batch at every strength.

    `attack` is ``(model, images, labels, strength, **parameters)`` → images; `model` maps (B, channels, H, W) float32
    in [0, 1] to logits (B, C) and is differentiable; `images` have this format, and `labels` are (B,) int64.

    Raises:
        PerturbationError: the function failed, or did not return a tensor.
        EvaluationError: the function changed the network.
    """
    guard = NetworkGuard(context.classifier)
    prefix = f"Perturbing failed for {function_name}: expected a tensor of images, got "
    for strength_index, strength in enumerate(request.strengths):
        for batch_number, batch in context.batches(len(request.images)):
            pixels, labels = to_float(request.images[batch]), request.labels[batch].clone()
            with (
                context.seeded(batch_number),
                guard.check_unchanged(function_name),
                _report_failures(PerturbationError, prefix),
            ):
                perturbed = attack(context.classifier, pixels, labels, strength, **function_parameters)
            if not isinstance(perturbed, torch.Tensor):
                raise PerturbationError(f"{prefix}{type(perturbed).__name__}. Return the images from the function.")
            adversarial = perturbed.detach().to(request.images.device)
            yield Perturbed(strength_index, positions_of(batch, request.images.device), adversarial)


def count_passes(
    attack: Callable[..., object], function_parameters: Mapping[str, Any], context: Context, request: Request
) -> float:
    """Count the passes of an attack (see `call_attack`) on the first batch of a request, at its first strength.

    Returns:
        Passes per image as `Watch` counts them, at least 1; 1 if the function fails (its evaluation reports the error).
    """
    counts: list[int] = []
    watch = Watch(context.classifier.device, counts.append)
    context = dataclasses.replace(context, classifier=context.classifier.watched(watch))
    try:
        next(call_attack(attack, "", function_parameters, context, request))
    except (PerturbationError, EvaluationError):
        return 1.0
    return max(1.0, sum(counts) / min(len(request.images), context.batch_size))


def call_measure(
    measure: Callable[..., object],
    function_name: str,
    function_parameters: Mapping[str, Any],
    context: Context,
    request: Request,
) -> Mapping[str, NDArray[Any]]:
    """Measure a network on all images of a request at once.

    `measure` is ``(model, images, labels, **parameters)`` → mapping from columns to numbers or lists of numbers; the
    first three arguments are the same as for an attack.

    Raises:
        EvaluationError: the function failed, did not return numbers by column, or changed the network.
    """
    guard = NetworkGuard(context.classifier)
    prefix = f"Measuring failed for {function_name}: expected numbers by column, got "
    with context.seeded(0), guard.check_unchanged(function_name), _report_failures(EvaluationError, prefix):
        columns = measure(context.classifier, to_float(request.images), request.labels.clone(), **function_parameters)
    if not isinstance(columns, Mapping):
        raise EvaluationError(f"{prefix}{type(columns).__name__}. {_ADVICE}")
    return {str(name): _to_array(value, f"{name} of {function_name}") for name, value in columns.items()}


@contextmanager
def _report_failures(error_class: type[Exception], prefix: str) -> Iterator[None]:
    """Enable gradients for a user's function, and convert its exceptions to `error_class`."""
    try:
        with torch.enable_grad():
            yield
    except torch.AcceleratorError:
        raise  # the device failed, not the function
    except (Exception, SystemExit) as error:
        raise error_class(f"{prefix}{describe_failure(error)}. Correct the function.") from error


_ADVICE = "Return a dict of the declared columns from the function."


def _to_array(value: object, name: str) -> NDArray[np.float64]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        array = np.array(None)
    # NumPy would also convert booleans and text to numbers.
    if not array.size or array.dtype.kind not in "iuf":
        raise EvaluationError(
            f"Measuring failed for {name}: expected a number or a list of numbers, got {reprlib.repr(value)}. {_ADVICE}"
        )
    return array.astype(np.float64)
