"""`robust201.evaluate` and `robust201.attack`: evaluate or attack a user's network."""

import dataclasses
import hashlib
import json
import reprlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robust201.analysis.evaluation import Evaluation, KeyResults, extend_saved, read_saved
from robust201.analysis.evaluation_progress import EvaluationProgress, ProgressOption, shown_progress
from robust201.analysis.requested_keys import (
    Keys,
    find_preset,
    parse_key,
    parse_keys,
    parse_parameters,
    warn_of_parameters,
)
from robust201.analysis.robustbench import DATASET, LEADERBOARDS, N_CLASSES, check_images
from robust201.attacks.context import Context, CorruptedImageSource, Request, to_float
from robust201.attacks.contract import perturb
from robust201.core.errors import ConfigError, DatasetError, RobustWarning
from robust201.core.records import CLEAN_STRENGTH, EvaluationResult, ImageSet, Normalisation, Part, Unit
from robust201.corruptions import MIN_IMAGE_SIZE
from robust201.dataset.attack_flags import (
    AT_CHANCE,
    ZERO_GRADIENTS,
    Accuracies,
    AttackFlag,
    KeyAndStrength,
    find_flags,
)
from robust201.evaluation.evaluate import copy_to_device, evaluate_part
from robust201.evaluation.measurements import has_predictions, summarise
from robust201.evaluation.user_task import UserTask
from robust201.images import check_selection, select
from robust201.images.user_arrays import as_image_set, check_label_range
from robust201.networks.batch_sizes import halve_all
from robust201.networks.classifier import Classifier
from robust201.networks.device import free_cached_memory, is_out_of_memory
from robust201.networks.model import CompiledNetwork
from robust201.networks.network_check import CheckedImages, check_again, check_compiled
from robust201.networks.user_module import as_classifier, hash_network
from robust201.statistics.intervals import accuracy_intervals, is_at_chance
from robust201.tasks import CORRUPTIONS, FEW_CLASSES, QUICK_IMAGES, TASKS, Task, stage_passes
from robust201.tasks.columns import DISTANCES, PREDICTIONS, distances_of
from robust201.tasks.parameters import Parameters, Standard

if TYPE_CHECKING:
    from robust201.images.corrupted import CorruptedStore

_MEASUREMENTS = ("accuracy", "confidence_prediction", PREDICTIONS)
"""Measurements of every key that has predictions."""


