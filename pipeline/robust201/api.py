"""The Python API: load, evaluate, compare and attack networks, and rank them in a dataset. It writes no files."""

import dataclasses
import hashlib
import operator
import re
import reprlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import nn

from robust201.analysis.attack_flags import (
    AT_CHANCE,
    ZERO_GRADIENTS,
    Accuracies,
    AttackFlag,
    KeyAndStrength,
    find_flags,
)
from robust201.analysis.evaluation import Comparison, Evaluation, compare_evaluations
from robust201.analysis.evaluation_progress import EvaluationProgress, ProgressOption, shown_progress
from robust201.analysis.robustbench import DATASET, LEADERBOARDS, N_CLASSES, check_images
from robust201.core.errors import ConfigError, DatasetError, RobustWarning, did_you_mean
from robust201.core.files import bundled
from robust201.core.records import ArchitectureId, EvaluationResult, ImageSet, Normalisation, Part, Unit
from robust201.core.user_code import hash_file
from robust201.images import check_selection, data_folder, select
from robust201.images import dataset as dataset_spec
from robust201.images.corrupted import open_published
from robust201.images.user_arrays import as_image_set, check_label_range
from robust201.models.batch_sizes import halve_all
from robust201.models.classifier import Classifier
from robust201.models.device import available_device, free_cached_memory, is_out_of_memory
from robust201.models.model import CompiledNetwork
from robust201.models.network_check import CheckedImages, check_compiled
from robust201.models.user_module import as_classifier
from robust201.spaces import find_architecture
from robust201.statistics.intervals import accuracy_intervals, is_at_chance
from robust201.sweep.config import parse_custom_task
from robust201.sweep.field_errors import describe_problem
from robust201.tasks import (
    CORRUPTIONS,
    FEW_CLASSES,
    KEY_GROUPS,
    PRESETS,
    QUICK_IMAGES,
    TASKS,
    Task,
    expand_keys,
    find_task,
)
from robust201.tasks.attack_kit.context import Context, CorruptedImageSource, Request, to_float
from robust201.tasks.columns import DISTANCES, PREDICTIONS, distances_of
from robust201.tasks.corruptions.generator import MIN_IMAGE_SIZE, corrupt, synthetic_frost
from robust201.tasks.evaluate import copy_to_device, evaluate_part
from robust201.tasks.measurements import has_predictions, summarise
from robust201.tasks.parameters import Parameters
from robust201.tasks.perturbations.contract import perturb
from robust201.tasks.user_task import UserTask
from robust201.weights.loading import fill_network, read_weights
from robust201.weights.published.base import infer_size
from robust201.weights.store import CheckpointStore

if TYPE_CHECKING:
    from robust201.dataset.reader import RobustnessDataset

_Keys = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]

NetworkT = TypeVar("NetworkT")

_MEASUREMENTS = ("accuracy", "confidence_prediction", PREDICTIONS)
"""Measurements of every key that has predictions."""


