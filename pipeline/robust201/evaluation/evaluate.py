"""Evaluation of a part (some images at some strengths, for one network and key), without access to the disk or Ray."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.context import Context, Perturbed, Request, StageProgress, to_float
from robust201.attacks.contract import perturb
from robust201.core.errors import EvaluationError
from robust201.core.records import EvaluationResult, ImageSet, Part
from robust201.evaluation.measurements import Accumulator, check_measure_values, check_values
from robust201.networks.network_check import check_again
from robust201.networks.watch import Watch, WatchedModel
from robust201.tasks import Task
from robust201.tasks.constraints import Constraint
from robust201.tasks.parameters import Parameters


class SavedStages(Protocol):
    """Storage of the progress of one ensemble, as arrays by name."""

    def load(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]] | None:
        """Return the saved progress; None if there is none, or if it is damaged."""

    def save(self, arrays: Mapping[str, Any]) -> None:
        """Save the progress, and replace any earlier progress."""


@dataclasses.dataclass(frozen=True)
class ResidentImages:
    """A selection of images on a device, reused between parts; created by `copy_to_device`.

    Attributes:
        pixels: (N, C, H, W) uint8, or float32 in [0, 1] if the user passed such images.
        labels: (N,) int64.
    """

    pixels: torch.Tensor
    labels: torch.Tensor


def copy_to_device(images: ImageSet, device: torch.device) -> ResidentImages:
    """Copy a selection's images and labels to a device."""
    # Copy, since torch rejects read-only memory, such as memory maps and arrays from Ray's object store.
    pixels, labels = (torch.from_numpy(np.array(array)) for array in (images.images, images.labels))
    return ResidentImages(pixels.to(device), labels.to(device))


def evaluate_part(
    context: Context,
    task: Task,
    parameters: Parameters,
    part: Part,
    images: ImageSet,
    measurements: Sequence[str],
    *,
    provenance: Mapping[str, str],
    resident_images: ResidentImages | None = None,
    on_stage: Callable[[int, str, int], None] | None = None,
    on_passes: Callable[[int], None] | None = None,
    saved_stages: SavedStages | None = None,
) -> Iterator[EvaluationResult]:
    """Yield a part's result at each strength, as soon as it is complete.

    Args:
        context: network, random numbers and images; this function sets its `key` and `first_batch`.
        task: the task to evaluate.
        parameters: the task's parameters; the strengths come from the part.
        part: strengths and image positions [start, stop). If images share random numbers, start and stop must be
            multiples of `context.batch_size`, unless the part stops at the last image.
        images: all selected images; the part is a slice of them.
        measurements: names of measurements, or of single columns (see `tasks.columns.columns_of`).
        provenance: versions, host and device, copied to the results.
        resident_images: copy of `images` on the classifier's device; None to make one.
        on_stage: see `Request`.
        on_passes: see `Watch`.
        saved_stages: where the progress of an ensemble is saved between its attacks, and read at the beginning.

    Yields:
        One result per strength. Every measured image is classified again; the attacks' own predictions are not used.

    Raises:
        ConfigError: see `attacks.contract.perturb`.
        EvaluationError: logits or gradients are not finite or have changed, a custom measure failed, a custom task
            changed the network, or a result breaks an invariant.
        PerturbationError: the perturbation failed or breaks its contract.
    """
    context, request = _prepare(context, task, part, images, resident_images)
    request = dataclasses.replace(request, on_stage=on_stage, on_passes=on_passes)
    if task.kind == "measure":
        yield from _measure_network(context, task, parameters, part, request, provenance)
        return
    accumulators = _make_accumulators(context, request, measurements, name=part.label)
    if saved_stages is not None:
        request = _resume(context, request, accumulators, saved_stages, label=part.label)
    batches = perturb(task, context, parameters, request, name=part.label)
    measured_strengths = _measure_batches(batches, context, request, task.constraint, accumulators)
    label_counts = np.bincount(images.labels[part.start : part.stop], minlength=images.n_classes)
    for strength_index, values, seconds in measured_strengths:
        check_values(values, len(request.labels), label_counts, name=part.label)
        yield EvaluationResult(part, part.strengths[strength_index], values, seconds, provenance)


