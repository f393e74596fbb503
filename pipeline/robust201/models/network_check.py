"""Checks of a network before attacks.

Its logits must have the right shape, be finite and repeatable, and depend on one image each; its compiled form must
agree.
"""

import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robust201.core.errors import EvaluationError, NetworkError, RobustWarning, one_line
from robust201.core.records import ImageSet
from robust201.models.classifier import Classifier
from robust201.models.guarded_network import has_same_bits
from robust201.models.model import Model
from robust201.models.watch import NOT_FINITE_ADVICE, name_images
from robust201.statistics.intervals import is_at_chance

_REPEAT_TOLERANCE = 1e-4
"""Maximum difference between two passes, relative to the largest logit. It allows rounding, but no randomness."""

_SUM_ROUNDING = 1e-3
"""Maximum deviation of a sum of probabilities from 1. It allows rounding in half precision."""

COMPARISON_BATCH = 8
"""Batch size of the comparison with the compiled network, the smallest batch size in use."""

_N_CHECKED_IMAGES = 64
"""Maximum number of images on which a network is checked."""

_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "bf16": 0.1}
"""Maximum difference of an image's logits between its batches, or between a compiled and the original network.

It is given by precision, relative to the largest logit (for a compiled network, at least 1). The maximum is far above
rounding errors, and far below the effect of a bug."""


class NetworkSummary(NamedTuple):
    """Result of the check of a network.

    Attributes:
        n_classes: number of classes.
        notices: warnings that its accuracies are doubtful.
    """

    n_classes: int
    notices: tuple[str, ...]


class CheckedImages(NamedTuple):
    """Images on which a network is checked.

    Attributes:
        pixels: (B, 3, H, W) float32 in [0, 1], on the network's device.
        labels: (B,) int64 classes on the same device; None to leave out the comparison with chance.
        indices: (B,) numbers of the images in messages; None for their positions.
    """

    pixels: torch.Tensor
    labels: torch.Tensor | None = None
    indices: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, images: ImageSet, device: torch.device) -> "CheckedImages":
        """Select up to `_N_CHECKED_IMAGES` evenly spaced images."""
        rows = np.linspace(0, len(images) - 1, min(len(images), _N_CHECKED_IMAGES)).astype(np.int64)
        pixels, labels = (torch.from_numpy(array[rows]).to(device) for array in (images.images, images.labels))
        return cls(pixels if pixels.is_floating_point() else pixels.float().div(255.0), labels, images.indices[rows])

    def name_rows(self, is_named: torch.Tensor) -> str:
        """Return the numbers of the images that a mask (B,) selects, and whether all of them have a single colour."""
        rows = is_named.nonzero().flatten().cpu()
        numbers = rows.numpy() if self.indices is None else self.indices[rows.numpy()]
        named_pixels = self.pixels[rows.to(self.pixels.device)].flatten(2)
        has_single_colour = bool((named_pixels.amin(dim=2) == named_pixels.amax(dim=2)).all())
        return name_images(numbers.tolist()) + (", all of a single colour" if has_single_colour else "")


def check_network(
    classifier: Classifier,
    images: CheckedImages,
    *,
    name: str,
    n_classes: int | None = None,
    randomised: bool = False,
) -> NetworkSummary:
    """Check the outputs of a network on a few images, before they are attacked.

    An image's logits must be repeatable and depend on this image alone: they must not change if the image is evaluated
    alone, or among other images.

    Args:
        classifier: the network.
        images: the images.
        name: name of the network in messages.
        n_classes: number of classes C; None for the network's number of outputs.
        randomised: whether outputs may differ between passes; they are then not compared or judged.

    Raises:
        NetworkError: the network fails on these images, or its outputs are not (B, C), not finite, not repeatable or
            dependent on other images; or it changes its parameters or buffers.

    Warns:
        RobustWarning: the outputs look like probabilities, or the accuracy is not above chance.
    """
    pixels = images.pixels
    message_start = f"Checking the network failed for {name}"
    logits = _compute_logits(classifier, pixels, message_start)
    tensors = {name: tensor.detach().clone() for name, tensor in _tensors_of(classifier.network)}
    _check_shape(logits, len(pixels), n_classes, message_start)
    is_not_finite = ~logits.isfinite().all(dim=1)
    if is_not_finite.any():
        raise NetworkError(
            f"{message_start}: the logits of {int(is_not_finite.sum())} of {len(pixels)} images contain NaN or "
            f"infinity ({images.name_rows(is_not_finite)}). {NOT_FINITE_ADVICE}"
        )
    if not randomised:
        repeated_logits = _compute_logits(classifier, pixels, message_start)
        if not _differ_by_rounding(repeated_logits, logits, _REPEAT_TOLERANCE):
            # Failures are grouped by message, so the message does not contain the difference.
            raise NetworkError(
                f"{message_start}: a second pass with the same images returned different logits. Disable dropout and "
                "other randomness in evaluation mode. Networks whose defence is randomness cannot be evaluated."
            )
        _check_independence(classifier, pixels, logits, message_start)
    _check_unchanged(classifier.network, tensors, message_start)
    # The outputs of an untrained network, which may be random, are not judged.
    notices = () if randomised else _find_notices(logits, images.labels, name)
    for notice in notices:
        warnings.warn(notice, RobustWarning, stacklevel=2)
    return NetworkSummary(logits.shape[1], notices)