def load_model(
    architecture: ArchitectureId,
    dataset: str,
    store: str | Path | CheckpointStore | None = None,
    *,
    weights: str | Path | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    recipe: str | None = None,
    device: torch.device | str = "cpu",
) -> Classifier:
    """Load a trained network as a module that includes its normalisation.

    Args:
        architecture: index or cell string of NAS-Bench-201 (isomorphic cells share weights), or the name of a network
            in the zoo, such as ``"resnet18"``.
        dataset: training dataset, a name in `robust201.images.DATASETS`; it determines normalisation and classes.
        store: checkpoint store or its folder (see ``robust201 import``). The prefix ``bundled:`` selects a
            store that ships with robust201.
        weights: safetensors or PyTorch file of the network's state_dict, instead of `store`.
        epochs: number of training epochs, for a `store`. None selects 200 or, if the store has no such training
            run, the highest number.
        seed: training seed, for a `store`. None selects 777 or, if the store has no such training run, the lowest
            seed.
        recipe: name of the training recipe, for a `store`; ``""`` is the published recipe. The name is required if
            several recipes match.
        device: device of the network.

    Returns:
        A frozen module in evaluation mode that maps (B, channels, H, W) float32 in [0, 1] to logits (B, C),
        differentiably.

    Raises:
        ArchitectureError: the architecture is unknown.
        ConfigError: the dataset or device is unknown, or `store` and `weights` are both set or both missing.
        CheckpointError: the weights are missing or damaged, or belong to a different network.

    Warns:
        RobustWarning: the file contains several state_dicts; the warning names the one that is used.
    """
    spec = dataset_spec(dataset)
    torch_device = available_device(device)
    if (store is None) == (weights is None):
        raise ConfigError(
            f"Loading a network failed for {architecture!r}: {'both' if store is not None else 'neither'} of `store` "
            f"and `weights` {'are' if store is not None else 'is'} set. Pass either `store` or `weights=FILE`."
        )
    space, name = find_architecture(_as_builtin_id(architecture))
    if store is not None:
        checkpoints = store if isinstance(store, CheckpointStore) else CheckpointStore(_store_folder(store))
        record = checkpoints.find(name, dataset, space=space.name, epochs=epochs, seed=seed, recipe=recipe)
        channels, cells = record.channels, record.cells
        tensors, source = checkpoints.load(record), f"{record.label} from {record.file}"
    else:
        tensors, source = read_weights(Path(str(weights))), str(weights)
        channels, cells = infer_size(tensors, source)[:2] if space.is_sized else (None, None)
    if channels is not None and cells is not None:
        space = space.with_size(channels=channels, cells=cells)
    network = space.build(name, n_classes=spec.n_classes)
    fill_network(network, tensors, source)
    classifier = Classifier(
        network, spec.normalisation, spec.n_classes, device=torch_device, channels_last=space.channels_last
    )

    def compile_network(network: nn.Module, device: torch.device) -> CompiledNetwork | None:
        normalisation, n_classes = spec.normalisation, spec.n_classes
        return space.compile(name, network, normalisation, n_classes=n_classes, device=device, precision="fp32")

    classifier.compiler = compile_network
    return classifier


def _store_folder(store: str | Path) -> Path:
    """Return a store's folder; as in a sweep YAML, the prefix ``bundled:`` means a store that ships with robust201."""
    name = str(store)
    return bundled(name.removeprefix("bundled:")) if name.startswith("bundled:") else Path(store)


def _as_builtin_id(architecture: ArchitectureId) -> ArchitectureId:
    """Convert an integer of any type, such as NumPy's, to int; return a name unchanged."""
    return architecture if isinstance(architecture, str) else operator.index(architecture)