def _prepare(
    context: Context, task: Task, part: Part, images: ImageSet, resident_images: ResidentImages | None
) -> tuple[Context, Request]:
    """Return the context with the part's key and first batch, and the request for the part's images."""
    context = dataclasses.replace(context, key=task.key, first_batch=part.start // context.batch_size)
    part_slice = slice(part.start, part.stop)
    resident_images = resident_images or copy_to_device(images, context.classifier.device)
    pixels, labels = resident_images.pixels[part_slice], resident_images.labels[part_slice]
    return context, Request(part.strengths, pixels, labels, images.indices[part_slice])


def _measure_network(
    context: Context,
    task: Task,
    parameters: Parameters,
    part: Part,
    request: Request,
    provenance: Mapping[str, str],
) -> Iterator[EvaluationResult]:
    """Yield a measure's result at each strength."""
    function = task.load(context.engine)
    watch = Watch(context.classifier.device, request.on_passes)
    watched_model = None if context.model is None else WatchedModel(context.model, watch)
    watched_context = dataclasses.replace(context, classifier=context.classifier.watched(watch), model=watched_model)
    for strength in part.strengths:
        start = time.perf_counter()
        values = dict(function(watched_context, parameters, dataclasses.replace(request, strengths=(strength,))))
        if int(watch.n_faults):
            faults = watch.describe_faults(
                context.attacked_model, to_float(request.images), request.labels, request.indices
            )
            raise EvaluationError(f"Measuring failed for {part.label}: {faults}")
        check_measure_values(values, task.columns, name=part.label)
        yield EvaluationResult(part, strength, values, time.perf_counter() - start, provenance)


def _measure_batches(
    batches: Iterator[Perturbed],
    context: Context,
    request: Request,
    constraint: Constraint | None,
    accumulators: Sequence[Accumulator],
) -> Iterator[tuple[int, dict[str, NDArray[Any]], float]]:
    """Yield each strength's index, columns and seconds as soon as all of its images have been measured."""
    labels = request.labels
    n_measured = request.are_yielded().sum(axis=1).tolist()
    for strength_index in np.flatnonzero(request.are_yielded().all(axis=1)).tolist():
        yield strength_index, accumulators[strength_index].finalise(), 0.0
    seconds = [0.0] * len(accumulators)
    start = time.perf_counter()
    for strength_index, positions, pixels in batches:
        with torch.inference_mode():
            distances = (
                None if constraint is None else partial(_measure_distances, constraint, request, positions, pixels)
            )
            accumulators[strength_index].update(positions, context.logits(pixels), labels[positions], distances)
        if request.on_passes is not None:
            request.on_passes(len(positions))
        n_measured[strength_index] += len(positions)
        is_complete = n_measured[strength_index] == len(labels)
        values = accumulators[strength_index].finalise() if is_complete else {}
        seconds[strength_index] += time.perf_counter() - start
        if is_complete:
            yield strength_index, values, seconds[strength_index]
        start = time.perf_counter()


def _make_accumulators(
    context: Context, request: Request, measurements: Sequence[str], *, name: str
) -> list[Accumulator]:
    classifier, n_images = context.classifier, len(request.labels)
    return [
        Accumulator(measurements, classifier.n_classes, classifier.device, n_images, name=name, indices=request.indices)
        for _ in request.strengths
    ]


def _resume(
    context: Context, request: Request, accumulators: Sequence[Accumulator], saved_stages: SavedStages, *, label: str
) -> Request:
    """Return a request that continues at the saved stage and saves later ones; restore the accumulators' totals."""
    totals = {
        f"{name} {number}": total
        for number, accumulator in enumerate(accumulators)
        for name, total in accumulator.totals.items()
    }

    def save(progress: StageProgress) -> None:
        check_again(context.classifier, name=label)  # after a resume, an earlier change of the network goes unnoticed
        saved_stages.save(progress._asdict() | {name: total.cpu().numpy() for name, total in totals.items()})

    saved = saved_stages.load([*StageProgress._fields, *totals])
    if saved is None:
        return dataclasses.replace(request, save_stage=save)
    for name, total in totals.items():
        total.copy_(torch.from_numpy(saved[name]))
    resume_from = StageProgress(int(saved["stage"]), saved["remaining"])
    return dataclasses.replace(request, save_stage=save, resume_from=resume_from)


def _measure_distances(
    constraint: Constraint, request: Request, positions: torch.Tensor, pixels: torch.Tensor
) -> torch.Tensor:
    return constraint.distances(pixels - to_float(request.images[positions]))
