"""Checks of a network: its outputs before attacks, its compiled form, and changes by a user's code.

Logits must have the right shape, be finite and repeatable, and depend only on their own image.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robust201.core.errors import (
    EvaluationError,
    NetworkError,
    UnstableInputError,
    UnstableNetworkError,
    one_line,
    warn_caller,
)
from robust201.core.records import ImageSet
from robust201.networks.classifier import Classifier
from robust201.networks.model import Model
from robust201.networks.watch import NOT_FINITE_ADVICE, name_images

_REPEAT_TOLERANCE = 1e-4
"""Tolerance between two passes (see `_differ_only_by_rounding`). It allows rounding, but no randomness."""

_SUM_ROUNDING = 1e-3
"""Maximum deviation of a sum of probabilities from 1. It allows rounding in half precision."""

COMPARISON_BATCH = 8
"""Batch size of the comparison with the compiled network, which is the minimum batch size of compiled networks."""

_N_CHECKED_IMAGES = 64
"""Maximum number of images on which a network is checked."""

_TANH_LIMIT = 0.999
"""Output from which a tanh counts as saturated: its derivative is below 0.002."""

_MIN_FRACTION_AT_LIMIT = 0.2
"""Minimum fraction of images whose largest output is at the limit; below it, the limit is not reported."""

_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "bf16": 0.1}
"""Precision → tolerance of logits between batches (see `_differ_only_by_rounding`), or between compiled and original
network (relative to the largest logit, at least 1). It is far above rounding errors, and far below the effect of a
bug."""


class CheckedImages(NamedTuple):
    """Images on which a network is checked.

    Attributes:
        pixels: (B, C, H, W) float32 in [0, 1], on the network's device.
        indices: (B,) numbers of the images in messages; None for their positions.
    """

    pixels: torch.Tensor
    indices: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, images: ImageSet, device: torch.device) -> "CheckedImages":
        """Select up to `_N_CHECKED_IMAGES` evenly spaced images."""
        rows = np.linspace(0, len(images) - 1, min(len(images), _N_CHECKED_IMAGES)).astype(np.int64)
        pixels = torch.from_numpy(images.images[rows]).to(device)
        return cls(pixels if pixels.is_floating_point() else pixels.float().div(255.0), images.indices[rows])


def check_network(
    classifier: Classifier,
    images: CheckedImages,
    *,
    name: str,
    n_classes: int | None = None,
    randomised: bool = False,
) -> tuple[int, tuple[str, ...]]:
    """Check the outputs of a network on a few images, before they are attacked.

    An image's logits must be repeatable and depend on this image alone: they must not change if the image is evaluated
    alone, or among other images.

    Args:
        classifier: the network.
        images: the images.
        name: name of the network in messages.
        n_classes: number of classes C; None for the network's number of outputs.
        randomised: whether outputs may differ between passes; they are then not compared or judged.

    Returns:
        The number of classes, and notices that the network's accuracies are doubtful.

    Raises:
        NetworkError: the network fails on these images or changes its parameters or buffers, or its outputs are not of
            shape (B, C), contain NaN or infinity, are not repeatable, or depend on other images.

    Warns:
        RobustWarning: the outputs are probabilities, or have other bounds that many images reach.
    """
    pixels = images.pixels
    message_start = f"Checking the network failed for {name}"
    # A network that fails for a single image is rejected first, whatever its batch size.
    single_logits = _compute_logits(classifier, pixels[:1], n_classes, message_start)
    n_classes = single_logits.shape[1]
    logits = _compute_logits(classifier, pixels, n_classes, message_start)
    tensors = {tensor_name: tensor.detach().clone() for tensor_name, tensor in named_tensors(classifier.network)}
    _check_finite(logits, images, message_start)
    if not randomised:
        repeated_logits = _compute_logits(classifier, pixels, n_classes, message_start)
        if not _differ_only_by_rounding(repeated_logits, logits, _REPEAT_TOLERANCE):
            # Failures are grouped by message, so the message does not contain the difference.
            raise UnstableInputError(
                f"{message_start}: a second pass with the same images returned different logits. Disable dropout and "
                "other randomness in evaluation mode. Networks whose defence is randomness cannot be evaluated."
            )
        _check_independence(classifier, pixels, logits, single_logits, message_start)
        classifier.checked_outputs = pixels, logits
    for tensor_name, tensor in named_tensors(classifier.network):
        earlier = tensors.get(tensor_name, tensor)
        if tensor.shape == earlier.shape and not _has_same_bits(tensor, earlier):
            raise UnstableInputError(
                f"{message_start}: its tensor {tensor_name} changes when it classifies images in evaluation mode, so "
                "results depend on earlier images. Use running statistics only in training mode, for example "
                "`functional.batch_norm(…, training=self.training)`."
            )
    # The outputs of an untrained network, which may be random, are not judged.
    notice = None if randomised else _describe_bounds(logits)
    if notice is None:
        return n_classes, ()
    warn_caller(f"{name} {notice}")
    return n_classes, (f"{name} {notice}",)


def check_again(classifier: Classifier, *, name: str) -> None:
    """Check after attacks that a network's logits have not changed since `check_network`.

    A network may depend on earlier passes in ways that its tensors do not show, such as a counter.

    Raises:
        UnstableNetworkError: the logits have changed (NetworkError: the network now fails, or their shape has changed).
    """
    if classifier.checked_outputs is None:
        return
    pixels, logits = classifier.checked_outputs
    message_start = f"Checking the network failed for {name}"
    if not _differ_only_by_rounding(
        _compute_logits(classifier, pixels, logits.shape[1], message_start), logits, _REPEAT_TOLERANCE
    ):
        raise UnstableNetworkError(
            f"{message_start}: after the evaluation, the same images have different logits, so results depend on "
            "earlier passes or on chance. Disable randomness, and remove state that changes in evaluation mode."
        )


def _compute_logits(
    classifier: Classifier, pixels: torch.Tensor, n_classes: int | None, message_start: str
) -> torch.Tensor:
    """Return the logits (B, C), after checking their shape."""
    try:
        logits = classifier.logits(pixels)
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # the device failed, not the network
        raise
    except NetworkError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise NetworkError(
            f"{message_start}: for float32 images of shape {tuple(pixels.shape)}, it raised {type(error).__name__}: "
            f"{one_line(error)}. Correct the network (replace squeeze() by flatten(1), so that it accepts single "
            "images), or use images of the shape that it supports."
        ) from error
    shape = tuple(logits.shape)
    if logits.is_floating_point() and shape in {(len(pixels),), (len(pixels), 1)} and n_classes in {None, 1, 2}:
        raise NetworkError(
            f"{message_start}: expected one logit per class, got a single logit per image (shape {shape}). Wrap the "
            "network in a torch.nn.Module that returns two logits, `torch.cat([torch.zeros_like(z), z], dim=1)` for "
            "a logit z (images, 1)."
        )
    expected_shape = (len(pixels), n_classes or (logits.shape[-1] if logits.ndim else 0))
    if not logits.is_floating_point() or shape != expected_shape or not logits.numel():
        raise NetworkError(
            f"{message_start}: expected logits of shape ({len(pixels)}, {n_classes or 'classes'}), got {logits.dtype} "
            f"of shape {shape}. Return one row of logits per image (replace squeeze() by flatten(1)), or correct the "
            "number of classes."
        )
    return logits


def _check_finite(logits: torch.Tensor, images: CheckedImages, message_start: str) -> None:
    rows = (~logits.isfinite().all(dim=1)).nonzero().flatten().cpu().numpy()
    if len(rows):
        numbers = rows if images.indices is None else images.indices[rows]
        raise NetworkError(
            f"{message_start}: the logits of {len(rows)} of {len(logits)} images contain NaN or infinity "
            f"({name_images(numbers.tolist())}). {NOT_FINITE_ADVICE} Mask classes with a large negative logit, such as "
            "-1e4."
        )


def _differ_only_by_rounding(logits: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Return whether logits (B, C) equal `expected` up to a tolerance, relative to each logit and to typical logits."""
    # Neither the logits of masked classes, such as -1e9, nor a few large logits may hide differences of other logits.
    # Most masked classes are constant, and none is among an image's two most probable classes.
    magnitudes = expected.abs()
    is_varying = expected.amax(dim=0) > expected.amin(dim=0)
    class_scale = magnitudes.amax(dim=0)[is_varying if is_varying.any() else slice(None)].median()
    likely_classes = expected.topk(min(2, expected.shape[1]), dim=1).indices
    image_scale = magnitudes.gather(1, likely_classes).amax(dim=1).median()
    return bool(((logits - expected).abs() <= tolerance * (torch.minimum(class_scale, image_scale) + magnitudes)).all())


