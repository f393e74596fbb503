"""Evaluate one part: perturb its images, show them to the network, measure. Pure: no disk, no Ray."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, EvaluationError
from robust201.core.records import EvaluationResult, ImageSet, Part
from robust201.tasks import Task
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, to_float
from robust201.tasks.attack_kit.step_log import StepLog
from robust201.tasks.columns import STEPS, asked_columns
from robust201.tasks.constraints import Constraint
from robust201.tasks.measurements import Accumulator, check_measured, check_values
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import checked, perturb


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


def evaluate_part(
    context: Context,
    row: Task,
    parameters: Parameters,
    part: Part,
    images: ImageSet,
    measurements: Sequence[str],
    *,
    provenance: Mapping[str, str],
    on_device: ResidentImages | None = None,
    on_images: Callable[[int], None] | None = None,
    on_stage: Callable[[int, str], None] | None = None,
) -> Iterator[EvaluationResult]:
    """Evaluate the strengths of a part, each as soon as it is complete.

    Args:
        context: classifier, seed, batch of draws and source of corrupted images; its `key` and `first_batch` are set
            here.
        row: what to do to the images.
        parameters: the row's parameters; the strengths are the part's.
        part: strengths and image positions [start, stop), which must be cut at batches of draws.
        images: the whole selection that the part is a slice of.
        measurements: names from `tasks.columns.MEASUREMENTS`.
        provenance: versions, host and device, passed on to the results.
        on_device: the same images on the classifier's device, where they are there already; else they are copied.
        on_images: called with the number of images whenever some are done at one strength.
        on_stage: called with the number and the key of each stage that an attack in stages begins.

    Yields:
        A result for each strength. Every image that is measured goes through the network anew: the attacks' own
        predictions are not used.

    Raises:
        ConfigError: steps are asked for, which the attack does not record.
        EvaluationError: the part does not fit the images or the batches, the logits are not finite, or a result breaks
            an invariant.
        PerturbationError: the perturbation breaks its contract.
    """
    context, request = _prepare(context, row, part, images, on_device)
    if row.kind == "measure":
        yield from _measure_network(context, row, parameters, part, request, provenance)
        return
    if STEPS in asked_columns(measurements) and row.kind == "attack":
        refusal = row.step_refusal(context.engine)
        if refusal is not None:
            raise ConfigError(f"Evaluating failed for {part.label}: {refusal}")
        log = StepLog(len(request.strengths), len(request.labels), context.classifier.device)
        request = dataclasses.replace(request, step_log=log)
    request = dataclasses.replace(request, on_stage=on_stage)
    batches = checked(
        perturb(row, context, parameters, request), name=part.label, request=request, constraint=row.constraint
    )
    if on_images is not None:
        batches = _counted(batches, on_images)
    measured = _measure_answers(batches, context, request, row.constraint, measurements, name=part.label)
    label_counts = np.bincount(images.labels[part.start : part.stop], minlength=images.n_classes)
    for strength, values, seconds in measured:
        check_values(values, len(request.labels), label_counts, name=part.label)
        yield EvaluationResult(part, part.strengths[strength], values, seconds, provenance)


def perturb_part(
    context: Context,
    row: Task,
    parameters: Parameters,
    part: Part,
    images: ImageSet,
    *,
    on_device: ResidentImages | None = None,
) -> NDArray[np.float32]:
    """Perturb the images of a part as `evaluate_part` does, and give them: (strengths, n, 3, H, W) float32 in [0, 1].

    Raises:
        EvaluationError: the part does not fit the images or the batches.
        PerturbationError: the perturbation breaks its contract.
    """
    context, request = _prepare(context, row, part, images, on_device)
    batches = perturb(row, context, parameters, request)
    found = np.empty((len(part.strengths), *request.images.shape), np.float32)
    for batch in checked(batches, name=part.label, request=request, constraint=row.constraint):
        found[batch.strength, batch.positions.cpu().numpy()] = batch.images.cpu().numpy()
    return found


def _prepare(
    context: Context, row: Task, part: Part, images: ImageSet, on_device: ResidentImages | None
) -> tuple[Context, Request]:
    """Cut a part's images out of the selection, and name the draws."""
    _check_part(context, row, part, images)
    context = dataclasses.replace(context, key=row.key, first_batch=part.start // context.batch_size)
    chosen = slice(part.start, part.stop)
    on_device = on_device or resident(images, context.classifier.device)
    pixels, labels = on_device.pixels[chosen], on_device.labels[chosen]
    return context, Request(part.strengths, pixels, labels, images.indices[chosen])


def _measure_network(
    context: Context,
    row: Task,
    parameters: Parameters,
    part: Part,
    request: Request,
    provenance: Mapping[str, str],
) -> Iterator[EvaluationResult]:
    """Yield the result of a measure for each strength."""
    function = row.load(context.engine)
    for strength in part.strengths:
        before = time.perf_counter()
        values = dict(function(context, parameters, dataclasses.replace(request, strengths=(strength,))))
        check_measured(values, row.columns, name=part.label)
        yield EvaluationResult(part, strength, values, time.perf_counter() - before, provenance)


def _counted(batches: Iterator[Perturbed], on_images: Callable[[int], None]) -> Iterator[Perturbed]:
    for batch in batches:
        yield batch
        on_images(len(batch.positions))


def _measure_answers(
    batches: Iterator[Perturbed],
    context: Context,
    request: Request,
    constraint: Constraint | None,
    measurements: Sequence[str],
    *,
    name: str,
) -> Iterator[tuple[int, dict[str, NDArray[Any]], float]]:
    """Yield the index of each strength with its columns and seconds as soon as all of its images have come."""
    classifier, labels, strengths = context.classifier, request.labels, request.strengths
    accumulators = [
        Accumulator(measurements, classifier.n_classes, classifier.device, len(labels), name=name) for _ in strengths
    ]
    seen = [0] * len(strengths)
    seconds = [0.0] * len(strengths)
    before = time.perf_counter()
    for strength, positions, shown, stage in batches:
        with torch.inference_mode():
            distances = None if constraint is None else partial(_distances, constraint, request, positions, shown)
            falls = None if request.step_log is None else request.step_log.falls(strength, positions)
            accumulators[strength].update(positions, context.logits(shown), labels[positions], stage, distances, falls)
        seen[strength] += len(positions)
        complete = seen[strength] == len(labels)
        values = accumulators[strength].finalise() if complete else {}
        seconds[strength] += time.perf_counter() - before
        if complete:
            yield strength, values, seconds[strength]
        before = time.perf_counter()


def _distances(constraint: Constraint, request: Request, positions: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    return constraint.distances(shown - to_float(request.images[positions]))


def _check_part(context: Context, row: Task, part: Part, images: ImageSet) -> None:
    n_images = len(images)
    if part.unit.n_images != n_images or not 0 <= part.start < part.stop <= n_images:
        raise EvaluationError(
            f"Evaluating failed for {part.label}: expected a slice of {n_images} images, got {part.start}:{part.stop} "
            f"of {part.unit.n_images}. Plan again with the images that this sweep selects."
        )
    cut = part.start % context.batch_size or (part.stop % context.batch_size and part.stop != n_images)
    if row.draws_by_batch(context.engine) and cut:
        raise EvaluationError(
            f"Evaluating failed for {part.label}: expected a slice that is cut at multiples of {context.batch_size} "
            f"images, which share their draws, got {part.start}:{part.stop}. Plan again with this batch size."
        )