def evaluate(
    model: nn.Module,
    images: Any = None,
    labels: Any = None,
    keys: _Keys = "quick",
    *,
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
        keys: keys of `robust201.tasks.TASKS`, alone or with parameters: ``["clean", {"pgd": {"steps": 80}}]``;
            ``"corruptions"`` means all corruptions, ``"autoattack"`` AutoAttack, ``"paper"`` the dataset paper's keys.
            A custom task has the fields of a sweep (docs/your-own.md), such as ``{"mine": {"file": "my_attack.py",
            "norm": "Linf", "strengths": [8]}}``.

            Alternatively, a preset: ``"quick"`` means clean images, FGSM, PGD and AutoAttack at 8/255, and three
            corruptions at severity 5; ``"robustbench-linf"``, ``"robustbench-l2"`` and ``"robustbench-corruptions"``
            follow a RobustBench leaderboard on CIFAR-10, and the result's `model_info` has the format of RobustBench's
            `model_info` files.
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
        A DataFrame with one row per key and strength, in the order of `keys` and by ascending strength. Columns: `key`,
        `strength` (epsilon in units of 1/255 for Linf, in units of the pixel range for L2 and L1; severity of a
        corruption; otherwise 0), `accuracy`, `low` and `high` (its 95% interval), `confidence` (mean softmax of the
        predicted class), `n_images` and `seconds` (for strengths that are attacked together, only the sum of the
        seconds is meaningful). A measure (kind ``measure``) has no accuracy but columns of its own, such as
        `squared_norm`, which are NaN in other rows. Properties: `outcomes` (which images were classified correctly),
        `distances` (smallest perturbations found by attacks such as `fmn`, in the unit of `strength`) and `summary` (a
        text on accuracy under all attacks together).

    Raises:
        ConfigError: a key, parameter, engine or device is unknown, or a preset is combined with keys or parameters.
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
    preset = _find_preset(keys)
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
        _warn_of_parameters(task, parameters)
    network_name = _name_of(model)
    common_arguments = _CommonArguments(as_normalisation(normalisation), n_classes, seed, engine, device, batch_size)
    with shown_progress(progress) as evaluation_progress, common_arguments.open_context(model, user_images) as context:
        image_set = _adapt_images(user_images, context.classifier)
        if preset == "quick" and image_set.n_classes < TASKS["aa_standard"].model.min_classes:
            parsed_keys = [
                pair
                for task, parameters in parsed_keys
                for pair in (parse_keys(FEW_CLASSES, engine) if task.key == "aa_standard" else [(task, parameters)])
            ]
        corrupted = context.corrupted_images
        if leaderboard is not None:
            image_set = _first_images(image_set, count)
            if leaderboard.eps is None:
                corrupted = open_published(data_folder(), image_set, n_images=len(user_images.labels), keys=CORRUPTIONS)
        elif count is not None:
            image_set = select(image_set, count=count, seed=seed)
        evaluation_progress.costs = {
            task.key: len(image_set) * len(parameters.strengths) * _count_passes(context, task, parameters, image_set)
            for task, parameters in parsed_keys
        }
        key_results = _evaluate_keys(
            dataclasses.replace(context, corrupted_images=corrupted),
            parsed_keys,
            image_set,
            evaluation_progress,
            progress,
        )
        follows_gradients = any(task.kind == "attack" and not _is_black_box(task) for task, _ in parsed_keys)
        zero_fraction = _measure_zero_gradients(context, image_set) if follows_gradients else 0.0
    _warn_of_weak_attacks(key_results.rows, network_name, len(image_set), image_set.n_classes, zero_fraction)
    columns = ("key", "strength", "accuracy", "low", "high", "confidence", "n_images", "seconds")
    measure_columns = dict.fromkeys(column for task, _ in parsed_keys for column in task.columns)
    shared_protocol = common_arguments.shared_protocol(user_images, context.classifier)
    if count is not None:
        subset = "class-stratified subset" if leaderboard is None else "first images"
        shared_protocol["images"] = f"{subset}, {count} of {user_images.n_split or len(user_images)}"
    if leaderboard is not None and leaderboard.eps is None:
        shared_protocol["corruptions"] = "published"
    protocols = {
        task.key: shared_protocol | parameters.identity() | _custom_identity(task, common_arguments.batch_size)
        for task, parameters in parsed_keys
    }
    return Evaluation.build(
        key_results.rows,
        [*columns, *measure_columns],
        key_results.outcomes,
        image_set.indices,
        _hash_images(image_set),
        protocols,
        preset,
        key_results.distances,
        key_results.notices,
    )


def _custom_identity(task: Task, batch_size: int) -> dict[str, str | int]:
    """Return a custom task's function and its file's hash, and the number of images that share random numbers.

    Other tasks have no such fields.
    """
    return task.function.identity() | {"batch_size": batch_size} if isinstance(task, UserTask) else {}


class _KeyResults(NamedTuple):
    """Results of an evaluation under several keys.

    Attributes:
        rows: rows of the table.
        outcomes: per-image outcomes by key and strength.
        distances: per-image distances by key, up to the largest strength.
        notices: warnings that the network's accuracies are doubtful.
    """

    rows: list[dict[str, Any]]
    outcomes: dict[tuple[str, float], NDArray[np.bool_]]
    distances: dict[str, NDArray[np.float64]]
    notices: list[str]


def _first_images(images: ImageSet, count: int | None) -> ImageSet:
    """Return the first `count` of the test images of CIFAR-10, or all."""
    return dataclasses.replace(
        images,
        dataset=DATASET,
        images=images.images[:count],
        labels=images.labels[:count],
        indices=images.indices[:count],
    )


def _evaluate_keys(
    context: Context,
    parsed_keys: Sequence[tuple[Task, Parameters]],
    image_set: ImageSet,
    evaluation_progress: EvaluationProgress,
    progress: ProgressOption,
) -> _KeyResults:
    """Evaluate all images under all keys."""
    key_results = _KeyResults([], {}, {}, [*context.classifier.notices])
    evaluation_progress.n_evaluations = sum(len(parameters.strengths) for _, parameters in parsed_keys)
    for task, parameters in parsed_keys:
        evaluation_progress.begin_key(task.key, parameters.strengths, len(image_set))
        results = []
        # Custom code may use torch's generator, so the generator is seeded from the user's seed and the key.
        with dataclasses.replace(context, key=task.key).seeded(0):
            for result in _evaluate_key(context, task, parameters, image_set, evaluation_progress):
                results.append(result)
                evaluation_progress.n_evaluations_done += 1
                if not isinstance(progress, bool):
                    progress(evaluation_progress.n_evaluations_done, evaluation_progress.n_evaluations)
        results.sort(key=lambda result: result.strength)
        key_results.rows.extend(map(_make_table_row, results))
        if task.finds_distances:
            key_results.distances[task.key] = distances_of(results[-1].values[DISTANCES])
        for result in results:
            if PREDICTIONS in result.values:
                key_results.outcomes[task.key, result.strength] = result.values[PREDICTIONS] == image_set.labels
        if task.key == "clean":
            _report_chance(context, summarise(results[0].values)[0], image_set, key_results.notices)
    kinds = {task.kind for task, _ in parsed_keys}
    if kinds - {"measure"} and "clean" not in kinds:
        _report_chance(context, _count_correct(context, image_set), image_set, key_results.notices)
    return key_results


def _report_chance(context: Context, n_correct: int, image_set: ImageSet, notices: list[str]) -> None:
    """Warn if a network's clean accuracy is not above chance."""
    if (notice := _describe_chance(context.classifier, n_correct, len(image_set))) is not None:
        warnings.warn(notice, RobustWarning, stacklevel=4)
        notices.append(notice)


@torch.inference_mode()
def _count_correct(context: Context, image_set: ImageSet) -> int:
    """Return the number of images that the network classifies correctly without an attack."""
    images = copy_to_device(image_set, context.classifier.device)
    is_correct = [
        context.logits(to_float(images.pixels[batch])).argmax(dim=1) == images.labels[batch]
        for _, batch in context.batches(len(image_set))
    ]
    return int(torch.cat(is_correct).sum())


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
    few = dataclasses.replace(
        image_set,
        images=image_set.images[:_COUNTED_IMAGES],
        labels=image_set.labels[:_COUNTED_IMAGES],
        indices=image_set.indices[:_COUNTED_IMAGES],
    )
    resident = copy_to_device(few, context.classifier.device)
    request = Request(parameters.strengths, resident.pixels, resident.labels, few.indices)
    return task.count_passes(dataclasses.replace(context, key=task.key), request)


_COUNTED_IMAGES = 8
"""Number of images on which the passes of a user's attack are counted."""


def _adapt_images(images: ImageSet, classifier: Classifier) -> ImageSet:
    """Return the user's images with the classes and the normalisation of the network."""
    return dataclasses.replace(
        images, dataset="images", n_classes=classifier.n_classes, normalisation=_normalisation_of(classifier), sha256=""
    )


def _evaluate_key(
    context: Context, task: Task, parameters: Parameters, image_set: ImageSet, evaluation_progress: EvaluationProgress
) -> Iterator[EvaluationResult]:
    """Evaluate all images under one key, and yield one result per strength, in any order.

    If memory runs out, batches are halved, and the remaining strengths are evaluated again.
    """
    unit = Unit(
        id="",
        architecture=type(context.classifier.network).__name__,
        dataset=image_set.dataset,
        key=task.key,
        strengths=parameters.strengths,
        n_images=len(image_set),
        protocol="",
        checkpoint_sha256="",
    )
    measurements = (*_MEASUREMENTS, DISTANCES) if task.finds_distances else _MEASUREMENTS
    remaining = parameters.strengths
    while remaining:
        try:
            for result in evaluate_part(
                context,
                task,
                parameters,
                Part(unit, remaining, 0, len(image_set)),
                image_set,
                measurements,
                provenance={},
                on_images=evaluation_progress.add_images,
                on_stage=evaluation_progress.begin_stage,
            ):
                remaining = tuple(strength for strength in remaining if strength != result.strength)
                yield result
        except Exception as error:  # the error of a user's function has the lack of memory as its context
            sizes = context.classifier.batch_sizes, context.attacked_model.batch_sizes
            if not is_out_of_memory(error) or halve_all(*sizes) is None:
                raise
            evaluation_progress.begin_key(task.key, remaining, len(image_set))
        if remaining:  # not in the `except` block, in which the error keeps the tensors of the evaluation alive
            free_cached_memory(context.classifier.device)


def compare(
    networks: Mapping[str, nn.Module | Evaluation | str] | Sequence[nn.Module | Evaluation | str],
    images: Any = None,
    labels: Any = None,
    keys: _Keys | None = None,
    *,
    data: str | None = None,
    **options: Any,
) -> Comparison:
    """Compare two or more networks on the same images, image by image.

    Args:
        networks: modules, or results of `evaluate`, in a mapping by name or in a list. In a list, they are named after
            their classes, with numbers if classes repeat. Alternatively, strings that name networks whose per-image
            outcomes are in datasets: ``DATASET:ARCHITECTURE`` or ``DATASET:ARCHITECTURE@WEIGHTS``, where DATASET is a
            folder. Without WEIGHTS, all weights of the architecture are compared.
        images: see `evaluate`; only needed for modules.
        labels: see `evaluate`.
        keys: see `evaluate`; by default clean images, FGSM and PGD. For networks in datasets: keys, or keys at a
            strength, such as ``"pgd:8"``; by default every key at one strength (nearest to 1/255, or severity 3).
        data: name of the image dataset, if the folder DATASET covers several.
        options: further arguments of `evaluate`, such as `seed`, the same for all modules.

    Returns:
        A DataFrame with one row per pair, key and strength: `first` and `second` (names), `key`, `strength`,
        `first_accuracy`, `second_accuracy`, `difference` (second minus first), `low` and `high` (its paired 95%
        interval), `only_first` and `only_second` (numbers of images that only this network classifies correctly),
        `p_value` (McNemar's exact test, two-sided), `adjusted_p_value` (Holm's correction over all rows) and
        `n_images`. Its property `summary` has a sentence about each pair.

    Raises:
        ConfigError: there are fewer than two networks; modules or tables are mixed with networks in datasets; two
            tables have different images, different parameters of a key, or no key in common; or see `evaluate`.
        DatasetError: see `evaluate`.
        EvaluationError: see `evaluate`.
    """
    if isinstance(networks, nn.Module | pd.DataFrame):
        raise ConfigError(
            f"Comparing networks failed for {type(networks).__name__}: a comparison needs two or more networks. Pass "
            "a list, or a mapping of names to networks."
        )
    evaluations: dict[str, Evaluation] = {}
    names_and_networks = _pair_with_names(networks)
    stored_networks = [network for _, network in names_and_networks if isinstance(network, str)]
    if 0 < len(stored_networks) < len(names_and_networks):
        raise ConfigError(
            f"Comparing networks failed for {stored_networks[0]}: a network in a dataset cannot be compared with "
            "modules or tables, because a dataset has its own images and protocol. Compare networks of one dataset "
            "with each other."
        )
    _check_listed_once(stored_networks)
    cautions_token, name_token = _SHOWN_CAUTIONS.set(set()), _COMPARED_NAME.set(None)
    try:
        for name, network in names_and_networks:
            if isinstance(network, str):
                for stored_name, table in _read_stored(name, network, keys, data).items():
                    evaluations[network if stored_name in evaluations else stored_name] = table
            elif isinstance(network, nn.Module):
                requested_keys = ("clean", "fgsm", "pgd") if keys is None else keys
                _COMPARED_NAME.set(name)
                evaluations[name] = evaluate(network, images, labels, requested_keys, **options)
            else:
                evaluations[name] = network
    finally:
        _SHOWN_CAUTIONS.reset(cautions_token)
        _COMPARED_NAME.reset(name_token)
    return compare_evaluations(evaluations)


def _check_listed_once(networks: Sequence[str]) -> None:
    for network in networks:
        if networks.count(network) > 1:
            raise ConfigError(
                f"Comparing networks failed for {network}: it is listed more than once. List each network once."
            )


_Network = nn.Module | Evaluation | str


def name_networks(networks: Sequence[NetworkT]) -> dict[str, NetworkT]:
    """Name networks after their classes, with numbers where several have the same class."""
    return dict(zip(_class_names(networks), networks, strict=True))


def _pair_with_names(networks: Mapping[str, _Network] | Sequence[_Network]) -> list[tuple[str, _Network]]:
    """Pair networks with their names, which are the keys of a mapping or the class names in a list.

    In a list, the names of stored networks are empty.
    """
    if isinstance(networks, Mapping):
        return list(networks.items())
    names = zip(_class_names(networks), networks, strict=True)
    return [("" if isinstance(network, str) else name, network) for name, network in names]


def _class_names(networks: Sequence[object]) -> list[str]:
    names = [type(network).__name__ for network in networks]
    return [name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)]