def evaluate(
    model: nn.Module,
    images: Any = None,
    labels: Any = None,
    keys: Keys = "quick",
    *,
    save: str | Path | None = None,
    count: int | None = None,
    normalisation: Normalisation | tuple[Sequence[float], Sequence[float]] | None = None,
    n_classes: int | None = None,
    seed: int = 0,
    engine: str = "fused",
    device: torch.device | str | None = None,
    batch_size: int = 250,
    progress: ProgressOption = True,
) -> Evaluation:
    """Evaluate a network on clean, attacked and corrupted images.

    The module is not changed. Attacks work as in a sweep (docs/protocol.md); an image's random numbers depend on the
    seed, the key and the image's position. Corruptions are generated with the parameters of CIFAR-10-C, scaled to the
    image size, or, for 224 pixels and more, with the parameters of ImageNet-C; frost is synthetic.

    Args:
        model: any module that maps (B, channels, H, W) float32 in [0, 1] to logits (B, C), with up to 32,767 classes.
            If all its parameters are float16, bfloat16 or float64, it receives images and computes gradients in that
            type; its logits are converted to float32, and the result's `protocols` records the type.
        images: (N, 3, H, W) or (N, H, W, 3), NumPy or torch, uint8 or floats in [0, 1]; grey images have 1 channel.
            Floats that are not multiples of 1/255 are not rounded, and the result's `protocols` records this. The
            result of `robust201.images.load_images` is accepted, too; `labels` must then be None.
        labels: (N,) or (N, 1) integers in [0, C).
        keys: keys of `robust201.tasks.TASKS`, alone, at a strength (``"pgd:8/255"``, ``"pgd_l2:0.5"``, ``"fog:3"``), or
            with parameters: ``["clean", {"pgd": {"steps": 80}}]``;
            ``"corruptions"`` means all corruptions, ``"autoattack"`` AutoAttack, ``"paper"`` the dataset paper's keys.
            A custom task has the fields of a sweep (docs/your-own.md), such as ``{"mine": {"file": "my_attack.py",
            "norm": "Linf", "strengths": [8]}}``.

            Alternatively, a preset: ``"quick"`` means clean images, FGSM, PGD and AutoAttack at 8/255, and three
            corruptions at severity 5; ``"robustbench-linf"``, ``"robustbench-l2"`` and ``"robustbench-corruptions"``
            follow a RobustBench leaderboard on CIFAR-10, and the result's `model_info` has the format of RobustBench's
            `model_info` files.
        save: folder to which the results of each key are written when it is done. If the folder already has results of
            the same network, images and parameters, only the missing ones are computed. `Evaluation.load` reads it.
        count: size of a class-stratified random subset to evaluate; None evaluates all images, or up to 200 with the
            preset ``"quick"``. For a leaderboard, the first images are evaluated instead.
        normalisation: mean and standard deviation per channel, if the module takes normalised images.
        n_classes: number of classes C; None takes it from the module's output.
        seed: seed of the subset and of all random numbers.
        engine: ``"fused"`` (robust201's own attacks), or ``"reference"`` to run Foolbox and AutoAttack themselves.
        device: device to compute on; None uses the module's device.
        batch_size: maximum number of images per pass; with the reference engine, and in a custom task, random numbers
            depend on it.
        progress: whether to show progress on stderr (a bar on a terminal, elsewhere a line every ten seconds), or a
            function that is called with (evaluations done, total).

    Returns:
        An `Evaluation`; printing it shows accuracies and intervals. Its `table` has one row per key and strength, in
        the order of `keys` and by ascending strength. Columns: `key`, `strength` (epsilon in units of 1/255 for Linf,
        in units of the pixel range for L2 and L1; severity of a corruption; otherwise 0), `unit` (of the strength),
        `accuracy`, `low` and `high` (its 95% interval), `confidence` (mean softmax of the predicted class), `n_images`
        and `seconds` (for strengths that are attacked together, only the sum of the seconds is meaningful). A measure
        (kind ``measure``) has no accuracy but columns of its own, such as `squared_norm`, which are NaN in other rows.
        Further attributes: `outcomes` (which images were classified correctly), `distances` (smallest perturbations
        found by attacks such as `fmn`, in the unit of `strength`) and `summary` (a text on accuracy under all attacks
        together).

    Raises:
        ConfigError: a key, parameter, engine or device is unknown, a preset is combined with keys or parameters, or the
            folder `save` has results of another network, or of other images or parameters.
        ResultsError: the results in the folder `save` are damaged.
        DatasetError: images or labels have a wrong shape, type or range, images cannot be corrupted, or there are fewer
            images than `count`.
        EvaluationError: the module fails, or its output is not logits, is NaN, differs for equal images, or depends on
            the other images of the batch; or its logits or gradients are NaN or infinite in an attack.

    Warns:
        RobustWarning: the module's outputs seem to be bounded, such as by a softmax, it computes in half precision, or
            is not more accurate than chance on clean images; an attack's steps are too short to reach its epsilon, a
            weaker attack beats a stronger one, or there is another sign of a weak attack (docs/trust.md).
    """
    keys = "quick" if keys is None else keys
    preset = find_preset(keys)
    parsed_keys = parse_keys(keys, engine)
    user_images = as_image_set(images, labels)
    leaderboard = None if preset is None else LEADERBOARDS.get(preset)
    if preset is not None and leaderboard is not None:
        check_images(preset, user_images)
        n_classes = N_CLASSES
    if preset == "quick":
        if _uncorruptible_reason(user_images) is not None:
            parsed_keys = [(task, parameters) for task, parameters in parsed_keys if task.kind != "corruption"]
        if count is None and len(user_images) > QUICK_IMAGES:
            count = QUICK_IMAGES
    if count is not None:
        check_selection(count, len(user_images.labels), "the given images")
    for task, parameters in parsed_keys:
        _check_shape(user_images, task, parameters)
        warn_of_parameters(task, parameters)
    network = model.network if isinstance(model, Classifier) else model
    common_arguments = _CommonArguments(as_normalisation(normalisation), n_classes, seed, engine, device, batch_size)
    with shown_progress(progress) as evaluation_progress, common_arguments.open_context(model, user_images) as context:
        image_set = _adapt_images(user_images, context.classifier)
        if preset == "quick" and image_set.n_classes < TASKS["aa_standard"].model.min_classes:
            parsed_keys = [
                pair
                for task, parameters in parsed_keys
                for pair in (parse_keys(FEW_CLASSES, engine) if task.key == "aa_standard" else [(task, parameters)])
            ]
        shared_protocol = common_arguments.shared_protocol(user_images, context.classifier)
        published: CorruptedStore | None = None
        if leaderboard is not None:
            image_set = dataclasses.replace(_head(image_set, count), dataset=DATASET)
            if leaderboard.eps is None:
                published = _open_published(image_set, len(user_images.labels))
        elif count is not None:
            image_set = select(image_set, count=count, seed=seed)
        if count is not None:
            subset = "class-stratified subset" if leaderboard is None else "first images"
            shared_protocol["images"] = f"{subset}, {count} of {user_images.n_split or len(user_images)}"
        empty = Evaluation(
            type(network).__name__,
            hash_network(network, _normalisation_of(context.classifier)),
            _hash_images(image_set),
            image_set.images.shape[1:],
            image_set.indices,
            {},
            tuple(context.classifier.notices),
            preset,
            _logits_of_first(context, image_set),
        )
        recipes = _identify_corruptions([task for task, _ in parsed_keys], image_set, seed, published)
        protocols = {
            task.key: _describe_protocol(shared_protocol | recipes.get(task.key, {}), task, parameters, batch_size)
            for task, parameters in parsed_keys
        }
        strengths = {task.key: parameters.strengths for task, parameters in parsed_keys}
        saved = {} if save is None else read_saved(Path(save), empty, protocols, strengths).results
        evaluation_progress.costs = {
            task.key: len(image_set) * len(missing) * _count_passes(context, task, parameters, image_set)
            for task, parameters in parsed_keys
            if (missing := _missing_strengths(parameters, saved.get(task.key)))
        }
        evaluation_progress.stage_costs = {
            task.key: stage_passes(parameters, image_set.n_classes)
            for task, parameters in parsed_keys
            if isinstance(parameters, Standard)
        }
        run = _Run(
            context if published is None else dataclasses.replace(context, corrupted_images=published),
            image_set,
            protocols,
            evaluation_progress,
            progress,
        )
        evaluation = _evaluate_keys(run, parsed_keys, empty, saved, None if save is None else Path(save))
        follows_gradients = any(task.kind == "attack" and not _is_black_box(task) for task, _ in parsed_keys)
        zero_fraction = _measure_zero_gradients(context, image_set) if follows_gradients else 0.0
    rows = [row for results in evaluation.results.values() for row in results.rows]
    flags = _describe_weak_attacks(rows, _name_of(network), len(image_set), image_set.n_classes, zero_fraction)
    return _add_notices(evaluation, flags, save)


