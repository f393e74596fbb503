"""Calls of a user's own functions: what they are given, and what their answers must be."""

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, PerturbationError
from robust201.core.user_code import describe_failure
from robust201.models.guarded_network import KeptNetwork
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float


def call_attack(
    attack: Callable[..., object], label: str, given: Mapping[str, Any], context: Context, request: Request
) -> Iterator[Perturbed]:
    """Perturb images, batch by batch at every strength.

    Args:
        attack: ``(model, images, labels, strength, **parameters)`` → images; `model` maps (B, 3, H, W) float32 in
            [0, 1] to logits (B, C) and can be differentiated, `images` are such pixels, `labels` (B,) int64.
        label: the function's name, for messages.
        given: parameters that the sweep gives.
        context: what surrounds the attack.
        request: images at strengths.

    Raises:
        PerturbationError: the function failed, or gave no tensor.
        EvaluationError: it changed the network.
    """
    kept = KeptNetwork(context.classifier)
    for strength, value in enumerate(request.strengths):
        for number, batch in context.batches(len(request.images)):
            with context.draws(number), torch.enable_grad(), kept.unchanged(label):
                pixels, labels = to_float(request.images[batch]), request.labels[batch].clone()
                try:
                    perturbed = attack(context.classifier, pixels, labels, value, **given)
                except torch.AcceleratorError:
                    raise  # the device failed, not the function
                except (Exception, SystemExit) as error:
                    raise PerturbationError(
                        f"Perturbing failed for {label}: expected a tensor of images, got {describe_failure(error)}. "
                        "Correct the function."
                    ) from error
            if not isinstance(perturbed, torch.Tensor):
                raise PerturbationError(
                    f"Perturbing failed for {label}: expected a tensor of images, got {type(perturbed).__name__}. "
                    "Let the function return the images."
                )
            shown = perturbed.detach().to(request.images.device)
            yield Perturbed(strength, positions_of(batch, request.images.device), shown)


def call_measure(
    measure: Callable[..., object], label: str, given: Mapping[str, Any], context: Context, request: Request
) -> Mapping[str, NDArray[Any]]:
    """Measure a network on all images of a request at once.

    Args:
        measure: ``(model, images, labels, **parameters)`` → numbers, or lists of them, by column; what it is given is
            that of an attack.
        label: the function's name, for messages.
        given: parameters that the sweep gives.
        context: what surrounds the measure.
        request: images.

    Raises:
        EvaluationError: the function failed, gave something else, or changed the network.
    """
    kept = KeptNetwork(context.classifier)
    with context.draws(0), torch.enable_grad(), kept.unchanged(label):
        try:
            found = measure(context.classifier, to_float(request.images), request.labels.clone(), **given)
        except torch.AcceleratorError:
            raise  # the device failed, not the function
        except (Exception, SystemExit) as error:
            raise EvaluationError(
                f"Measuring failed for {label}: expected numbers by column, got {describe_failure(error)}. "
                "Correct the function."
            ) from error
    if not isinstance(found, Mapping):
        raise EvaluationError(
            f"Measuring failed for {label}: expected numbers by column, got {type(found).__name__}. {_ADVICE}"
        )
    return {str(name): _to_array(value, f"{name} of {label}") for name, value in found.items()}


_ADVICE = "Let the function return a dict of the columns that the sweep declares."


def _to_array(value: object, name: str) -> NDArray[np.float64]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    try:
        given = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise _no_numbers(name, value) from error
    # NumPy would also make numbers of truth values and of text, and round integers that float64 cannot hold.
    kind = given.dtype.kind
    if not given.size or kind not in "iuf" or (kind != "f" and np.abs(given.astype(np.float64)).max() >= 2**53):
        raise _no_numbers(name, value)
    return given.astype(np.float64)


def _no_numbers(name: str, value: object) -> EvaluationError:
    return EvaluationError(
        f"Measuring failed for {name}: expected a number or a list of numbers, got {reprlib.repr(value)}. {_ADVICE}"
    )
