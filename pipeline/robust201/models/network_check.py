"""Checks of a network before attacks: shape and finiteness of its logits, repeatability, and its compiled form."""

import warnings

import torch

from robust201.core.errors import EvaluationError, NetworkError, RobustWarning, one_line
from robust201.models.classifier import Classifier
from robust201.models.model import Model

_REPEAT_TOLERANCE = 1e-4
"""Maximum difference between two passes, relative to the largest logit. It allows rounding, but no randomness."""

_SUM_ROUNDING = 1e-3
"""Maximum deviation of a sum of probabilities from 1. It allows rounding in half precision."""

COMPARISON_BATCH = 8
"""Batch size of the comparison with the compiled network, the smallest batch size in use."""

_COMPILED_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "bf16": 0.1}
"""Maximum difference of a compiled network's logits from the original logits, by precision.

Differences are relative to the largest logit (at least 1). The maximum is far above rounding errors, and far below the
effect of a bug."""


def check_network(
    classifier: Classifier, pixels: torch.Tensor, *, name: str, n_classes: int | None = None, randomised: bool = False
) -> int:
    """Check the logits of a network by evaluating a few images twice.

    Args:
        classifier: the network.
        pixels: (B, 3, H, W) float32 in [0, 1], on the network's device.
        name: name of the network in messages.
        n_classes: number of classes C; None for the network's number of outputs.
        randomised: whether outputs may differ between passes.

    Returns:
        The number of classes.

    Raises:
        NetworkError: the network fails on these images, or its outputs are not (B, C), not finite, or not repeatable.

    Warns:
        RobustWarning: the outputs look like probabilities.
    """
    message_start = f"Checking the network failed for {name}"
    try:
        logits, repeated_logits = classifier.logits(pixels), classifier.logits(pixels)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # the device failed, not the network
        raise
    except (Exception, SystemExit) as error:
        raise NetworkError(
            f"{message_start}: for float32 images of shape {tuple(pixels.shape)}, it raised {type(error).__name__}: "
            f"{one_line(error)}. Correct the network, or use images of the shape that it supports."
        ) from error
    expected_shape = f"({len(pixels)}, {n_classes or 'classes'})"
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or not logits.is_floating_point():
        actual_output = (
            f"{logits.dtype} of shape {tuple(logits.shape)}"
            if isinstance(logits, torch.Tensor)
            else type(logits).__name__
        )
        raise NetworkError(
            f"{message_start}: expected logits of shape {expected_shape}, got {actual_output}. Return logits from "
            "the network."
        )
    if len(logits) != len(pixels) or logits.shape[1] != (n_classes or logits.shape[1]) or not logits.shape[1]:
        raise NetworkError(
            f"{message_start}: expected logits of shape {expected_shape}, got shape {tuple(logits.shape)}. Return one "
            "logit per class from the network, or correct the number of classes."
        )
    n_not_finite = _count_not_finite(logits)
    if n_not_finite:
        raise NetworkError(
            f"{message_start}: the logits of {n_not_finite} of {len(pixels)} images contain NaN or infinity. Check "
            "the weights and the normalisation."
        )
    if not randomised and not float((logits - repeated_logits).abs().max()) <= _REPEAT_TOLERANCE * float(
        logits.abs().max()
    ):
        # Failures are grouped by message, so the message does not contain the difference.
        raise NetworkError(
            f"{message_start}: a second pass with the same images returned different logits. Disable dropout and other "
            "randomness in evaluation mode. Networks whose defence is randomness cannot be evaluated."
        )
    if _are_probabilities(logits):
        which_images = "the checked image" if len(pixels) == 1 else f"all {len(pixels)} checked images"
        warnings.warn(
            f"{name} seems to end in a softmax: its outputs are in [0, 1] and sum to 1 for {which_images}. "
            "Attacks need logits. With probabilities, gradients vanish, and accuracies under attack are too high. "
            "Remove the softmax (log-probabilities are fine).",
            RobustWarning,
            stacklevel=2,
        )
    return logits.shape[1]


def _are_probabilities(outputs: torch.Tensor) -> bool:
    is_in_range = bool((outputs >= 0).all() & (outputs <= 1).all())
    return is_in_range and outputs.shape[1] > 1 and bool(((outputs.sum(dim=1) - 1).abs() <= _SUM_ROUNDING).all())


def check_compiled(classifier: Classifier, model: Model, pixels: torch.Tensor, *, precision: str, name: str) -> None:
    """Check that a compiled network has the same logits as the original network on a few images.

    For example, oneDNN's fused ReLU turns NaN into zero, so a compiled network that overflows would return finite but
    wrong logits.

    Args:
        classifier: the original network.
        model: the compiled network.
        pixels: (B, 3, H, W) float32 in [0, 1], on the device of both networks.
        precision: precision of both networks.
        name: name of the network in messages.

    Raises:
        EvaluationError: the original network's logits are not finite, or the compiled network's logits differ.
    """
    with torch.inference_mode():
        logit_pairs = [(classifier(batch), model.logits(batch)) for batch in torch.split(pixels, COMPARISON_BATCH)]
    reference_logits, compiled_logits = (torch.cat(column) for column in zip(*logit_pairs, strict=True))
    n_not_finite = _count_not_finite(reference_logits)
    if n_not_finite:
        raise EvaluationError(
            f"Compiling failed for {name}: the original network's logits of {n_not_finite} of {len(pixels)} images "
            "contain NaN or infinity. Check the weights of this network."
        )
    difference = float((compiled_logits - reference_logits).abs().max())
    if not difference <= _COMPILED_TOLERANCES[precision] * max(1.0, float(reference_logits.abs().max())):
        raise EvaluationError(
            f"Compiling failed for {name}: its logits differ by {difference:.3g} from the original network's, "
            "which is more than rounding. Set engine: reference for this network, and report the problem."
        )


def _count_not_finite(logits: torch.Tensor) -> int:
    return int((~logits.isfinite().all(dim=1)).sum())