def _add_notices(evaluation: Evaluation, notices: Sequence[str], save: str | Path | None) -> Evaluation:
    """Warn, and add the warnings to an evaluation and to its folder."""
    for notice in notices:
        warnings.warn(notice, RobustWarning, stacklevel=3)
    evaluation = dataclasses.replace(evaluation, notices=(*evaluation.notices, *notices))
    if save is not None and notices:
        extend_saved(Path(save), dataclasses.replace(evaluation, results={}))
    return evaluation


def _describe_protocol(
    shared: Mapping[str, Any], task: Task, parameters: Parameters, batch_size: int
) -> dict[str, Any]:
    """Return all fields that affect the numbers of a key, as JSON values.

    For a custom task, these include its function, the hashes of its file and of the modules that the file imports from
    its folder, and the number of images that share random numbers.
    """
    custom = task.function.identity() | {"batch_size": batch_size} if isinstance(task, UserTask) else {}
    fields = {**shared, "version": task.semantics_version, **parameters.identity(), **custom}
    protocol: dict[str, Any] = json.loads(json.dumps(fields, default=repr))
    return protocol


def _identify_corruptions(
    tasks: Sequence[Task], images: ImageSet, seed: int, published: "CorruptedStore | None"
) -> dict[str, dict[str, Any]]:
    """Return the protocol field that identifies the pixels of each corruption (as in a sweep), by key."""
    keys = [task.key for task in tasks if task.kind == "corruption"]
    if not keys:
        return {}
    from robust201.sweep.config import CorruptionsSection
    from robust201.sweep.facts import generation_recipes

    section = CorruptionsSection(source="generated", seed=seed)
    recipes = generation_recipes(section, keys, images.images.shape[-1]) if published is None else {}
    return {key: {"corruption": recipes[key] if published is None else published.identity(key)} for key in keys}