def _compute_logits(classifier: Classifier, pixels: torch.Tensor, message_start: str) -> torch.Tensor:
    try:
        return classifier.logits(pixels)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # the device failed, not the network
        raise
    except NetworkError:
        raise
    except (Exception, SystemExit) as error:
        raise NetworkError(
            f"{message_start}: for float32 images of shape {tuple(pixels.shape)}, it raised {type(error).__name__}: "
            f"{one_line(error)}. Correct the network, or use images of the shape that it supports."
        ) from error


def _check_shape(logits: torch.Tensor, n_images: int, n_classes: int | None, message_start: str) -> None:
    expected_shape = f"({n_images}, {n_classes or 'classes'})"
    actual_output = f"{logits.dtype} of shape {tuple(logits.shape)}"
    if logits.is_floating_point() and tuple(logits.shape) in {(n_images,), (n_images, 1)} and n_classes in {None, 1, 2}:
        raise NetworkError(
            f"{message_start}: expected one logit per class, got a single logit per image ({actual_output}). Wrap the "
            "network in a torch.nn.Module that returns two logits: with z = self.network(images).reshape(-1, 1), "
            "`return torch.cat([torch.zeros_like(z), z], dim=1)`. If z is a probability, remove the sigmoid first."
        )
    if logits.ndim != 2 or not logits.is_floating_point():
        raise NetworkError(
            f"{message_start}: expected logits of shape {expected_shape}, got {actual_output}. Return logits from "
            "the network."
        )
    if len(logits) != n_images or logits.shape[1] != (n_classes or logits.shape[1]) or not logits.shape[1]:
        raise NetworkError(
            f"{message_start}: expected logits of shape {expected_shape}, got shape {tuple(logits.shape)}. Return one "
            "logit per class from the network, or correct the number of classes."
        )


