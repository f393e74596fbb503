"""Calls to user-defined functions, and checks of their results."""

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, PerturbationError
from robust201.core.user_code import describe_failure
from robust201.models.guarded_network import NetworkGuard
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float


def call_attack(
    attack: Callable[..., object],
    function_name: str,
    function_parameters: Mapping[str, Any],
    context: Context,
    request: Request,
) -> Iterator[Perturbed]:
    """Perturb images batch by batch at every strength.

    Args:
        attack: ``(model, images, labels, strength, **parameters)`` → images; `model` maps (B, 3, H, W) float32 in
            [0, 1] to logits (B, C) and is differentiable; `images` are such pixels, and `labels` are (B,) int64.
        function_name: the function's name, for messages.
        function_parameters: the function's parameters from the sweep.
        context: the network, and the seed of the function's random numbers.
        request: images and strengths.

    Raises:
        PerturbationError: the function failed, or did not return a tensor.
        EvaluationError: the function changed the network.
    """
    network = NetworkGuard(context.classifier)
    for strength_index, strength in enumerate(request.strengths):
        for batch_number, batch in context.batches(len(request.images)):
            with context.seeded(batch_number), torch.enable_grad(), network.check_unchanged(function_name):
                pixels, labels = to_float(request.images[batch]), request.labels[batch].clone()
                try:
                    perturbed = attack(context.classifier, pixels, labels, strength, **function_parameters)
                except torch.AcceleratorError:
                    raise  # the device failed, not the function
                except (Exception, SystemExit) as error:
                    raise PerturbationError(
                        f"Perturbing failed for {function_name}: expected a tensor of images, got "
                        f"{describe_failure(error)}. Correct the function."
                    ) from error
            if not isinstance(perturbed, torch.Tensor):
                raise PerturbationError(
                    f"Perturbing failed for {function_name}: expected a tensor of images, got "
                    f"{type(perturbed).__name__}. Return the images from the function."
                )
            adversarial = perturbed.detach().to(request.images.device)
            yield Perturbed(strength_index, positions_of(batch, request.images.device), adversarial)


def call_measure(
    measure: Callable[..., object],
    function_name: str,
    function_parameters: Mapping[str, Any],
    context: Context,
    request: Request,
) -> Mapping[str, NDArray[Any]]:
    """Measure a network on all images of a request at once.

    Args:
        measure: ``(model, images, labels, **parameters)`` → mapping from columns to numbers or lists of numbers;
            the first three arguments are the same as for an attack.
        function_name: the function's name, for messages.
        function_parameters: the function's parameters from the sweep.
        context: the network, and the seed of the function's random numbers.
        request: the images.

    Raises:
        EvaluationError: the function failed, did not return numbers by column, or changed the network.
    """
    network = NetworkGuard(context.classifier)
    with context.seeded(0), torch.enable_grad(), network.check_unchanged(function_name):
        try:
            columns = measure(
                context.classifier, to_float(request.images), request.labels.clone(), **function_parameters
            )
        except torch.AcceleratorError:
            raise  # the device failed, not the function
        except (Exception, SystemExit) as error:
            raise EvaluationError(
                f"Measuring failed for {function_name}: expected numbers by column, got {describe_failure(error)}. "
                "Correct the function."
            ) from error
    if not isinstance(columns, Mapping):
        raise EvaluationError(
            f"Measuring failed for {function_name}: expected numbers by column, got {type(columns).__name__}. {_ADVICE}"
        )
    return {str(name): _to_array(value, f"{name} of {function_name}") for name, value in columns.items()}


_ADVICE = "Return a dict of the declared columns from the function."


def _to_array(value: object, name: str) -> NDArray[np.float64]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise _not_numeric_error(name, value) from error
    # NumPy would also convert booleans and text to numbers, and round integers that float64 cannot represent.
    dtype_kind = array.dtype.kind
    if (
        not array.size
        or dtype_kind not in "iuf"
        or (dtype_kind != "f" and np.abs(array.astype(np.float64)).max() >= 2**53)
    ):
        raise _not_numeric_error(name, value)
    return array.astype(np.float64)


def _not_numeric_error(name: str, value: object) -> EvaluationError:
    return EvaluationError(
        f"Measuring failed for {name}: expected a number or a list of numbers, got {reprlib.repr(value)}. {_ADVICE}"
    )