def _open_published(images: ImageSet, n_images: int) -> "CorruptedStore":
    """Return the source of the corrupted images of CIFAR-10-C."""
    from robust201.images.corrupted import open_published
    from robust201.images.downloads.registry import data_folder

    return open_published(data_folder(), images, n_images=n_images, keys=CORRUPTIONS)


@dataclass(frozen=True)
class _Run:
    """What the evaluations of all keys have in common.

    Attributes:
        protocols: protocol of each key.
        shown: progress, for its display.
        progress: the caller's argument (see `evaluate`).
    """

    context: Context
    images: ImageSet
    protocols: Mapping[str, Mapping[str, Any]]
    shown: EvaluationProgress
    progress: ProgressOption

    def count(self, n_evaluations: int) -> None:
        """Add to the number of complete evaluations, and report it to the caller."""
        self.shown.n_evaluations_done += n_evaluations
        if not isinstance(self.progress, bool):
            self.progress(self.shown.n_evaluations_done, self.shown.n_evaluations)


def _evaluate_keys(
    run: _Run,
    parsed_keys: Sequence[tuple[Task, Parameters]],
    empty: Evaluation,
    saved: Mapping[str, KeyResults],
    save: Path | None,
) -> Evaluation:
    """Evaluate all images under all keys, except where results are saved, and return the results with warnings."""
    results: dict[str, KeyResults] = {}
    notices = [*empty.notices]
    run.shown.n_evaluations = sum(len(parameters.strengths) for _, parameters in parsed_keys)
    kinds = {task.kind for task, _ in parsed_keys}
    if kinds - {"measure"} and "clean" not in kinds:
        _report_chance(run.context, _count_correct(run.context, run.images), run.images, notices)
    for task, parameters in parsed_keys:
        results[task.key] = _complete(run, task, parameters, saved.get(task.key))
        check_again(run.context.classifier, name=_name_of(run.context.classifier.network))
        if task.key == "clean":
            _report_chance(run.context, int(results["clean"].outcomes[CLEAN_STRENGTH].sum()), run.images, notices)
        if save is not None:
            of_key = {task.key: results[task.key]}
            extend_saved(save, dataclasses.replace(empty, results=of_key, notices=tuple(notices)))
    return dataclasses.replace(empty, results=results, notices=tuple(notices))


def _complete(run: _Run, task: Task, parameters: Parameters, saved: KeyResults | None) -> KeyResults:
    """Return the results of a key; strengths that are not saved are evaluated."""
    requested = parameters.strengths
    missing = _missing_strengths(parameters, saved)
    if len(missing) < len(requested):
        run.count(len(requested) - len(missing))
    new = _evaluate_strengths(run, task, parameters, missing) if missing else None
    results = saved.merge(new) if saved is not None and new is not None else new or saved
    assert results is not None  # noqa: S101 - without saved results, all strengths are missing
    return results.select(requested)


def _missing_strengths(parameters: Parameters, saved: KeyResults | None) -> tuple[float, ...]:
    """Return the strengths of a key that are not saved."""
    return tuple(each for each in parameters.strengths if saved is None or each not in saved.strengths)


def _evaluate_strengths(run: _Run, task: Task, parameters: Parameters, strengths: tuple[float, ...]) -> KeyResults:
    run.shown.begin_key(task.key, strengths)
    results = []
    # Custom code may use torch's generator, so the generator is seeded from the user's seed and the key.
    with dataclasses.replace(run.context, key=task.key).seeded(0):
        for result in _evaluate_key(run, task, parameters, strengths):
            results.append(result)
            run.count(1)
    results.sort(key=lambda result: result.strength)
    outcomes = {
        result.strength: result.values[PREDICTIONS] == run.images.labels
        for result in results
        if PREDICTIONS in result.values
    }
    distances = distances_of(results[-1].values[DISTANCES]) if task.finds_distances else None
    return KeyResults(tuple(map(_make_table_row, results)), run.protocols[task.key], outcomes, distances)


