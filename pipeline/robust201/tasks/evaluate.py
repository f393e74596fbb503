"""Evaluate one part: perturb its images, show them to the network, measure. Pure: no disk, no Ray."""

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, EvaluationError
from robust201.core.precision import Precision, check_precision
from robust201.core.records import EvaluationResult, ImageSet, Part
from robust201.tasks import Parameters, Perturbation
from robust201.tasks.measurements import Accumulator, check_values
from robust201.tasks.perturbations.contract import Context, Perturbed, checked


def configure_torch(threads: int, precision: Precision = "fp32") -> None:
    """Set torch so that equal inputs give equal bytes on equal device types.

    The number of threads is set because it decides how the CPU splits its sums. cuDNN neither tries out algorithms nor
    takes nondeterministic ones, and an operation without a deterministic form raises. TF32 is on with ``tf32`` and off
    with every other precision; these switches are the process's, and a second call sets them anew.

    Args:
        threads: CPU threads of one operation, at least 1.
        precision: a name from `core.precision.PRECISIONS`, which defines them. Whether the device has it is for
            whoever knows the device to check (`core.precision.check_precision`).

    Raises:
        ConfigError: unknown precision, no threads, or an environment variable that changes the arithmetic behind torch.
    """
    check_precision(precision)
    _refuse_overrides(precision)
    if threads < 1:
        raise ConfigError(f"Setting up torch failed for threads: expected 1 or more, got {threads}.")
    torch.set_num_threads(threads)
    tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    # By default cuBLAS may add partial sums of bfloat16 products in bfloat16; 1x1 convolutions can be such products.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # cuBLAS reads it when it is first used; without it, deterministic algorithms refuse matrix products on CUDA.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    # Every tensor is written before it is read here; filling them first would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


_ARITHMETIC_OVERRIDES = {
    "NVIDIA_TF32_OVERRIDE": "0",
    "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT",
    "DNNL_DEFAULT_FPMATH_MODE": "STRICT",
}
"""Variables by which cuBLAS, cuDNN and oneDNN compute in another precision than they are asked for, with the value that
leaves float32 as it is."""


def _refuse_overrides(precision: Precision) -> None:
    for name, neutral in _ARITHMETIC_OVERRIDES.items():
        value = os.environ.get(name, "")
        # NVIDIA's switches TF32 off, which is neutral unless TF32 is what is wanted.
        is_neutral = value.upper() == neutral and not (neutral == "0" and precision == "tf32")
        if value and not is_neutral:
            raise ConfigError(
                f"Setting up torch failed for the environment variable {name}: expected it unset, got {value!r}. "
                "Unset it: the sweep's `precision` alone decides the arithmetic."
            )


@dataclasses.dataclass(frozen=True)
class ResidentImages:
    """A selection of images on a device, kept there between parts; make it with `resident`.

    Attributes:
        pixels: (N, 3, H, W) uint8.
        labels: (N,) int64.
    """

    pixels: torch.Tensor
    labels: torch.Tensor


def resident(images: ImageSet, device: torch.device) -> ResidentImages:
    """Copy a selection's images and labels to a device."""
    # Copies: torch takes no read-only memory, which is what memory maps and Ray's object store hand out.
    pixels, labels = (torch.from_numpy(np.array(array)) for array in (images.images, images.labels))
    return ResidentImages(pixels.to(device), labels.to(device))


def evaluate(
    context: Context,
    row: Perturbation,
    parameters: Parameters,
    part: Part,
    images: ImageSet,
    measurements: Sequence[str],
    *,
    provenance: Mapping[str, str],
    on_device: ResidentImages | None = None,
) -> Iterator[EvaluationResult]:
    """Evaluate the strengths of a part, each as soon as it is complete.

    Args:
        context: classifier, seed, batch of draws and source of corrupted images; its `key` and `first_batch` are set
            here.
        row: what to do to the images.
        parameters: the row's parameters; the strengths are the part's.
        part: strengths and image positions [start, stop), which must be cut at batches of draws.
        images: the whole selection that the part is a slice of.
        measurements: names from `tasks.measurements.MEASUREMENTS`.
        provenance: versions, host and device, passed on to the results.
        on_device: the same images on the classifier's device, where they are there already; else they are copied.

    Yields:
        A result for each strength. Every image that is measured goes through the network anew: the attacks' own
        predictions are not used.

    Raises:
        EvaluationError: the part does not fit the images or the batches, the logits are not finite, or a result breaks
            an invariant.
        PerturbationError: the perturbation breaks its contract.
    """
    _check_part(context, part, images)
    context = dataclasses.replace(context, key=row.key, first_batch=part.start // context.batch_size)
    chosen = slice(part.start, part.stop)
    on_device = on_device or resident(images, context.classifier.device)
    pixels, labels = on_device.pixels[chosen], on_device.labels[chosen]
    batches = checked(
        row.load(context.engine)(
            context, parameters, part.strengths, images=pixels, labels=labels, indices=images.indices[chosen]
        ),
        name=part.label,
        images=pixels,
        strengths=part.strengths,
        ball=row.kind == "attack",
    )
    measured = _measure(batches, context, labels, part.strengths, measurements, name=part.label)
    label_counts = np.bincount(images.labels[chosen], minlength=images.n_classes)
    for strength, values, seconds in measured:
        check_values(values, len(labels), label_counts, name=part.label)
        yield EvaluationResult(part, part.strengths[strength], values, seconds, provenance)


def _measure(
    batches: Iterator[Perturbed],
    context: Context,
    labels: torch.Tensor,
    strengths: Sequence[float],
    measurements: Sequence[str],
    *,
    name: str,
) -> Iterator[tuple[int, dict[str, NDArray[Any]], float]]:
    """Yield the index of each strength with its columns and seconds as soon as all of its images have come."""
    classifier = context.classifier
    accumulators = [
        Accumulator(measurements, classifier.n_classes, classifier.device, len(labels), name=name) for _ in strengths
    ]
    seen = [0] * len(strengths)
    seconds = [0.0] * len(strengths)
    before = time.perf_counter()
    for strength, positions, shown in batches:
        with torch.inference_mode():
            accumulators[strength].update(positions, context.logits(shown), labels[positions])
        seen[strength] += len(positions)
        complete = seen[strength] == len(labels)
        values = accumulators[strength].finalise() if complete else {}
        seconds[strength] += time.perf_counter() - before
        if complete:
            yield strength, values, seconds[strength]
        before = time.perf_counter()


def _check_part(context: Context, part: Part, images: ImageSet) -> None:
    n_images = len(images)
    if part.unit.n_images != n_images or not 0 <= part.start < part.stop <= n_images:
        raise EvaluationError(
            f"Evaluating failed for {part.label}: expected a slice of {n_images} images, got {part.start}:{part.stop} "
            f"of {part.unit.n_images}. Plan again with the images that this sweep selects."
        )
    # The fused engine draws nothing once a batch: its parts may be cut anywhere, such as by another batch_size before.
    cut = part.start % context.batch_size or (part.stop % context.batch_size and part.stop != n_images)
    if context.engine == "reference" and cut:
        raise EvaluationError(
            f"Evaluating failed for {part.label}: expected a slice that is cut at multiples of {context.batch_size} "
            f"images, which share their draws, got {part.start}:{part.stop}. Plan again with this batch size."
        )
