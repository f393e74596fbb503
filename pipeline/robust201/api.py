"""`robust201.evaluate` and `robust201.attack`: evaluate or attack a user's network."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from robust201.analysis.evaluation import Evaluation, read_saved
from robust201.analysis.evaluation_progress import ProgressOption, shown_progress
from robust201.analysis.key_evaluations import (
    RequestedKeys,
    Run,
    describe_weak_attacks,
    evaluate_keys,
    head,
    logits_of_first,
    measure_zero_gradients,
)
from robust201.analysis.network_context import Options, normalisation_of, uncorruptible_reason
from robust201.analysis.requested_keys import Keys, find_preset, parse_key, parse_keys, parse_parameters
from robust201.analysis.robustbench import DATASET, LEADERBOARDS, N_CLASSES, LeaderboardFields, check_images
from robust201.attacks.context import Context, Request
from robust201.attacks.contract import perturb
from robust201.core.errors import ConfigError, warn_caller
from robust201.core.records import ImageSet, Normalisation
from robust201.evaluation.user_task import UserTask
from robust201.images import check_selection, select
from robust201.images.user_arrays import as_image_set
from robust201.networks.classifier import Classifier
from robust201.networks.user_module import hash_network
from robust201.tasks import CORRUPTIONS, FEW_CLASSES_KEYS, N_QUICK_IMAGES, TASKS, Task
from robust201.tasks.parameters import Parameters

if TYPE_CHECKING:
    from robust201.images.corrupted import CorruptedStore


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
            A custom task has the same fields as in a sweep (docs/your-own.md): ``{"mine": {"file": "my_attack.py",
            "norm": "Linf", "strengths": [8]}}``.

            Alternatively, a preset: ``"quick"`` means clean images, FGSM, PGD and AutoAttack at 8/255, and three
            corruptions at severity 5; ``"robustbench-linf"``, ``"robustbench-l2"`` and ``"robustbench-corruptions"``
            follow a RobustBench leaderboard on CIFAR-10, and the result's `model_info` has the format of RobustBench's
            `model_info` files.
        save: folder to which the results of each finished key are written. If the folder already has results of
            the same network, images and parameters, only missing results are computed. `Evaluation.load` reads them.
        count: size of a class-stratified random subset to evaluate; None evaluates all images, or up to 200 with the
            preset ``"quick"``. For a leaderboard, the first images are evaluated instead.
        normalisation: mean and standard deviation per channel, if the module takes normalised images.
        n_classes: number of classes C; None means the length of the module's output.
        seed: seed of the subset and of all random numbers.
        engine: ``"fused"`` (robust201's own attacks), or ``"reference"`` to run Foolbox and AutoAttack themselves.
        device: device to compute on; None uses the module's device.
        batch_size: maximum number of images per pass; with the reference engine, and in a custom task, it affects the
            random numbers.
        progress: whether to show progress on stderr (one line on a terminal, elsewhere a line every ten seconds), or a
            function that is called with (evaluations done, total).

    Returns:
        An `Evaluation`; printing it shows accuracies and intervals. Its `table` has one row per key and strength, in
        the order of `keys` and by ascending strength. Columns: `key`, `strength` (epsilon in units of 1/255 for Linf,
        in units of the pixel range for L2 and L1; severity of a corruption; a custom attack's own strength; otherwise
        0), `unit` (of the strength), `accuracy`, `low` and `high` (its 95% interval), `confidence` (mean softmax of the
        predicted class), `n_images` and `seconds` (for strengths that are attacked together, only their sum is
        meaningful; after an interruption, `seconds` covers only the last call). Rows of measures have no accuracy; each
        measure adds columns, such as `squared_norm`, which are NaN in other rows.
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
        RobustWarning: the module seems to bound its outputs (for example, with a softmax), computes in half precision,
            or is no more accurate than chance on clean images; an attack's steps are too short to reach its epsilon, a
            weaker attack beats a stronger one, or there is another sign of a weak attack (docs/trust.md).
    """
    options = Options(save, count, normalisation, n_classes, seed, engine, device, batch_size, progress)
    return evaluate_network(model, images, labels, keys, options)


def evaluate_network(model: nn.Module, images: Any, labels: Any, keys: Keys | None, options: Options) -> Evaluation:
    """Evaluate a network; see `evaluate`."""
    keys = "quick" if keys is None else keys
    preset = find_preset(keys)
    user_images = as_image_set(images, labels)
    leaderboard = None if preset is None else LEADERBOARDS.get(preset)
    if leaderboard is not None:
        check_images(str(preset), user_images)
        options = dataclasses.replace(options, n_classes=N_CLASSES)
    requested = _choose_keys(keys, preset, user_images, options)
    count = N_QUICK_IMAGES if _needs_subset(preset, user_images, options.count) else options.count
    network = model.network if isinstance(model, Classifier) else model
    with shown_progress(options.progress) as progress, options.open_context(model, user_images) as checked_context:
        image_set = _select_images(user_images, checked_context.classifier, count, leaderboard, options.seed)
        if preset == "quick":
            requested = _fit_classes(requested, image_set.n_classes, options.engine)
        context = checked_context
        if leaderboard is not None and leaderboard.eps is None:
            published = _open_published(image_set, len(user_images))
            context = dataclasses.replace(context, corrupted_images=published)
        shared = options.shared_protocol(user_images, context.classifier)
        if count is not None:
            subset = "class-stratified subset" if leaderboard is None else "first images"
            shared["images"] = f"{subset}, {count} of {user_images.n_split or len(user_images)}"
        protocols = _describe_protocols(shared, requested, image_set, context)
        empty = _make_empty(network, context, image_set, preset)
        strengths = {task.key: parameters.strengths for task, parameters in requested}
        saved = {} if options.save is None else read_saved(Path(options.save), empty, protocols, strengths).results
        evaluation = evaluate_keys(Run(context, image_set, protocols, progress, options, empty), requested, saved)
        follows_gradients = any(task.kind == "attack" and task.model.role != "black box" for task, _ in requested)
        zero_fraction = measure_zero_gradients(context, image_set) if follows_gradients else 0.0
    rows = [row for results in evaluation.results.values() for row in results.rows]
    name = options.name_of(network)
    flags = describe_weak_attacks(rows, name, len(image_set), image_set.n_classes, zero_fraction)
    return _add_notices(evaluation, flags, options.save)