def _check_independence(
    classifier: Classifier,
    pixels: torch.Tensor,
    logits: torch.Tensor,
    single_logits: torch.Tensor,
    message_start: str,
) -> None:
    """Check that an image's logits do not depend on the other images, their order or their number."""
    # Pair a single image with its negative. Use two batches of different sizes, at no extra cost. With few images, use
    # one large batch, because attacks at several epsilons use batches that are larger than the number of images.
    pool = pixels if len(pixels) > 1 else torch.cat([pixels, 1 - pixels])
    order = np.arange(len(pool))
    mixed = np.resize(np.concatenate([order[::-1], order]), _N_CHECKED_IMAGES)
    mixed_rows = torch.from_numpy(mixed).to(pool.device)
    tolerance = _TOLERANCES[_arithmetic_of(classifier)]
    split_points = [_N_CHECKED_IMAGES // 3] if len(pool) >= _N_CHECKED_IMAGES else []
    for rows in (mixed_rows.new_zeros(1), *torch.tensor_split(mixed_rows, split_points)):
        batch_logits = single_logits
        if len(rows) > 1:
            batch_logits = _compute_logits(classifier, pool[rows], logits.shape[1], message_start)
        is_compared = rows < len(pixels)
        if not _differ_only_by_rounding(batch_logits[is_compared], logits[rows[is_compared]], tolerance):
            raise UnstableInputError(
                f"{message_start}: the logits of an image are different if it is evaluated "
                f"{'alone' if len(rows) == 1 else 'among other images'}, so the accuracy depends on how images are "
                "divided into batches. Give BatchNorm running statistics (track_running_stats=True), and remove "
                "operations over the first axis. To evaluate each image alone, set batch_size=1 (in a sweep: "
                "execution.micro_batch: 1)."
            )


def _arithmetic_of(classifier: Classifier) -> str:
    """Return the key in `_TOLERANCES` for the coarsest arithmetic of a network."""
    # Dynamic quantisation rounds activations to 8 bits, in steps that depend on the whole batch.
    if any("quantized" in type(module).__module__ for module in classifier.network.modules()):
        return "bf16"
    # float16 has as many significant bits as TF32.
    return {torch.float16: "tf32", torch.bfloat16: "bf16"}.get(classifier.dtype, classifier.precision)


def _describe_bounds(outputs: torch.Tensor) -> str | None:
    """Return a notice if outputs (B, C) seem to have bounds, which weaken attacks; None if they seem to be logits."""
    low, high = (float(bound) for bound in outputs.aminmax())
    if 0 <= low < high <= 1:
        sums_to_one = outputs.shape[1] > 1 and bool(((outputs.sum(dim=1) - 1).abs() <= _SUM_ROUNDING).all())
        activation, sign = ("softmax", "are in [0, 1] and sum to 1") if sums_to_one else ("sigmoid", "are in [0, 1]")
    else:
        limit = _TANH_LIMIT if low >= -1 and _TANH_LIMIT < high <= 1 else high
        is_at_limit = outputs.amax(dim=1) >= limit
        # Logits of different classes do not have the same maximum. Log-probabilities may, but they are never above 0.
        classes_at_limit = set(outputs[is_at_limit].argmax(dim=1).tolist())
        if high <= 0 or is_at_limit.sum() < _MIN_FRACTION_AT_LIMIT * len(outputs) or len(classes_at_limit) < 2:
            return None
        activation, sign = "tanh or clamp", f"are at most {high:g}, and {int(is_at_limit.sum())} reach this limit"
    return (
        f"seems to end in a {activation}: the outputs for {len(outputs)} checked "
        f"{'image' if len(outputs) == 1 else 'images'} {sign}. Attacks need logits. At bounds, gradients vanish, "
        f"and accuracies under attack are too high. Remove the {activation} (log-probabilities are fine)."
    )


def check_compiled(classifier: Classifier, model: Model, pixels: torch.Tensor, *, precision: str, name: str) -> None:
    """Check that a compiled network has the same logits as the original network on a few images.

    For example, oneDNN's fused ReLU turns NaN into zero, so a compiled network that overflows would return finite but
    wrong logits.

    Args:
        classifier: the original network.
        model: the compiled network.
        pixels: (B, C, H, W) float32 in [0, 1], on the device of both networks.
        precision: precision of both networks.
        name: name of the network in messages.

    Raises:
        EvaluationError: the original network's logits are not finite, or the compiled network's logits differ.
    """
    with torch.inference_mode():
        logit_pairs = [(classifier(batch), model.logits(batch)) for batch in torch.split(pixels, COMPARISON_BATCH)]
    reference_logits, compiled_logits = (torch.cat(column) for column in zip(*logit_pairs, strict=True))
    n_not_finite = int((~reference_logits.isfinite().all(dim=1)).sum())
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


class NetworkGuard:
    """Copies a network's parameters, buffers and modes, to detect and undo changes.

    Changes of `requires_grad` are undone, but not reported. The values are copied, because PyTorch's version counters
    do not count changes through ``.data``.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._modes = [(module, module.training) for module in network.modules()]
        self._tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in named_tensors(network)}
        self._gradient_flags = [(parameter, parameter.requires_grad) for parameter in network.parameters()]

    @contextmanager
    def check_unchanged(self, caller: str) -> Iterator[None]:
        """Check that the code in a `with` block does not change the network, and undo changes for later code.

        `caller` is the name of this code in the message.

        Raises:
            EvaluationError: the code changed the network.
        """
        try:
            yield
        finally:
            changed_names = self.restore()
        if changed_names:
            further_changes = f" and {len(changed_names) - 1:,} more tensors or modes" if len(changed_names) > 1 else ""
            raise EvaluationError(
                f"Calling {caller} failed: it changed the network ({changed_names[0]}{further_changes}). Change a copy "
                "instead (copy.deepcopy)."
            )

    def restore(self) -> list[str]:
        """Undo changes, except for added tensors; return the names of the added and changed tensors and modes."""
        current_tensors = dict(named_tensors(self._network))
        changed_names = [name for name in current_tensors if name not in self._tensors]
        for name, (tensor, original) in self._tensors.items():
            if current_tensors.get(name) is not tensor or not _has_same_bits(tensor, original):
                changed_names.append(name)
                owner = self._network.get_submodule(name.rpartition(".")[0])
                if tensor.shape == original.shape and tensor.dtype == original.dtype:
                    tensor.data.copy_(original)  # in place, because other tensors may share the memory
                else:
                    tensor.data = original.clone()
                setattr(owner, name.rpartition(".")[2], tensor)
        for module, was_training in self._modes:
            if module.training != was_training:
                changed_names.append("mode (train or eval)")
                module.training = was_training
        for parameter, requires_grad in self._gradient_flags:
            parameter.requires_grad_(requires_grad)
        return changed_names


def named_tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a network with their names."""
    return chain(network.named_parameters(), network.named_buffers())


def _has_same_bits(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, dtype, device and bytes."""
    if tensor.shape != original.shape or tensor.dtype != original.dtype or tensor.device != original.device:
        return False
    # The bytes are compared, because a buffer may contain NaN, which is not equal to itself.
    return torch.equal(*(values.detach().contiguous().view(-1).view(torch.uint8) for values in (tensor, original)))