def _read_stored(name: str, network: str, keys: _Keys | None, data: str | None) -> dict[str, Evaluation]:
    """Read the evaluations of a stored network, or of all weights of an architecture.

    `name` replaces the network's name in the dataset, unless it is empty.
    """
    from robust201.analysis.stored_evaluations import read_evaluations

    requested_keys = [keys] if isinstance(keys, str) else keys
    if requested_keys is not None and not all(isinstance(key, str) for key in requested_keys):
        raise ConfigError(
            f"Comparing networks failed for {network}: keys have parameters, but a dataset's parameters are fixed. "
            "Pass names of keys only, such as pgd or pgd:8."
        )
    evaluations = read_evaluations(
        network, keys=None if requested_keys is None else [str(key) for key in requested_keys], data=data
    )
    if not name:
        return evaluations
    if len(evaluations) > 1:
        raise ConfigError(
            f"Comparing networks failed for {name}: the architecture has several weights: {', '.join(evaluations)}. "
            "Name one of them, or pass a list of networks."
        )
    return {name: next(iter(evaluations.values()))}


def _hash_images(images: ImageSet) -> str:
    digest = hashlib.sha256(str(images.images.shape).encode())
    digest.update(images.images.tobytes())
    digest.update(images.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def attack(
    key: str,
    model: nn.Module,
    images: Any,
    labels: Any,
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
        key: an attack, such as ``"pgd"``.
        model: see `evaluate`.
        images: N images; see `evaluate`.
        labels: see `evaluate`.
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
    task = _find_task(key)
    if task.kind != "attack":
        attacks = ", ".join(name for name, task in TASKS.items() if task.kind == "attack")
        raise ConfigError(f"Attacking failed for {key!r}: it is not an attack. Use one of {attacks}.")
    if task.constraint is None and epsilon is not None:
        raise ConfigError(f"Attacking failed for {key!r}: this attack has no epsilon. Leave epsilon out.")
    requested = None if epsilon is None else np.atleast_1d(np.asarray(epsilon, dtype=object)).tolist()
    attack_parameters = _parse_parameters(
        task, parameters if requested is None else parameters | {"epsilons": requested}, engine
    )
    strengths = attack_parameters.strengths
    image_set = as_image_set(images, labels)
    _check_shape(image_set, task, attack_parameters)
    _warn_of_parameters(task, attack_parameters)
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


def place(result: pd.DataFrame, dataset: "RobustnessDataset", *, data: str = "cifar10") -> pd.DataFrame:
    """Rank a network among the evaluated architectures of a dataset.

    The ranks are meaningful only if the network was evaluated on the dataset's images and with its attack parameters
    (docs/protocol.md), which is not checked.

    Args:
        result: result of `evaluate`.
        dataset: dataset of evaluated architectures.
        data: image dataset on which the architectures were evaluated.

    Returns:
        One row per row of `result` that has an accuracy: `key`, `strength`, `accuracy`, `rank` (1 if no architecture is
        better; missing if the dataset has no accuracy at this key and strength), `architectures` (number of
        architectures with such an accuracy), `percentile` (percentage of these that are worse; ties count half),
        `median`, `best` and `best_architecture`.

    Raises:
        ConfigError: the DataFrame lacks columns of `evaluate`, or the dataset has no such image dataset.
        ResultsError: a file of the dataset is damaged.
    """
    missing_columns = [column for column in ("key", "strength", "accuracy") if column not in result]
    if missing_columns:
        raise ConfigError(
            f"Ranking failed for the result: it lacks these columns: {', '.join(missing_columns)}. Pass the result "
            "of robust201.evaluate."
        )
    if data not in dataset.data:
        raise ConfigError(
            f"Ranking failed for data={data!r}: the dataset has no results on such an image dataset."
            f"{did_you_mean(data, dataset.data)}"
        )
    rows = [
        _rank_accuracy(str(row["key"]), float(row["strength"]), float(row["accuracy"]), dataset, data)
        for row in result.dropna(subset="accuracy").to_dict("records")
    ]
    columns = ("key", "strength", "accuracy", "rank", "architectures")
    frame = pd.DataFrame(rows, columns=[*columns, "percentile", "median", "best", "best_architecture"])
    has_text_ids = any(isinstance(name, str) for name in frame["best_architecture"])
    return frame.astype({"rank": "Int64", "best_architecture": "string" if has_text_ids else "Int64"})


def _rank_accuracy(
    key: str, strength: float, accuracy: float, dataset: "RobustnessDataset", data: str
) -> dict[str, Any]:
    """Return one row of the result of `place`."""
    row: dict[str, Any] = {"key": key, "strength": strength, "accuracy": accuracy, "architectures": 0}
    if not dataset.has(data, key):
        return row
    # At strength 0, an attack's file may contain clean accuracies, which are not results of the attack.
    if strength not in dataset.strengths(data, key):
        return row
    frame = dataset.to_frame(data, key)
    accuracies = frame[frame["strength"] == strength].set_index("architecture")["value"].dropna()
    if accuracies.empty:
        return row
    n_better, n_equal = int((accuracies > accuracy).sum()), int((accuracies == accuracy).sum())
    return row | {
        "rank": 1 + n_better,
        "architectures": len(accuracies),
        "percentile": 100 * (len(accuracies) - n_better - n_equal / 2) / len(accuracies),
        "median": float(accuracies.median()),
        "best": float(accuracies.max()),
        "best_architecture": accuracies.index[int(accuracies.argmax())],
    }


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
        }
        if images.images.dtype != np.uint8:
            shared["pixels"] = "floats, not multiples of 1/255"
        if classifier.dtype is not torch.float32:
            shared["precision"] = str(classifier.dtype).removeprefix("torch.")
        if images.decoder:
            shared["decoder"] = dict(images.decoder)
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


def parse_keys(keys: _Keys, engine: str) -> list[tuple[Task, Parameters]]:
    """Parse the keys of `evaluate` and their parameters."""
    parsed: dict[str, tuple[Task, Parameters]] = {}
    preset = _find_preset(keys)
    keys_with_fields = _pair_with_fields(keys if preset is None else PRESETS[preset])
    listed_keys = [key for key, _ in keys_with_fields]
    for name, fields in keys_with_fields:
        # A member of a group that is also listed on its own has the parameters listed there, as in a sweep.
        members = [name]
        if isinstance(name, str) and name in KEY_GROUPS:
            members = [key for key in expand_keys([name]) if key not in listed_keys]
        for key in members:
            user_task = _parse_user_task(key, fields)
            task = _find_task(key) if user_task is None else user_task[0]
            if task.key in parsed:
                raise ConfigError(
                    f"Reading keys failed for {task.key!r}: it is listed more than once. Evaluate it with other "
                    "parameters in a second call."
                )
            parameters = _parse_parameters(task, fields, engine) if user_task is None else user_task[1]
            parsed[task.key] = task.with_parameters(parameters), parameters
    if not parsed:
        raise ConfigError("Reading keys failed: the list is empty. Pass one or more keys, such as clean.")
    return list(parsed.values())


def _pair_with_fields(keys: _Keys) -> list[tuple[str, Any]]:
    """Return the keys, each with the fields that are set."""
    return [
        pair
        for key_or_mapping in ([keys] if isinstance(keys, str | Mapping) else keys)
        for pair in (key_or_mapping.items() if isinstance(key_or_mapping, Mapping) else [(key_or_mapping, {})])
    ]


def _find_preset(keys: _Keys) -> str | None:
    """Return the preset that `keys` consists of; None if it lists keys."""
    keys_with_fields = _pair_with_fields(keys)
    presets = [name for name, _ in keys_with_fields if isinstance(name, str) and name in PRESETS]
    if not presets:
        return None
    if len(keys_with_fields) > 1 or keys_with_fields[0][1]:
        raise ConfigError(
            f"Reading keys failed for {presets[0]!r}: expected a preset alone, got further keys or parameters. List "
            f"keys instead: {', '.join(PRESETS[presets[0]])}."
        )
    return presets[0]


def _parse_user_task(key: object, fields: object) -> tuple[UserTask, Parameters] | None:
    """Parse a custom task and its parameters; None for any other key."""
    task_fields = {} if fields is None else fields
    if not isinstance(key, str) or not isinstance(task_fields, Mapping) or "file" not in task_fields:
        return None
    try:
        parameters = parse_custom_task(key, task_fields)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"Reading keys failed for {key!r}: {error}") from error
    if parameters.own_images is not None:
        raise ConfigError(
            f"Reading parameters failed for {key}: `split`, `images` and `image_seed` select images of a sweep, "
            "but `evaluate` measures all images that it receives. Leave them out, or evaluate the key in a sweep."
        )
    return parameters.to_task(key).located(parameters.file, hash_file(parameters.file)), parameters


