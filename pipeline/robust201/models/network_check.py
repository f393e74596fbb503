"""Checks of a network before it is attacked: shape, finiteness, repeatability, and equality with its compiled form."""

import warnings

import torch

from robust201.core.errors import EvaluationError, NetworkError, RobustWarning, one_line
from robust201.models.classifier import Classifier
from robust201.models.model import Model

_REPEAT_TOLERANCE = 1e-4
"""Maximum difference of two passes, relative to the largest logit: allows for rounding on a GPU, not for randomness."""

_SUM_ROUNDING = 1e-3
"""Maximum deviation of a sum of probabilities from 1: allows for rounding in half precision."""

COMPARISON_BATCH = 8
"""Batch size of the comparison: the smallest that is ever used."""

_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "bf16": 0.1}
"""Maximum difference of a compiled network's logits from the original's, relative to the largest logit (at least 1):
far more than rounding, far less than an error."""


def check_network(
    classifier: Classifier, pixels: torch.Tensor, *, name: str, n_classes: int | None = None, randomised: bool = False
) -> int:
    """Check a network by evaluating a few images twice.

    Args:
        classifier: the network.
        pixels: (B, 3, H, W) float32 in [0, 1], on its device.
        name: name of the network in messages.
        n_classes: number of classes C; None takes that of the outputs.
        randomised: whether outputs may differ between passes.

    Returns:
        The number of classes.

    Raises:
        NetworkError: the network fails on these images, or its outputs are not (B, C), not finite, or not repeatable.

    Warns:
        RobustWarning: the outputs look like probabilities.
    """
    failed = f"Checking the network failed for {name}"
    try:
        first, second = classifier.logits(pixels), classifier.logits(pixels)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # errors of the device and not of the network
        raise
    except (Exception, SystemExit) as error:
        raise NetworkError(
            f"{failed}: expected logits of images {tuple(pixels.shape)} in float32, got {type(error).__name__}: "
            f"{one_line(error)}. Check the network with these images."
        ) from error
    expected = f"({len(pixels)}, {n_classes or 'classes'})"
    if not isinstance(first, torch.Tensor) or first.ndim != 2 or not first.is_floating_point():
        got = (
            f"{first.dtype} of shape {tuple(first.shape)}" if isinstance(first, torch.Tensor) else type(first).__name__
        )
        raise NetworkError(f"{failed}: expected logits {expected}, got {got}. Return logits from the network.")
    if len(first) != len(pixels) or first.shape[1] != (n_classes or first.shape[1]) or not first.shape[1]:
        raise NetworkError(
            f"{failed}: expected logits {expected}, got shape {tuple(first.shape)}. Return one logit per class "
            "from the network, or correct the number of classes."
        )
    not_finite = _count_not_finite(first)
    if not_finite:
        raise NetworkError(
            f"{failed}: expected finite logits, got NaN or infinity for {not_finite} of {len(pixels)} images. Check "
            "the weights and the normalisation."
        )
    if not randomised and not float((first - second).abs().max()) <= _REPEAT_TOLERANCE * float(first.abs().max()):
        # The message does not contain the difference, because failures are grouped by message.
        raise NetworkError(
            f"{failed}: expected equal logits for equal images, got others in the second of two passes. Switch "
            "off dropout and other randomness in evaluation mode, or, if randomness is the network's "
            "defence, evaluate with randomised=True (--randomised)."
        )
    if _are_probabilities(first):
        images = "the checked image" if len(pixels) == 1 else f"all {len(pixels)} checked images"
        warnings.warn(
            f"{name} seems to end in a softmax: its outputs are in [0, 1] and sum to 1 for {images}. "
            "Attacks expect logits; on probabilities their gradients vanish, and accuracies are too high. "
            "Remove the softmax (log-probabilities are fine).",
            RobustWarning,
            stacklevel=2,
        )
    return first.shape[1]


def _are_probabilities(outputs: torch.Tensor) -> bool:
    in_range = bool((outputs >= 0).all() & (outputs <= 1).all())
    return in_range and outputs.shape[1] > 1 and bool(((outputs.sum(dim=1) - 1).abs() <= _SUM_ROUNDING).all())


def check_compiled(classifier: Classifier, model: Model, pixels: torch.Tensor, *, precision: str, name: str) -> None:
    """Compare a compiled network with the original on a few images.

    oneDNN's fused ReLU turns NaN into zero, so a network that overflows would return finite but wrong logits.

    Args:
        classifier: the original network.
        model: the compiled network.
        pixels: (B, 3, H, W) float32 in [0, 1], on their device.
        precision: precision of both.
        name: name of the network in messages.

    Raises:
        EvaluationError: the original's logits are not finite, or the compiled network's logits differ.
    """
    with torch.inference_mode():
        pieces = [(classifier(piece), model.logits(piece)) for piece in torch.split(pixels, COMPARISON_BATCH)]
    expected, compiled_logits = (torch.cat(column) for column in zip(*pieces, strict=True))
    not_finite = _count_not_finite(expected)
    if not_finite:
        raise EvaluationError(
            f"Compiling failed for {name}: expected finite logits of the published network, got NaN or infinity for "
            f"{not_finite} of {len(pixels)} images. Check this network's weights."
        )
    difference = float((compiled_logits - expected).abs().max())
    if not difference <= _TOLERANCES[precision] * max(1.0, float(expected.abs().max())):
        raise EvaluationError(
            f"Compiling failed for {name}: expected the published network's logits within rounding, got a difference "
            f"of {difference:.3g}. Compute this network with engine: reference, and report it."
        )


def _count_not_finite(logits: torch.Tensor) -> int:
    return int((~logits.isfinite().all(dim=1)).sum())
