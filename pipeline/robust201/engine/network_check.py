"""What any network must be before it is attacked: of the right shape, finite, and the same when it is asked twice."""

import torch

from robust201.core.errors import EvaluationError
from robust201.engine.classifier import Classifier


def check_network(classifier: Classifier, pixels: torch.Tensor, *, name: str) -> None:
    """Show a network a few images, twice.

    Args:
        classifier: the network.
        pixels: (B, 3, H, W) float32 in [0, 1], on its device.
        name: what it is called in messages.

    Raises:
        EvaluationError: it cannot be shown such images, its answers are not (B, C) or not finite, or differ the second
            time.
    """
    try:
        with torch.inference_mode():
            first, second = classifier(pixels), classifier(pixels)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise EvaluationError(
            f"Checking the network failed for {name}: expected it to take images {tuple(pixels.shape)}, got "
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}. Check its input and its classes."
        ) from error
    expected = (len(pixels), classifier.n_classes)
    if not isinstance(first, torch.Tensor) or tuple(first.shape) != expected:
        got = tuple(first.shape) if isinstance(first, torch.Tensor) else type(first).__name__
        raise EvaluationError(
            f"Checking the network failed for {name}: expected logits {expected}, got {got}. "
            "Let the network return one logit per class."
        )
    not_finite = int((~first.isfinite().all(dim=1)).sum())
    if not_finite:
        raise EvaluationError(
            f"Checking the network failed for {name}: expected finite logits, got NaN or infinity for {not_finite} of "
            f"{len(pixels)} images. Check this network's weights."
        )
    if not torch.equal(first, second):
        raise EvaluationError(
            f"Checking the network failed for {name}: expected equal answers to equal images, got others the second "
            "time. Take what draws at random out of it: dropout outside of evaluation mode, noise."
        )