def _find_task(key: object) -> Task:
    """Return the task of a key, which must be a text."""
    if not isinstance(key, str):
        raise ConfigError(
            f"Reading keys failed: expected a name such as 'pgd', or {{'pgd': {{'steps': 80}}}}, got a value of type "
            f"{type(key).__name__}. Pass a list of names or such mappings."
        )
    return find_task(key)


_IMAGE_FIELDS = ("split", "images", "image_seed")
"""Parameters that select the images of a measure in a sweep."""


def _parse_parameters(task: Task, fields: object, engine: str) -> Parameters:
    """Validate the fields of a key, and return the parameters of its task."""
    if not isinstance(fields, Mapping | None):
        raise ConfigError(
            f"Reading parameters failed for {task.key}: expected a mapping of names to values, got "
            f"{reprlib.repr(fields)}. Write {{{task.key!r}: {{…}}}}."
        )
    values = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in (fields or {}).items()}
    known_fields = [name for name in task.field_names if task.kind != "measure" or name not in _IMAGE_FIELDS]
    for name in values:
        if name not in known_fields:
            raise ConfigError(
                f"Reading parameters failed for {task.key}: expected a known parameter, got {name!r}."
                f"{did_you_mean(str(name), known_fields)}"
            )
    task.load(engine)  # raises if the task does not support the engine
    try:
        parameters: Parameters = task.parameters(**values)
    except ValidationError as error:
        problem = describe_problem(error, task.model)
        remedy = "" if re.search(r"[.?] [A-Z]", problem) else " Correct it."
        raise ConfigError(f"Reading parameters failed for {task.key}: {problem}{remedy}") from error
    reason = parameters.unsupported_engine_reason(engine)
    if reason is not None:
        raise ConfigError(f"Reading parameters failed for {task.key}: {reason}")
    # The number of classes is unknown before the first pass. The minimum is assumed, since more classes cost more.
    if (reason := task.excessive_cost_reason(parameters, parameters.min_classes)) is not None:
        raise ConfigError(f"Reading parameters failed for {task.key}: {reason}")
    return parameters


