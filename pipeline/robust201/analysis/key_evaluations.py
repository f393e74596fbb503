"""The evaluation of a user's network, key by key, and warnings about weak attacks."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robust201.analysis.evaluation import Evaluation, KeyResults
from robust201.analysis.evaluation_file import StageFile, delete_stages
from robust201.analysis.evaluation_progress import EvaluationProgress
from robust201.analysis.network_context import Options
from robust201.attacks.context import Context, Request, to_float
from robust201.core.errors import warn_caller
from robust201.core.records import CLEAN_STRENGTH, EvaluationResult, ImageSet, Part, Unit
from robust201.evaluation.attack_flags import (
    AT_CHANCE,
    ZERO_GRADIENTS,
    Accuracies,
    AttackFlag,
    KeyAndStrength,
    find_flags,
)
from robust201.evaluation.evaluate import copy_to_device, evaluate_part
from robust201.evaluation.measurements import has_predictions, summarise
from robust201.evaluation.user_calls import count_passes
from robust201.evaluation.user_task import UserTask
from robust201.networks.batch_sizes import halve_all
from robust201.networks.device import free_cached_memory, is_out_of_memory
from robust201.networks.network_check import check_again
from robust201.statistics.intervals import accuracy_intervals, is_at_chance
from robust201.tasks import Task
from robust201.tasks.attacks import Standard
from robust201.tasks.columns import DISTANCES, PREDICTIONS, distances_of
from robust201.tasks.parameters import Parameters

_MEASUREMENTS = ("accuracy", "confidence_prediction", PREDICTIONS)
"""Measurements of every key that has predictions."""

_N_COUNTED_IMAGES = 8
"""Number of images on which the passes of a user's attack are counted, and whose logits are saved."""

_N_GRADIENT_IMAGES = 64
"""Number of images whose gradients are checked; an attack cannot follow a gradient of exactly 0."""

RequestedKeys = Sequence[tuple[Task, Parameters]]


@dataclass(frozen=True)
class Run:
    """Data that the evaluations of all keys share.

    Attributes:
        protocols: protocol of each key.
        progress: progress that is displayed.
        options: the caller's arguments.
        template: evaluation of the network and images that has no results yet.
    """

    context: Context
    images: ImageSet
    protocols: Mapping[str, Mapping[str, Any]]
    progress: EvaluationProgress
    options: Options
    template: Evaluation

    def stage_file(self, key: str, strengths: Sequence[float]) -> StageFile | None:
        """Return the file with the progress of an ensemble; None if results are not saved."""
        if self.options.save is None:
            return None
        network = self.template.network_sha256, self.template.logits
        images = self.template.images_sha256, self.template.positions
        return StageFile(Path(self.options.save), key, [network, images, self.protocols[key], strengths])

    def count_complete(self, n_evaluations: int) -> None:
        """Count further complete evaluations, and report their total number to the caller."""
        self.progress.n_evaluations_done += n_evaluations
        if not isinstance(self.options.progress, bool):
            self.options.progress(self.progress.n_evaluations_done, self.progress.n_evaluations)

    def estimate_passes(self, keys: RequestedKeys, saved: Mapping[str, KeyResults]) -> None:
        """Estimate the passes of each key that is not saved, for the display of the time left."""
        n_images = self.progress.n_images = len(self.images)
        self.progress.costs = {
            task.key: n_images * len(missing) * _count_passes(self.context, task, parameters, self.images)
            for task, parameters in keys
            if (missing := _missing_strengths(parameters, saved.get(task.key)))
        }
        self.progress.stage_costs = {
            task.key: parameters.stage_passes(self.images.n_classes)
            for task, parameters in keys
            if isinstance(parameters, Standard)
        }
        self.progress.n_evaluations = sum(len(parameters.strengths) for _, parameters in keys)


def evaluate_keys(run: Run, keys: RequestedKeys, saved: Mapping[str, KeyResults]) -> Evaluation:
    """Evaluate all images under all keys, except where results are saved, and return the results with warnings."""
    results: dict[str, KeyResults] = {}
    notices = [*run.template.notices]
    run.estimate_passes(keys, saved)
    kinds = {task.kind for task, _ in keys}
    if kinds - {"measure"} and "clean" not in kinds:
        is_correct = _logits_of(run.context, run.images).argmax(dim=1).numpy() == run.images.labels
        _warn_if_at_chance(run, int(is_correct.sum()), notices)
    for task, parameters in keys:
        results[task.key] = _evaluate_missing(run, task, parameters, saved.get(task.key))
        check_again(run.context.classifier, name=run.options.name_of(run.context.classifier.network))
        if task.key == "clean":
            _warn_if_at_chance(run, int(results["clean"].outcomes[CLEAN_STRENGTH].sum()), notices)
        if run.options.save is not None:
            new_results = {task.key: results[task.key]}
            dataclasses.replace(run.template, results=new_results, notices=tuple(notices)).save(run.options.save)
            delete_stages(Path(run.options.save), task.key)
    return dataclasses.replace(run.template, results=results, notices=tuple(notices))