def _choose_keys(keys: Keys, preset: str | None, images: ImageSet, options: Options) -> RequestedKeys:
    """Return the checked keys; the preset `quick` leaves out corruptions if the images cannot be corrupted."""
    requested = parse_keys(keys, options.engine)
    if preset == "quick" and uncorruptible_reason(images) is not None:
        requested = [pair for pair in requested if pair[0].kind != "corruption"]
    for task, parameters in requested:
        options.check(images, task, parameters)
    return requested


def _needs_subset(preset: str | None, images: ImageSet, count: int | None) -> bool:
    """Return whether the preset `quick` must choose a subset of the images; check the requested `count`, if any."""
    if count is not None:
        check_selection(count, len(images), "the given images")
    return preset == "quick" and count is None and len(images) > N_QUICK_IMAGES


def _select_images(
    images: ImageSet, classifier: Classifier, count: int | None, leaderboard: LeaderboardFields | None, seed: int
) -> ImageSet:
    """Return the images to evaluate, with the classes and the normalisation of the network."""
    dataset = "images" if leaderboard is None else DATASET
    normalisation, n_classes = normalisation_of(classifier), classifier.n_classes
    adapted = dataclasses.replace(images, dataset=dataset, n_classes=n_classes, normalisation=normalisation, sha256="")
    if leaderboard is not None:
        return head(adapted, count)
    return adapted if count is None else select(adapted, count=count, seed=seed)


def _fit_classes(keys: RequestedKeys, n_classes: int, engine: str) -> RequestedKeys:
    """Replace AutoAttack with the keys in `FEW_CLASSES_KEYS` if it does not support so few classes."""
    if n_classes >= TASKS["aa_standard"].model.min_classes:
        return keys
    return [
        pair
        for task, parameters in keys
        for pair in (parse_keys(FEW_CLASSES_KEYS, engine) if task.key == "aa_standard" else [(task, parameters)])
    ]


def _make_empty(network: nn.Module, context: Context, images: ImageSet, preset: str | None) -> Evaluation:
    """Return an evaluation of these images without results."""
    classifier = context.classifier
    return Evaluation(
        type(network).__name__,
        hash_network(network, normalisation_of(classifier)),
        _hash_images(images),
        images.images.shape[1:],
        images.indices,
        {},
        tuple(classifier.notices),
        preset,
        logits_of_first(context, images),
    )


def _describe_protocols(
    shared: Mapping[str, Any], keys: RequestedKeys, images: ImageSet, context: Context
) -> dict[str, dict[str, Any]]:
    """Return, for each key, the fields that affect the key's numbers, as JSON values."""
    recipes = _identify_corruptions([task for task, _ in keys], images, context)
    return {
        task.key: _describe_protocol({**shared, **recipes.get(task.key, {})}, task, parameters, context.batch_size)
        for task, parameters in keys
    }


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


def _identify_corruptions(tasks: Sequence[Task], images: ImageSet, context: Context) -> dict[str, dict[str, Any]]:
    """Return the protocol field that identifies the pixels of each corruption (as in a sweep), by key."""
    keys = [task.key for task in tasks if task.kind == "corruption"]
    if not keys:
        return {}
    from robust201.images.corrupted import CorruptedStore
    from robust201.sweep.config import CorruptionsSection
    from robust201.sweep.facts import generation_recipes

    source = context.corrupted_images
    if isinstance(source, CorruptedStore):
        return {key: {"corruption": source.identity(key)} for key in keys}
    section = CorruptionsSection(source="generated", seed=context.seed)
    recipes = generation_recipes(section, keys, images.images.shape[-1])
    return {key: {"corruption": recipes[key]} for key in keys}


def _open_published(images: ImageSet, n_images: int) -> "CorruptedStore":
    """Return the source of the corrupted images of CIFAR-10-C."""
    from robust201.images.corrupted import open_published
    from robust201.images.downloads.registry import data_folder

    return open_published(data_folder(), images, n_images=n_images, keys=CORRUPTIONS)


def _hash_images(images: ImageSet) -> str:
    digest = hashlib.sha256(str(images.images.shape).encode())
    digest.update(images.images.tobytes())
    digest.update(images.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def _add_notices(evaluation: Evaluation, notices: Sequence[str], folder: str | Path | None) -> Evaluation:
    """Issue the notices as warnings, and add them to an evaluation and to its folder."""
    for notice in notices:
        warn_caller(notice)
    evaluation = dataclasses.replace(evaluation, notices=(*evaluation.notices, *notices))
    if folder is not None and notices:
        dataclasses.replace(evaluation, results={}).save(folder)
    return evaluation


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
        ConfigError: the key is not an attack.
        ConfigError, DatasetError, EvaluationError: see `evaluate`.
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
    options = Options(None, None, normalisation, n_classes, seed, engine, device, batch_size)
    options.check(image_set, task, attack_parameters)
    with options.open_context(model, image_set, key=task.key) as context:
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
