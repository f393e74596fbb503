"""Runs this package's own attacks (engine `fused`) on images at all epsilons together.

Each attack's module has a function ``attack(model, samples, options)`` → images (B, C, H, W) float32, which is called
in inference mode. `options` are the key's parameters. The task's `tasks.task.Procedure` states which images are
attacked, how they are grouped, and how often the attack runs; this module carries it out.

Samples are (image, epsilon) pairs, which are numbered strength by strength: with n images, sample s is image s % n at
strength s // n.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import Perturbed, Request, StageProgress, slices, to_float
from robust201.attacks.random_numbers import RandomNumbers
from robust201.attacks.samples import Samples
from robust201.tasks import TASKS, Task
from robust201.tasks.parameters import Parameters


def run_attack(
    task: Task, options: Parameters, model: BatchedModel, request: Request, random_numbers: RandomNumbers
) -> Iterator[Perturbed]:
    """Attack a request's images with a task, or, if it is an ensemble, with its stages one after the other.

    Each stage attacks only the samples that resisted the earlier stages.

    Yields:
        Batches of images at one strength.
    """
    radius_of = float if task.constraint is None else task.constraint.radius
    radii = np.array([radius_of(strength) for strength in request.strengths], np.float64)
    n_images = len(request.images)
    remaining = np.flatnonzero(~request.are_yielded())
    if task.procedure.images == "correct" and request.resume_from is None:
        is_correct = np.tile(_are_correct(model, request), len(radii))
        for group in _split(remaining[~is_correct], model.batch_size):
            samples = _make_samples(request, radii, group, random_numbers)
            yield from _split_by_strength(group, n_images, samples.clean)
        remaining = remaining[is_correct]
    stages = options.stages(task.key)
    first_stage = 1 if request.resume_from is None else request.resume_from.stage
    for number, (key, stage_options) in enumerate(stages[first_stage - 1 :], start=first_stage):
        stage = task if key == task.key else TASKS[key]
        if len(stages) > 1 and request.on_stage is not None:
            request.on_stage(number, key, len(remaining))
        if number > first_stage and request.save_stage is not None:
            request.save_stage(StageProgress(number, remaining))
        stage_random_numbers = random_numbers.for_key(key)
        resisting = [np.zeros(0, np.int64)]
        for group in _split_into_groups(stage, remaining, n_images, len(radii), model):
            samples = _make_samples(request, radii, group, stage_random_numbers)
            images, is_fooled = _run_stage(stage, stage_options, model, samples)
            if is_fooled is not None and number < len(stages):
                fooled = is_fooled.cpu().numpy()
                resisting.append(group[~fooled])
                fooled_rows = torch.from_numpy(np.flatnonzero(fooled)).to(images.device)
                yield from _split_by_strength(group[fooled], n_images, images[fooled_rows])
            else:
                yield from _split_by_strength(group, n_images, images)
        remaining = np.sort(np.concatenate(resisting))


@torch.inference_mode()
def _are_correct(model: BatchedModel, request: Request) -> NDArray[np.bool_]:
    """Return whether the model classifies each clean image correctly: (N,) on the host."""
    if len(request.images) == 0:
        return np.zeros(0, np.bool_)
    predicted = [
        model.logits(to_float(request.images[batch])).argmax(dim=1)
        for batch in slices(len(request.images), model.batch_size)
    ]
    correct: NDArray[np.bool_] = (torch.cat(predicted) == request.labels).cpu().numpy()
    return correct


@torch.inference_mode()
def _run_stage(
    task: Task, options: Parameters, model: BatchedModel, samples: Samples
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run an attack as often as its task's procedure states, each time on the samples that still resist.

    Returns:
        Images (B, C, H, W), and whether each is misclassified (B,). Samples that resist all runs are returned
        unchanged. If `procedure.count_runs` is None: the results of a single run, and None.
    """
    attack = task.load("fused")
    count_runs = task.procedure.count_runs
    if count_runs is None:
        return attack(model, samples, options), None
    images, is_fooled = samples.clean.clone(), torch.zeros_like(samples.labels, dtype=torch.bool)
    remaining = np.arange(len(samples))
    for run in range(count_runs(options, model.n_classes)):
        if run:
            remaining = remaining[~is_fooled.cpu().numpy()[remaining]]
        if len(remaining) == 0:
            break
        selected, rows = samples.take(remaining, run), torch.from_numpy(remaining).to(images.device)
        # Rounding in the projection to an L1 ball may move values slightly outside [0, 1].
        candidates = attack(model, selected, options).clamp(0, 1)
        misclassified = model.logits(candidates).argmax(dim=1) != selected.labels
        images[rows] = torch.where(misclassified.view(-1, 1, 1, 1), candidates, selected.clean)
        is_fooled[rows] = misclassified
    return images, is_fooled


def _split_into_groups(
    task: Task, remaining: NDArray[np.int64], n_images: int, n_strengths: int, model: BatchedModel
) -> Iterator[NDArray[np.int64]]:
    """Split samples into groups that are attacked together."""
    if task.procedure.grouping == "sample":
        yield from _split(remaining, model.batch_size)
        return
    images_per_group = max(1, model.pool_size // n_strengths)
    if task.procedure.grouping == "image":
        images_per_group = min(images_per_group, model.batch_size)
    sorted_by_image = remaining[np.argsort(remaining % max(1, n_images), kind="stable")]
    yield from map(np.sort, _split(sorted_by_image, images_per_group * n_strengths))


def _split(rows: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    yield from (rows[group] for group in slices(len(rows), size))


def _make_samples(
    request: Request, radii: NDArray[np.float64], rows: NDArray[np.int64], random_numbers: RandomNumbers
) -> Samples:
    positions = rows % len(request.images)
    device_positions = torch.from_numpy(positions).to(request.images.device)
    return Samples(
        clean=to_float(request.images.index_select(0, device_positions)),  # faster than indexing
        labels=request.labels[device_positions],
        radii=radii[rows // len(request.images)],
        image_numbers=positions,
        indices=np.asarray(request.indices, np.int64)[positions],
        random_numbers=random_numbers,
    )


def _split_by_strength(rows: NDArray[np.int64], n_images: int, images: torch.Tensor) -> Iterator[Perturbed]:
    """Split images (B, C, H, W) into one batch per strength. Their sample numbers `rows` (B,) are ascending."""
    strengths, positions = np.divmod(rows, n_images)
    device_positions = torch.from_numpy(positions).to(images.device)
    boundaries = np.searchsorted(strengths, np.arange(strengths[-1] + 2)) if len(rows) else ()
    for strength, (start, stop) in enumerate(itertools.pairwise(boundaries)):
        if start < stop:
            # Copy the images outside of inference mode, since callers cannot differentiate through inference tensors.
            yield Perturbed(strength, device_positions[start:stop], images[start:stop].clone())