def _report_chance(context: Context, n_correct: int, image_set: ImageSet, notices: list[str]) -> None:
    """Warn if a network's clean accuracy is not above chance."""
    if (notice := _describe_chance(context.classifier, n_correct, len(image_set))) is not None:
        warnings.warn(notice, RobustWarning, stacklevel=4)
        notices.append(notice)


@torch.inference_mode()
def _logits_of(context: Context, image_set: ImageSet) -> torch.Tensor:
    pixels = copy_to_device(image_set, context.classifier.device).pixels
    logits = [context.logits(to_float(pixels[batch])) for _, batch in context.batches(len(image_set))]
    return torch.cat(logits).cpu()


def _count_correct(context: Context, image_set: ImageSet) -> int:
    """Return the number of images that the network classifies correctly without an attack."""
    is_correct = _logits_of(context, image_set).argmax(dim=1).numpy() == image_set.labels
    return int(is_correct.sum())


def _logits_of_first(context: Context, image_set: ImageSet) -> tuple[float, ...]:
    """Return the logits of the first few images, one after the other, but at most 1,000 numbers."""
    return tuple(_logits_of(context, _head(image_set, _COUNTED_IMAGES)).flatten()[:1000].tolist())


def _head(images: ImageSet, count: int | None) -> ImageSet:
    """Return the first `count` images, or all."""
    return dataclasses.replace(
        images, images=images.images[:count], labels=images.labels[:count], indices=images.indices[:count]
    )


def _describe_chance(classifier: Classifier, n_correct: int, n_images: int) -> str | None:
    """Return that a network's clean accuracy is not above chance; None if it is, or if there are too few images."""
    n_classes = classifier.n_classes
    if not is_at_chance(n_correct / n_images, n_images, n_classes):
        return None
    return (
        f"{_name_of(classifier.network)} classifies {n_correct:,} of {n_images:,} images correctly, which is not "
        f"significantly more than by chance (1 of {n_classes:,} classes). Check the normalisation, the order of the "
        "colour channels and of the classes, and the weights."
    )


def _count_passes(context: Context, task: Task, parameters: Parameters, image_set: ImageSet) -> float:
    """Return the passes per image and strength, which are counted for a user's attack that does not declare them."""
    if not isinstance(task, UserTask) or task.kind != "attack" or getattr(parameters, "passes", None) is not None:
        return task.passes(parameters, image_set.n_classes)
    few = _head(image_set, _COUNTED_IMAGES)
    resident = copy_to_device(few, context.classifier.device)
    request = Request(parameters.strengths, resident.pixels, resident.labels, few.indices)
    return task.count_passes(dataclasses.replace(context, key=task.key), request)


_COUNTED_IMAGES = 8
"""Number of images on which the passes of a user's attack are counted, and whose logits are saved."""


def _adapt_images(images: ImageSet, classifier: Classifier) -> ImageSet:
    """Return the user's images with the classes and the normalisation of the network."""
    return dataclasses.replace(
        images, dataset="images", n_classes=classifier.n_classes, normalisation=_normalisation_of(classifier), sha256=""
    )


def _evaluate_key(
    run: _Run, task: Task, parameters: Parameters, strengths: tuple[float, ...]
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
    measurements = (*_MEASUREMENTS, DISTANCES) if task.finds_distances else _MEASUREMENTS
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
                on_stage=run.shown.begin_stage,
                on_passes=run.shown.add_passes,
            ):
                remaining = tuple(strength for strength in remaining if strength != result.strength)
                yield result
        except Exception as error:  # the error of a user's function has the lack of memory as its context
            sizes = classifier.batch_sizes, run.context.attacked_model.batch_sizes
            if not is_out_of_memory(error) or halve_all(*sizes) is None:
                raise
            run.shown.begin_key(task.key, remaining)
        if remaining:  # not in the `except` block, in which the error keeps the tensors of the evaluation alive
            free_cached_memory(classifier.device)