def _evaluate_missing(run: Run, task: Task, parameters: Parameters, saved: KeyResults | None) -> KeyResults:
    """Evaluate the strengths of a key that are not saved, and return the results of all its strengths."""
    missing = _missing_strengths(parameters, saved)
    if saved is None:
        return _evaluate_strengths(run, task, parameters, missing)
    if n_saved := len(parameters.strengths) - len(missing):
        run.count_complete(n_saved)
    results = saved.merge(_evaluate_strengths(run, task, parameters, missing)) if missing else saved
    return results.select(parameters.strengths)


def _missing_strengths(parameters: Parameters, saved: KeyResults | None) -> tuple[float, ...]:
    """Return the strengths of a key that are not saved."""
    return tuple(value for value in parameters.strengths if saved is None or value not in saved.strengths)


def _evaluate_strengths(run: Run, task: Task, parameters: Parameters, strengths: tuple[float, ...]) -> KeyResults:
    run.progress.begin_key(task, strengths)
    results = []
    # Custom code may use torch's generator, so the generator is seeded from the user's seed and the key.
    with dataclasses.replace(run.context, key=task.key).seeded(0):
        for result in _evaluate_key(run, task, parameters, strengths):
            results.append(result)
            run.count_complete(1)
    results.sort(key=lambda result: result.strength)
    outcomes = {
        result.strength: result.values[PREDICTIONS] == run.images.labels
        for result in results
        if PREDICTIONS in result.values
    }
    distances = distances_of(results[-1].values[DISTANCES]) if task.model.finds_distances else None
    return KeyResults(tuple(map(_make_table_row, results)), run.protocols[task.key], outcomes, distances)


def _warn_if_at_chance(run: Run, n_correct: int, notices: list[str]) -> None:
    """Warn if a network's clean accuracy is not above chance."""
    classifier, n_images = run.context.classifier, len(run.images)
    if is_at_chance(n_correct / n_images, n_images, classifier.n_classes):
        notice = (
            f"{run.options.name_of(classifier.network)} classifies {n_correct:,} of {n_images:,} images correctly, "
            f"which is not significantly more than by chance (1 of {classifier.n_classes:,} classes). Check the "
            "normalisation, the order of the colour channels and of the classes, and the weights."
        )
        warn_caller(notice)
        notices.append(notice)


@torch.inference_mode()
def _logits_of(context: Context, image_set: ImageSet) -> torch.Tensor:
    pixels = copy_to_device(image_set, context.classifier.device).pixels
    logits = [context.logits(to_float(pixels[batch])) for _, batch in context.batches(len(image_set))]
    return torch.cat(logits).cpu()


def logits_of_first(context: Context, image_set: ImageSet) -> tuple[float, ...]:
    """Return the logits of the first few images as one sequence of at most 1,000 numbers."""
    return tuple(_logits_of(context, head(image_set, _N_COUNTED_IMAGES)).flatten()[:1000].tolist())


def head(images: ImageSet, count: int | None) -> ImageSet:
    """Return the first `count` images; None returns all."""
    return dataclasses.replace(
        images, images=images.images[:count], labels=images.labels[:count], indices=images.indices[:count]
    )


def _count_passes(context: Context, task: Task, parameters: Parameters, image_set: ImageSet) -> float:
    """Return the passes per image and strength; they are counted for a user's attack that does not declare them."""
    if not isinstance(task, UserTask) or task.kind != "attack" or getattr(parameters, "passes", None) is not None:
        return parameters.n_passes(image_set.n_classes)
    first_images = head(image_set, _N_COUNTED_IMAGES)
    resident = copy_to_device(first_images, context.classifier.device)
    request = Request(parameters.strengths, resident.pixels, resident.labels, first_images.indices)
    context = dataclasses.replace(context, key=task.key)
    return count_passes(task.function.load(), task.function_parameters, context, request)