def _differ_by_rounding(logits: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    if logits.shape != expected.shape:
        return False
    # Neither classes that are masked by a constant, such as -1e9, nor a few large logits may hide differences.
    magnitudes = expected.abs().amax(dim=0)
    varying = magnitudes[expected.amax(dim=0) > expected.amin(dim=0)]
    scale = (varying if len(varying) else magnitudes).median()
    return bool((logits - expected).abs().max() <= tolerance * scale)


_INDEPENDENCE_ADVICE = (
    "Give BatchNorm running statistics (track_running_stats=True), replace squeeze() by flatten(1), and remove "
    "operations over the first axis. If each image shall be evaluated alone, set batch_size=1 (in a sweep: "
    "execution.micro_batch: 1)."
)


def _check_independence(classifier: Classifier, pixels: torch.Tensor, logits: torch.Tensor, message_start: str) -> None:
    """Check that an image's logits do not depend on the other images, their order or their number."""
    tolerance = _TOLERANCES[_arithmetic_of(classifier)]
    # A single image gets its negative as company.
    pool = pixels if len(pixels) > 1 else torch.cat([pixels, 1 - pixels])
    shuffled = _shuffled(len(pool))
    order = np.concatenate([shuffled, shuffled[::-1]])[: max(len(pool), _N_CHECKED_IMAGES)]
    # With many images, two batches of different sizes cost no more than one.
    sizes = [len(order)] if len(order) > len(pool) else [len(order) // 3, len(order) - len(order) // 3]
    for rows in (np.zeros(1, np.int64), *np.split(order, np.cumsum(sizes)[:-1])):
        batch_name = "alone" if len(rows) == 1 else "among other images"
        try:
            batch_logits = classifier.logits(pool[torch.from_numpy(rows).to(pool.device)])
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except (Exception, SystemExit) as error:
            raise NetworkError(
                f"{message_start}: it accepts {len(pixels)} images, but for a batch of {len(rows)} of them, it raised "
                f"{type(error).__name__}: {one_line(error)}. {_INDEPENDENCE_ADVICE}"
            ) from error
        if tuple(batch_logits.shape) != (len(rows), logits.shape[1]):
            raise NetworkError(
                f"{message_start}: expected logits of shape ({len(rows)}, {logits.shape[1]}) for a batch of "
                f"{len(rows)}, got shape {tuple(batch_logits.shape)}. {_INDEPENDENCE_ADVICE}"
            )
        is_compared = rows < len(pixels)
        compared_rows = torch.from_numpy(rows[is_compared]).to(logits.device)
        compared_logits = batch_logits[torch.from_numpy(np.flatnonzero(is_compared)).to(logits.device)]
        if not _differ_by_rounding(compared_logits, logits[compared_rows], tolerance):
            raise NetworkError(
                f"{message_start}: the logits of an image are different if it is evaluated {batch_name}, so the "
                f"accuracy depends on how images are divided into batches. {_INDEPENDENCE_ADVICE}"
            )


def _shuffled(n: int) -> NDArray[np.int64]:
    """Return a fixed permutation of the numbers below n, which is not the identity."""
    order = np.random.default_rng(0).permutation(n)
    return order[::-1] if (order == np.arange(n)).all() else order


def _arithmetic_of(classifier: Classifier) -> str:
    """Return the name of the tolerance that suits the coarsest arithmetic of a network."""
    # Dynamic quantisation rounds activations to 8 bits, in steps that depend on the whole batch.
    if any("quantized" in type(module).__module__ for module in classifier.network.modules()):
        return "bf16"
    # float16 has as many significant bits as TF32.
    return {torch.float16: "tf32", torch.bfloat16: "bf16"}.get(classifier.dtype, classifier.precision)


def _tensors_of(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return chain(network.named_parameters(), network.named_buffers())


def _check_unchanged(network: nn.Module, earlier_tensors: Mapping[str, torch.Tensor], message_start: str) -> None:
    """Check that passes change no parameter or buffer; the first pass may, to fill caches."""
    for name, tensor in _tensors_of(network):
        earlier = earlier_tensors.get(name)
        if earlier is None or not has_same_bits(tensor, earlier):
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            raise NetworkError(
                f"{message_start}: its {kind} {name} changes when it classifies images in evaluation mode, so "
                "results depend on earlier images. Use running statistics only in training mode, for example "
                "`functional.batch_norm(…, training=self.training)`."
            )


def _find_notices(logits: torch.Tensor, labels: torch.Tensor | None, name: str) -> tuple[str, ...]:
    """Return what makes the accuracies of a network doubtful, as warnings."""
    notices = []
    if (activation := _final_activation(logits)) is not None:
        notices.append(
            f"{name} seems to end in a {activation}: all outputs for {len(logits)} checked "
            f"{'image' if len(logits) == 1 else 'images'} are in [0, 1]"
            f"{' and sum to 1' if activation == 'softmax' else ''}. Attacks need logits. With probabilities, gradients "
            f"vanish, and accuracies under attack are too high. Remove the {activation} (log-probabilities are fine)."
        )
    if labels is not None:
        n_correct = int((logits.argmax(dim=1) == labels).sum())
        if is_at_chance(n_correct / len(labels), len(labels), logits.shape[1]):
            notices.append(
                f"{name} classifies {n_correct} of {len(labels)} checked images correctly, which is not significantly "
                f"more than by chance (1 of {logits.shape[1]:,} classes). Its accuracies and comparisons mean nothing. "
                "Check the normalisation, the range of the pixels, the order of the classes, and the weights."
            )
    return tuple(notices)


def _final_activation(outputs: torch.Tensor) -> Literal["softmax", "sigmoid"] | None:
    """Return the activation that seems to produce outputs (B, C), or None if they are logits."""
    if not bool((outputs >= 0).all() & (outputs <= 1).all() & (outputs.max() > outputs.min())):
        return None
    are_normalised = outputs.shape[1] > 1 and bool(((outputs.sum(dim=1) - 1).abs() <= _SUM_ROUNDING).all())
    return "softmax" if are_normalised else "sigmoid"


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
    if not difference <= _TOLERANCES[precision] * max(1.0, float(reference_logits.abs().max())):
        raise EvaluationError(
            f"Compiling failed for {name}: its logits differ by {difference:.3g} from the original network's, "
            "which is more than rounding. Set engine: reference for this network, and report the problem."
        )


def _count_not_finite(logits: torch.Tensor) -> int:
    return int((~logits.isfinite().all(dim=1)).sum())