def _hash_images(images: ImageSet) -> str:
    digest = hashlib.sha256(str(images.images.shape).encode())
    digest.update(images.images.tobytes())
    digest.update(images.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def attack(
    model: nn.Module,
    images: Any,
    labels: Any = None,
    key: str = "pgd",
    *,
    epsilon: float | str | Sequence[float | str] | None = None,
    normalisation: Normalisation | tuple[Sequence[float], Sequence[float]] | None = None,
    n_classes: int | None = None,
    seed: int = 0,
    engine: str = "fused",
    device: torch.device | str | None = None,
    batch_size: int = 250,
    **parameters: Any,
) -> torch.Tensor:
    """Attack images, and return the attacked images.

    Args:
        model: see `evaluate`.
        images: N images; see `evaluate`.
        labels: see `evaluate`.
        key: an attack, such as ``"pgd"``, or an attack at an epsilon, such as ``"pgd:8/255"``.
        epsilon: S radii of the ball, for pixels in [0, 1]: numbers, or text such as ``"8/255"``; None takes the
            attack's defaults.
        normalisation: see `evaluate`.
        n_classes: see `evaluate`.
        seed: see `evaluate`.
        engine: see `evaluate`.
        device: see `evaluate`.
        batch_size: see `evaluate`.
        parameters: further parameters of the attack, such as ``steps=80`` (docs/configuration.md).

    Returns:
        (S, N, C, H, W) float32 in [0, 1], on the device that computed them, in the order of the radii (default radii
        are ascending). Attacks of AutoAttack return clean images where they do not fool the network.

    Raises:
        ConfigError: the key is not an attack, or see `evaluate`.
        DatasetError: see `evaluate`.
        EvaluationError: see `evaluate`.
    """
    task, term_fields = parse_key(key)
    if task.kind != "attack":
        attacks = ", ".join(name for name, task in TASKS.items() if task.kind == "attack")
        raise ConfigError(f"Attacking failed for {key!r}: it is not an attack. Use one of {attacks}.")
    if term_fields and epsilon is not None:
        raise ConfigError(f"Attacking failed for {key!r}: the key already has an epsilon. Remove one of the two.")
    if task.constraint is None and epsilon is not None:
        raise ConfigError(f"Attacking failed for {key!r}: this attack has no epsilon. Leave epsilon out.")
    requested = None if epsilon is None else np.atleast_1d(np.asarray(epsilon, dtype=object)).tolist()
    requested = term_fields.get("epsilons", requested)
    attack_parameters = parse_parameters(
        task, parameters if requested is None else parameters | {"epsilons": requested}, engine
    )
    strengths = attack_parameters.strengths
    image_set = as_image_set(images, labels)
    _check_shape(image_set, task, attack_parameters)
    warn_of_parameters(task, attack_parameters)
    common_arguments = _CommonArguments(as_normalisation(normalisation), n_classes, seed, engine, device, batch_size)
    with common_arguments.open_context(model, image_set, key=task.key) as context:
        torch_device = context.classifier.device
        pixels, label_tensor = (
            torch.from_numpy(image_set.images).to(torch_device),
            torch.from_numpy(image_set.labels).to(torch_device),
        )
        request = Request(strengths, pixels, label_tensor, image_set.indices)
        requested_strengths = (
            strengths if task.constraint is None or requested is None else map(task.constraint.strength_of, requested)
        )
        positions = [strengths.index(strength) for strength in requested_strengths]
        attacked = torch.empty((len(strengths), *pixels.shape), device=torch_device)
        name = f"{type(model).__name__} images {task.key}"
        for batch in perturb(task, context, attack_parameters, request, name=name):
            attacked[positions.index(batch.strength_index), batch.positions] = batch.images
    return attacked


@dataclass(frozen=True)
class _CommonArguments:
    """Arguments that `evaluate` and `attack` have in common."""

    normalisation: Normalisation | None
    n_classes: int | None
    seed: int
    engine: str
    device: torch.device | str | None
    batch_size: int

    @contextmanager
    def open_context(self, model: nn.Module, images: ImageSet, key: str = "") -> Iterator[Context]:
        """Check a model and labels, and yield the context of an evaluation."""
        if self.batch_size < 1:
            raise ConfigError(f"Reading arguments failed for `batch_size`: expected 1 or more, got {self.batch_size}.")
        prepared = as_classifier(
            model,
            images,
            normalisation=self.normalisation,
            n_classes=self.n_classes,
            device=self.device,
            batch_size=self.batch_size,
            name=_name_of(model),
        )
        with prepared as classifier:
            _check_class_folders(images, classifier)
            check_label_range(images.labels, classifier.n_classes)
            compiled = self._compile(classifier, images) if self.engine == "fused" else None
            yield Context(
                classifier,
                self.seed,
                self.batch_size,
                corrupted_images=_generate_corruptions(images, self.seed),
                key=key,
                engine=self.engine,
                model=compiled,
            )

    def shared_protocol(self, images: ImageSet, classifier: Classifier) -> dict[str, Any]:
        """Return the settings that affect the results of every key, without the model, images and parameters."""
        is_reference = self.engine == "reference"
        shared: dict[str, Any] = {
            "seed": self.seed,
            "engine": self.engine,
            "batch_size": self.batch_size if is_reference else None,
            "device": classifier.device.type,
        }
        if images.images.dtype != np.uint8:
            shared["pixels"] = "floats, not multiples of 1/255"
        if classifier.dtype is not torch.float32:
            shared["precision"] = str(classifier.dtype).removeprefix("torch.")
        return shared

    def _compile(self, classifier: Classifier, images: ImageSet) -> CompiledNetwork | None:
        compiled = None if classifier.compiler is None else classifier.compiler(classifier.network, classifier.device)
        if compiled is not None:
            compiled.batch_sizes.limit = self.batch_size
            pixels = CheckedImages.of(images, classifier.device).pixels
            check_compiled(classifier, compiled, pixels, precision="fp32", name=_name_of(classifier.network))
        return compiled


def _check_class_folders(images: ImageSet, classifier: Classifier) -> None:
    """If labels come from class folders, check that their number is the network's number of classes."""
    n_folders = len(images.class_names)
    if n_folders not in {0, classifier.n_classes}:
        raise DatasetError(
            f"Reading labels failed for the images of {n_folders:,} class folders: the network has "
            f"{classifier.n_classes:,} classes, so labels cannot be derived from the order of the folders. Write the "
            "label of each folder into labels.json beside the folders, or evaluate another network."
        )


def _generate_corruptions(images: ImageSet, seed: int) -> CorruptedImageSource:
    """Return a source of generated corrupted images."""

    def corrupted(key: str, severity: int, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        from robust201.corruptions.generator import corrupt, synthetic_frost

        positions = np.searchsorted(images.indices, rows)
        clean = np.ascontiguousarray(images.images[positions].transpose(0, 2, 3, 1))
        corrupted_pixels = corrupt(clean, key, severity, seed=seed, indices=rows, frost=synthetic_frost(seed))
        return corrupted_pixels.transpose(0, 3, 1, 2)

    return corrupted


def _uncorruptible_reason(images: ImageSet) -> str | None:
    """Return the reason why images cannot be corrupted; None if they can.

    If the text ends with a comma, it includes advice that the caller must complete with an alternative.
    """
    channels, height, width = images.images.shape[1:]
    if height != width or height < MIN_IMAGE_SIZE:
        size = f"expected square images of {MIN_IMAGE_SIZE} pixels or more, got {height}x{width}."
        return f"{size} {_shape_advice(height, width)}"
    if channels != 3:
        return "corruptions need RGB images, but these have one channel."
    if images.images.dtype != np.uint8:
        return (
            "corruptions need 8-bit pixels, but some of these floats are not multiples of 1/255. Round them, "
            "as in (images * 255).round() / 255,"
        )
    return None


def _shape_advice(height: int, width: int) -> str:
    return "Use larger images," if height == width else "Crop or pad them to a square first,"


def _check_shape(images: ImageSet, task: Task, parameters: Parameters) -> None:
    height, width = images.images.shape[2:]
    if task.kind == "corruption":
        activity, reason = "Corrupting", _uncorruptible_reason(images)
    else:
        activity, reason = "Attacking", parameters.unsupported_shape_reason(height, width)
        reason = reason and f"{reason} {_shape_advice(height, width)}"
    if reason is not None:
        remedy = "Leave the key out." if reason.endswith(".") else "or leave the key out."
        raise DatasetError(f"{activity} images failed for {task.key!r}: {reason} {remedy}")


def _normalisation_of(classifier: Classifier) -> Normalisation:
    means, stds = classifier.mean.flatten().tolist(), classifier.std.flatten().tolist()
    return Normalisation(tuple(means), tuple(stds))


def _normalisation_error(value: object) -> ConfigError:
    return ConfigError(
        f"Reading arguments failed for `normalisation`: expected (mean, std), each with three numbers, or one for grey "
        f"images, got {reprlib.repr(value)}. Pass means and standard deviations of pixels in [0, 1]."
    )


def as_normalisation(value: Normalisation | tuple[Sequence[float], Sequence[float]] | None) -> Normalisation | None:
    """Convert (mean, std), each with one number per channel, to a `Normalisation`."""
    if value is None:
        return None
    if isinstance(value, Normalisation):
        normalisation = value
    else:
        try:
            mean, std = (tuple(float(number) for number in numbers) for numbers in value)
        except (TypeError, ValueError) as error:
            raise _normalisation_error(value) from error
        if len(mean) != len(std) or len(mean) not in {1, 3}:
            raise _normalisation_error(value)
        normalisation = Normalisation(mean, std)
    if (problem := normalisation.problem) is not None:
        raise ConfigError(f"Reading arguments failed for `normalisation` ({problem.field}): {problem.text}")
    return normalisation


COMPARED_NAME: ContextVar[str | None] = ContextVar("compared_name", default=None)
"""Name of the network that the current call of `compare` or `curves` evaluates; None outside them."""


def _name_of(network: nn.Module) -> str:
    """Return a network's name in messages: the caller's name in `compare`, otherwise its class."""
    return COMPARED_NAME.get() or type(network).__name__


_N_GRADIENT_IMAGES = 64
"""Number of images whose gradients are checked; an attack cannot follow a gradient of exactly 0."""


def _is_black_box(task: Task) -> bool:
    return task.role == "black box"


def _measure_zero_gradients(context: Context, image_set: ImageSet) -> float:
    """Return the fraction of the first `_N_GRADIENT_IMAGES` images whose gradient of the loss is exactly 0.

    The result is 0 if the network lacks gradients: only a warning depends on it, and the attacks have finished.
    """
    pixels = to_float(torch.from_numpy(image_set.images[:_N_GRADIENT_IMAGES])).to(context.classifier.device)
    labels = torch.from_numpy(image_set.labels[:_N_GRADIENT_IMAGES]).to(context.classifier.device)
    try:
        _, _, gradient = context.classifier.loss_and_gradient(pixels, labels)
    except (Exception, SystemExit):  # noqa: BLE001 - a network may raise anything
        return 0.0
    return float((gradient.flatten(1) == 0).all(dim=1).double().mean())


def _describe_weak_attacks(
    rows: Sequence[Mapping[str, Any]], name: str, n_images: int, n_classes: int, zero_fraction: float
) -> list[str]:
    """Return one warning about each sign of weak attacks, such as a weaker attack that fools more images."""
    results: dict[KeyAndStrength, Accuracies] = {ZERO_GRADIENTS: {name: zero_fraction}}
    for row in rows:
        if "accuracy" in row:
            results[row["key"], row["strength"]] = {name: row["accuracy"]}
        elif "zero_share" in row:
            results[ZERO_GRADIENTS] = {name: row["zero_share"]}
    flags = find_flags("", results, n_images=n_images, n_classes=n_classes, flag_any_difference=True)
    flags_by_check: dict[str, list[AttackFlag]] = {}
    for flag in flags:
        if flag.check != AT_CHANCE:  # reported by `_describe_chance`
            flags_by_check.setdefault(flag.check, []).append(flag)
    messages = []
    for flags_of_check in flags_by_check.values():
        clearest_flag = max(flags_of_check, key=lambda flag: flag.networks[0][1] - flag.networks[0][2])
        n_more = len(flags_of_check) - 1
        further_cases = (
            f" {n_more:,} more {'case shows' if n_more == 1 else 'cases show'} the same sign of a weak attack."
            if n_more
            else ""
        )
        messages.append(f"{clearest_flag.message}{further_cases} See docs/trust.md.")
    return messages


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