def _evaluate_key(
    run: Run, task: Task, parameters: Parameters, strengths: tuple[float, ...]
) -> Iterator[EvaluationResult]:
    """Evaluate all images at some strengths of a key, and yield one result per strength, in any order.

    If memory runs out, batches are halved, and the remaining strengths are evaluated again.
    """
    classifier, image_set = run.context.classifier, run.images
    unit = Unit(
        id="",
        architecture=type(classifier.network).__name__,
        dataset=image_set.dataset,
        key=task.key,
        strengths=parameters.strengths,
        n_images=len(image_set),
        protocol="",
        checkpoint_sha256="",
    )
    measurements = (*_MEASUREMENTS, DISTANCES) if task.model.finds_distances else _MEASUREMENTS
    remaining = strengths
    while remaining:
        try:
            for result in evaluate_part(
                run.context,
                task,
                parameters,
                Part(unit, remaining, 0, len(image_set)),
                image_set,
                measurements,
                provenance={},
                on_stage=run.progress.begin_stage,
                on_passes=run.progress.add_passes,
                saved_stages=run.stage_file(task.key, remaining),
            ):
                remaining = tuple(strength for strength in remaining if strength != result.strength)
                yield result
        except Exception as error:  # a user function's error may have an out-of-memory error as its context
            sizes = classifier.batch_sizes, run.context.attacked_model.batch_sizes
            if not is_out_of_memory(error) or halve_all(*sizes) is None:
                raise
            run.progress.begin_key(task, remaining)
        if remaining:  # not in the `except` block, in which the error keeps the tensors of the evaluation alive
            free_cached_memory(classifier.device)


def _make_table_row(result: EvaluationResult) -> dict[str, Any]:
    values = result.values
    n_images = result.part.unit.n_images
    row: dict[str, Any] = {
        "key": result.part.unit.key,
        "strength": result.strength,
        "n_images": n_images,
        "seconds": result.seconds,
    }
    if not has_predictions(values):
        return row | {name: array.item() if array.ndim == 0 else array.tolist() for name, array in values.items()}
    n_correct, confidence = summarise(values)
    low, high = map(float, accuracy_intervals(n_correct / n_images, n_images))
    return row | {"accuracy": n_correct / n_images, "low": low, "high": high, "confidence": confidence}


def measure_zero_gradients(context: Context, image_set: ImageSet) -> float:
    """Return the fraction of the first `_N_GRADIENT_IMAGES` images whose gradient of the loss is exactly 0.

    If the gradient cannot be computed, the result is 0 instead of an error, because only a warning depends on it.
    """
    pixels = to_float(torch.from_numpy(image_set.images[:_N_GRADIENT_IMAGES])).to(context.classifier.device)
    labels = torch.from_numpy(image_set.labels[:_N_GRADIENT_IMAGES]).to(context.classifier.device)
    try:
        _, _, gradient = context.classifier.loss_and_gradient(pixels, labels)
    except (Exception, SystemExit):  # noqa: BLE001 - a network may raise anything
        return 0.0
    return float((gradient.flatten(1) == 0).all(dim=1).double().mean())


def describe_weak_attacks(
    rows: Sequence[Mapping[str, Any]], name: str, n_images: int, n_classes: int, zero_fraction: float
) -> list[str]:
    """Return at most one warning per kind of sign of weak attacks, such as weaker attacks that fool more images."""
    results: dict[KeyAndStrength, Accuracies] = {ZERO_GRADIENTS: {name: zero_fraction}}
    for row in rows:
        if "accuracy" in row:
            results[row["key"], row["strength"]] = {name: row["accuracy"]}
        elif "zero_share" in row:
            results[ZERO_GRADIENTS] = {name: row["zero_share"]}
    flags = find_flags("", results, n_images=n_images, n_classes=n_classes, flag_any_difference=True)
    flags_by_check: dict[str, list[AttackFlag]] = {}
    for flag in flags:
        if flag.check != AT_CHANCE:  # reported by `_warn_if_at_chance`
            flags_by_check.setdefault(flag.check, []).append(flag)
    messages = []
    for first, *others in flags_by_check.values():
        flag = max([first, *others], key=lambda flag: flag.networks[0][1] - flag.networks[0][2])
        more = f" {len(others):,} more such sign{'s' if len(others) > 1 else ''}." if others else ""
        messages.append(f"{flag.message}{more} See docs/trust.md.")
    return messages