_SHOWN_CAUTIONS: ContextVar[set[str] | None] = ContextVar("shown_cautions", default=None)
"""Warnings that the current call of `compare` has already shown for an earlier network; None outside `compare`."""


_COMPARED_NAME: ContextVar[str | None] = ContextVar("compared_name", default=None)
"""Name of the network that the current call of `compare` evaluates; None outside `compare`."""


def _name_of(network: nn.Module) -> str:
    """Return a network's name in messages: the caller's name in `compare`, otherwise its class."""
    return _COMPARED_NAME.get() or type(network).__name__


def _warn_of_parameters(task: Task, parameters: Parameters) -> None:
    """Warn the caller of `evaluate` or `attack` about doubtful parameters (see `Parameters.cautions`)."""
    for caution in parameters.cautions:
        message = f"{task.key}.{caution.field}: {caution.problem}. {caution.remedy}"
        shown_cautions = _SHOWN_CAUTIONS.get()
        if shown_cautions is not None and message in shown_cautions:
            continue
        if shown_cautions is not None:
            shown_cautions.add(message)
        warnings.warn(message, RobustWarning, stacklevel=3)


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


def _warn_of_weak_attacks(
    rows: Sequence[Mapping[str, Any]], name: str, n_images: int, n_classes: int, zero_fraction: float
) -> None:
    """Warn once about each sign of weak attacks, such as a weaker attack that fools more images."""
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
    for flags_of_check in flags_by_check.values():
        clearest_flag = max(flags_of_check, key=lambda flag: flag.networks[0][1] - flag.networks[0][2])
        n_more = len(flags_of_check) - 1
        further_cases = (
            f" {n_more:,} more {'case shows' if n_more == 1 else 'cases show'} the same sign of a weak attack."
            if n_more
            else ""
        )
        warnings.warn(f"{clearest_flag.message}{further_cases} See docs/trust.md.", RobustWarning, stacklevel=3)


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
