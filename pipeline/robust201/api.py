"""The Python API: load a network, evaluate any network, attack it, and see where it stands; no file is written."""

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

from robust201.analysis.evaluation import Comparison, Evaluation, compare_evaluations
from robust201.analysis.first_look import Costs, choose_count, describe_plan, first_keys
from robust201.analysis.robustbench import DATASET, N_CLASSES, Benchmark, find_benchmark
from robust201.core.errors import ConfigError, DatasetError, RobustWarning, closest
from robust201.core.files import bundled
from robust201.core.records import ArchitectureId, EvaluationResult, ImageSet, Normalisation, Part, Unit
from robust201.core.user_code import hash_file
from robust201.images import check_selection, data_folder, load_images, select
from robust201.images import dataset as dataset_spec
from robust201.images.corrupted import open_published
from robust201.images.user_arrays import as_image_set, check_label_range
from robust201.models.classifier import Classifier
from robust201.models.model import CompiledNetwork
from robust201.models.network_check import check_compiled
from robust201.models.pass_time import measure_pass
from robust201.models.user_module import as_classifier, choose_given_device
from robust201.monitoring.evaluation_progress import EvaluationProgress, ProgressOption, shown_progress
from robust201.planning.config import read_own_task
from robust201.planning.field_errors import describe_problem
from robust201.spaces import find_architecture
from robust201.statistics.attack_flags import ZERO_GRADIENTS, Accuracies, AttackFlag, Evaluated, find_flags
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import CORRUPTIONS, KEY_GROUPS, RANDOMISED_GROUPS, TASKS, Task, expand_keys, find_task
from robust201.tasks.attack_kit.context import Context, CorruptedImages, Request, to_float
from robust201.tasks.columns import DISTANCES, PREDICTIONS, STEPS, distances_of, steps_of
from robust201.tasks.corruptions.generator import SMALLEST_SIZE, corrupt, synthetic_frost
from robust201.tasks.evaluate import evaluate_part
from robust201.tasks.measurements import holds_answers, summarise
from robust201.tasks.parameters import MinimumNorm, Parameters
from robust201.tasks.perturbations.contract import checked, perturb
from robust201.tasks.user_task import UserTask
from robust201.weights.loading import fill_network, read_weights
from robust201.weights.published.base import infer_size
from robust201.weights.store import CheckpointStore

if TYPE_CHECKING:
    from robust201.reader.dataset import RobustnessDataset

_Keys = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]

NetworkT = TypeVar("NetworkT")

_CHECKED_IMAGES = 64

_TIMED_PASSES = 100_000
"""Passes of an evaluation from which on a pass is timed, so that progress knows the time left."""

_MEASURED = ("accuracy", "confidence_prediction", PREDICTIONS)


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
    """Load a trained network with its normalisation inside.

    Args:
        architecture: index or cell string of NAS-Bench-201, which stands for its isomorphism class, or a name of the
            zoo, such as ``"resnet18"``.
        dataset: what it was trained on, a name of `robust201.images.DATASETS`; it decides normalisation and classes.
        store: a checkpoint store or its folder, ``bundled:…`` too (see ``robust201 import-weights``), or else
        weights: a safetensors or PyTorch file of the network's state_dict.
        epochs: length of the training, in a store; None prefers 200, else takes the longest.
        seed: of the training, in a store; None prefers 777, else takes the lowest.
        recipe: name of the training, in a store; ``""`` is the published one. Needed where several fit.
        device: where it shall lie.

    Returns:
        A frozen module in evaluation mode: (B, 3, H, W) float32 in [0, 1] to logits (B, C), differentiable.

    Raises:
        ArchitectureError: there is no such architecture.
        ConfigError: no such dataset or device, or not just one of `store` and `weights`.
        CheckpointError: there are no such weights, or they are damaged or another network's.

    Warns:
        RobustWarning: the file contains several state_dicts; it names the one that is used, and the others.
    """
    spec = dataset_spec(dataset)
    chosen_device = choose_given_device(device)
    if (store is None) == (weights is None):
        raise ConfigError(
            f"Loading a network failed for {architecture!r}: expected a store or weights=FILE, "
            f"got {'both' if store is not None else 'none of these'}. Name one."
        )
    space, name = find_architecture(_plain(architecture))
    if store is not None:
        opened = store if isinstance(store, CheckpointStore) else CheckpointStore(_folder(store))
        record = opened.find(name, dataset, space=space.name, epochs=epochs, seed=seed, recipe=recipe)
        channels, cells = record.channels, record.cells
        tensors, source = opened.load(record), f"{record.label} from {record.file}"
    else:
        tensors, source = read_weights(Path(str(weights))), str(weights)
        channels, cells = infer_size(tensors, source)[:2] if space.is_sized else (None, None)
    if channels is not None and cells is not None:
        space = space.sized(channels=channels, cells=cells)
    network = space.build(name, n_classes=spec.n_classes)
    fill_network(network, tensors, source)
    classifier = Classifier(
        network, spec.normalisation, spec.n_classes, device=chosen_device, channels_last=space.channels_last
    )

    def compile_network(network: nn.Module, device: torch.device) -> CompiledNetwork | None:
        normalisation, n_classes = spec.normalisation, spec.n_classes
        return space.compile(name, network, normalisation, n_classes=n_classes, device=device, precision="fp32")

    classifier.compiler = compile_network
    return classifier


def _folder(store: str | Path) -> Path:
    """Find a store's folder; ``bundled:`` names one that ships with robust201, as in a sweep YAML."""
    name = str(store)
    return bundled(name.removeprefix("bundled:")) if name.startswith("bundled:") else Path(store)


def _plain(architecture: ArchitectureId) -> ArchitectureId:
    """Give a name as it is, and an integer of any library as Python's own."""
    return architecture if isinstance(architecture, str) else operator.index(architecture)


def evaluate(
    model: nn.Module,
    images: Any = None,
    labels: Any = None,
    keys: _Keys | None = None,
    *,
    benchmark: str | None = None,
    epsilon: str | float | None = None,
    count: int | None = None,
    randomised: bool = False,
    normalisation: Normalisation | tuple[Sequence[float], Sequence[float]] | None = None,
    n_classes: int | None = None,
    seed: int = 0,
    engine: str = "fused",
    device: torch.device | str | None = None,
    batch_size: int = 250,
    progress: ProgressOption = True,
) -> Evaluation:
    """Evaluate a network on images as they are, attacked and corrupted.

    Without `keys` it takes a first look, of about a minute for a small network: clean images, FGSM, PGD, AutoAttack and
    three corruptions, on as many images as the time allows.

    The module itself is left as it was. Attacks are those of a sweep (docs/protocol.md); an image's random numbers are
    keyed by seed, key and its position. Corruptions are generated with the constants of CIFAR-10-C, scaled to
    the image, or from 224 pixels on with those of ImageNet-C; frost is synthetic.

    Args:
        model: any module from (B, 3, H, W) float32 in [0, 1] to logits (B, C), up to 32,767 classes. A module whose
            parameters are all float16, bfloat16 or float64 is shown images of that type and computes its gradients in
            it; its logits are then converted to float32, and `protocols` of the result says so.
        images: (N, 3, H, W) or (N, H, W, 3), NumPy or torch; 1 channel for networks of grey images; uint8, or floats in
            [0, 1]. Attacks start from floats that are not multiples of 1/255 as they are, and `protocols` of the result
            says so. Or what `robust201.images.load_images` returned, without labels.
        labels: (N,) integers in [0, C).
        keys: keys of `robust201.tasks.TASKS`, alone or with parameters: ``["clean", {"pgd": {"epsilons_255": [8]}}]``;
            ``"corruptions"`` stands for all corruptions, ``"autoattack"`` for AutoAttack, ``"all"`` for the keys of the
            paper. A task of your own has the fields of a sweep (docs/your-own.md), such as ``{"mine": {"file":
            "my_attack.py", "norm": "Linf", "strengths": [8]}}``, one of an installed package its name. None takes a
            first look.
        benchmark: instead of keys, the protocol of a RobustBench leaderboard on CIFAR-10: ``"robustbench-linf"``,
            ``"robustbench-l2"`` or ``"robustbench-corruptions"``. Images and labels may be left out: they are then the
            test images of the data folder. `count` takes the first images in their order. `model_info` of the table is
            the leaderboard's row.
        epsilon: radius of the Linf ball of a first look in units of pixels, such as ``"8/255"``, the default.
        count: evaluate a class-stratified subset of this many images, which the seed decides; None evaluates all
            images, or in a first look as many as the time allows.
        randomised: whether the module's outputs are random on purpose. ``"autoattack"`` is then AutoAttack's version
            for randomised networks (`aa_rand`), which averages gradients over 20 passes; attacks for the smallest
            perturbation (`fmn` and the like) are rejected.
        normalisation: mean and standard deviation per channel, where the module takes normalised images.
        n_classes: number of classes C; None takes it from the module's output.
        seed: seed of the subset and of all random numbers.
        engine: ``"fused"``, or ``"reference"`` for the libraries themselves.
        device: where to compute; None computes where the module lies.
        batch_size: maximum number of images per pass; with the reference engine this many share
            their random numbers.
        progress: show progress on stderr (a bar on a terminal, elsewhere a line every ten seconds), or not, or a
            function that is called with (evaluations done, in all).

    Returns:
        A DataFrame whose property `outcomes` says which image was classified correctly, `distances` the smallest
        perturbations that attacks such as `fmn` found, `steps` at which step of an attack each image fell, and
        `summary` how many withstand all attacks; one row per key and strength, in the order of `keys` and ascending:
        `key`, `strength` (epsilon in 1/255, in pixels for L2 and L1; severity; 0 where there is none), `accuracy`,
        `low` and `high` (its 95% interval), `confidence` (mean softmax of the predicted class), `n_images`, `seconds`
        (of strengths that were attacked together only the sum means something). A measure (kind ``measure``) has no
        accuracy: its numbers stand in further columns by the names that it declares, such as `squared_norm`, which are
        NaN in all other rows.

    Raises:
        ConfigError: no such key, parameter, engine, device or benchmark, or `epsilon` with keys.
        DatasetError: images or labels of another form or range, images that cannot be corrupted, or fewer images than
            `count`.
        EvaluationError: the module fails, or its output is not logits, NaN, or different for the same images.

    Warns:
        RobustWarning: the module seems to end in a softmax or computes in half precision, steps are too short for their
            ball, a weaker attack beat a stronger one, or another sign of a weak attack (docs/trust.md).
    """
    leaderboard = None if benchmark is None else find_benchmark(benchmark)
    if leaderboard is not None:
        _check_no_keys(leaderboard, keys)
        keys = leaderboard.keys
    chosen = None if keys is None else parse_keys(keys, engine, randomised=randomised)
    if keys is not None and epsilon is not None:
        raise ConfigError(
            "Reading arguments failed for epsilon: expected it without keys and benchmark, got both. Give the epsilons "
            "of each key in keys, such as {'pgd': {'epsilons': ['8/255']}}."
        )
    given = _read_images(leaderboard, images, labels)
    if count is not None:
        check_selection(count, len(given.labels), "the images given")
    for row, parameters in chosen or ():
        _check_shape(given, row, parameters)
        _warn_of_parameters(row, parameters, randomised=randomised)
    name = type(model).__name__
    setup = _Setup(as_normalisation(normalisation), n_classes, seed, engine, device, batch_size, randomised)
    with shown_progress(progress) as state, setup.context(model, given) as context:
        image_set = _image_set(given, context.classifier)
        if chosen is None:
            keys_of_look = first_keys(
                image_set.n_classes,
                corruptions=_corruption_refusal(given) is None,
                epsilon=epsilon,
                randomised=randomised,
            )
            chosen = parse_keys(keys_of_look, engine)
            count = _plan_first_look(context, image_set, chosen, count, state)
        if leaderboard is not None:
            image_set = _first_images(leaderboard, image_set, count)
        elif count is not None:
            image_set = select(image_set, count=count, seed=seed)
        if keys is not None:
            _estimate_time(context, image_set, chosen, state)
        corrupted = context.corrupted
        if leaderboard is not None and leaderboard.is_corrupted:
            corrupted = open_published(data_folder(), image_set, n_images=len(given.labels), keys=CORRUPTIONS)
        evaluated = _evaluate_keys(
            dataclasses.replace(context, corrupted=corrupted), chosen, image_set, state, progress
        )
        attacked = any(row.kind == "attack" for row, _ in chosen)
        zero_share = _measure_zero_gradients(context, image_set) if attacked and not randomised else 0.0
    _warn_of_weak_attacks(evaluated.rows, name, len(image_set), image_set.n_classes, zero_share)
    columns = ("key", "strength", "accuracy", "low", "high", "confidence", "n_images", "seconds")
    measured = dict.fromkeys(column for row, _ in chosen for column in row.columns)
    shared = setup.shared_protocol(given, context.classifier)
    if count is not None:
        subset = "class-stratified subset" if leaderboard is None else "first images"
        shared["images"] = f"{subset}, {count} of {given.n_split or len(given)}"
    if leaderboard is not None and leaderboard.is_corrupted:
        shared["corruptions"] = "published"
    protocols = {row.key: shared | parameters.identity() | _code_identity(row) for row, parameters in chosen}
    return Evaluation.of(
        evaluated.rows,
        [*columns, *measured],
        evaluated.outcomes,
        image_set.indices,
        _digest(image_set),
        protocols,
        leaderboard,
        evaluated.distances,
        evaluated.steps,
    )


def _code_identity(row: Task) -> dict[str, str]:
    """What decides the numbers of a task of the user's own: function and hash of its file."""
    return row.function.identity() if isinstance(row, UserTask) else {}


class _Evaluated(NamedTuple):
    """Rows of the table, outcomes and steps by image for each key and strength, and distances by key.

    Distances are as far as the largest strength reaches; steps are of attacks that record them.
    """

    rows: list[dict[str, Any]]
    outcomes: dict[tuple[str, float], NDArray[np.bool_]]
    distances: dict[str, NDArray[np.float64]]
    steps: dict[tuple[str, float], NDArray[np.float64]]


def _check_no_keys(leaderboard: Benchmark, keys: _Keys | None) -> None:
    if keys is not None:
        raise ConfigError(
            f"Reading arguments failed for benchmark {leaderboard.name}: it names its keys, but keys are given, too. "
            "Leave keys or benchmark out."
        )


def _read_images(leaderboard: Benchmark | None, images: Any, labels: Any) -> ImageSet:
    """Read the images given; for a benchmark check their size, or load the test images if none are given."""
    if leaderboard is None:
        return as_image_set(images, labels)
    given = as_image_set(load_images(DATASET) if images is None and labels is None else images, labels)
    _check_benchmark_images(leaderboard, given)
    return given


def _check_benchmark_images(leaderboard: Benchmark, given: ImageSet) -> None:
    size = dataset_spec(DATASET).image_size
    if given.images.shape[2:] != (size, size):
        raise DatasetError(
            f"Reading images failed for {leaderboard.name}: expected the test images of {DATASET}, of {size}x{size} "
            f"pixels, got {given.images.shape[2]}x{given.images.shape[3]}. Leave images and labels out to load them "
            "from the data folder."
        )


def _first_images(leaderboard: Benchmark, images: ImageSet, count: int | None) -> ImageSet:
    """Take the first images of the test images; a ConfigError if the network has other classes."""
    if images.n_classes != N_CLASSES:
        raise ConfigError(
            f"Evaluating failed for {leaderboard.name}: expected a network of {N_CLASSES} classes, got "
            f"{images.n_classes}. Give a network that was trained on {DATASET}."
        )
    first = (images.images[:count], images.labels[:count], images.indices[:count])
    return dataclasses.replace(images, dataset=DATASET, images=first[0], labels=first[1], indices=first[2])


def _evaluate_keys(
    context: Context,
    chosen: Sequence[tuple[Task, Parameters]],
    image_set: ImageSet,
    state: EvaluationProgress,
    progress: ProgressOption,
) -> _Evaluated:
    """Evaluate all images under all keys."""
    found = _Evaluated([], {}, {}, {})
    state.evaluations = sum(len(parameters.strengths) for _, parameters in chosen)
    for row, parameters in chosen:
        state.begin(row.key, parameters.strengths, len(image_set))
        results = []
        # A randomised network draws from torch's generator: its numbers follow from the seed and the key.
        with dataclasses.replace(context, key=row.key).draws(0):
            for result in _evaluate_key(context, row, parameters, image_set, state):
                results.append(result)
                state.evaluations_done += 1
                if not isinstance(progress, bool):
                    progress(state.evaluations_done, state.evaluations)
        results.sort(key=lambda result: result.strength)
        found.rows.extend(map(_row, results))
        if row.finds_distances:
            found.distances[row.key] = distances_of(results[-1].values[DISTANCES])
        for result in results:
            if PREDICTIONS in result.values:
                found.outcomes[row.key, result.strength] = result.values[PREDICTIONS] == image_set.labels
            if STEPS in result.values:
                found.steps[row.key, result.strength] = steps_of(result.values[STEPS])
    return found


def _image_set(given: ImageSet, classifier: Classifier) -> ImageSet:
    return dataclasses.replace(
        given, dataset="images", n_classes=classifier.n_classes, normalisation=_normalisation_of(classifier), sha256=""
    )


def _evaluate_key(
    context: Context, row: Task, parameters: Parameters, image_set: ImageSet, state: EvaluationProgress
) -> Iterator[EvaluationResult]:
    """Evaluate all images under one key; yield a result for each strength, in any order."""
    unit = Unit(
        id="",
        architecture=type(context.classifier.network).__name__,
        dataset=image_set.dataset,
        key=row.key,
        strengths=parameters.strengths,
        n_images=len(image_set),
        protocol="",
        checkpoint_sha256="",
    )
    part = Part(unit, parameters.strengths, 0, len(image_set))
    measured = (*_MEASURED, DISTANCES) if row.finds_distances else _MEASURED
    if row.kind == "attack" and row.step_refusal(context.engine) is None:
        measured = (*measured, STEPS)
    yield from evaluate_part(
        context,
        row,
        parameters,
        part,
        image_set,
        measured,
        provenance={},
        on_images=state.add_images,
        on_stage=state.begin_stage,
    )


def _plan_first_look(
    context: Context,
    images: ImageSet,
    chosen: Sequence[tuple[Task, Parameters]],
    count: int | None,
    state: EvaluationProgress,
) -> int:
    """Choose the number of images of a first look unless it is given, and announce the look."""
    parameters_by_key = {row.key: parameters for row, parameters in chosen}
    pilot = select(images, count=min(len(images), _CHECKED_IMAGES, context.batch_size), seed=context.seed)
    few_steps = parameters_by_key["pgd"].model_copy(update={"steps": 10, "rel_stepsize": 0.25})
    (attacked,) = _evaluate_key(context, find_task("pgd"), few_steps, pilot, EvaluationProgress())
    costs = dataclasses.replace(_measure_costs(context, pilot), resisting=float(attacked.values["accuracy"]))
    by_time = count is None
    count = choose_count(costs, parameters_by_key, len(images)) if count is None else count
    n_split = images.n_split or len(images)
    state.say(describe_plan(count, n_split, context.seed, by_time=by_time, costs=costs, keys=parameters_by_key))
    state.costs = {key: costs.seconds(key, parameters, count) for key, parameters in parameters_by_key.items()}
    state.seconds_per_cost = 1.0
    return count


def _measure_costs(context: Context, images: ImageSet) -> Costs:
    device = context.classifier.device
    batch = slice(0, min(_CHECKED_IMAGES, context.batch_size))
    pixels, labels = torch.from_numpy(images.images[batch]), torch.from_numpy(images.labels[batch])
    passes = measure_pass(context.attacked_model, to_float(pixels).to(device), labels.to(device))
    return Costs(passes.fixed, passes.per_image, context.batch_size, images.n_classes)


def _estimate_time(
    context: Context, images: ImageSet, chosen: Sequence[tuple[Task, Parameters]], state: EvaluationProgress
) -> None:
    """Estimate the cost of each key; measure passes where there are many and progress is shown."""
    state.costs = {
        row.key: len(images) * len(parameters.strengths) * row.passes(parameters, images.n_classes)
        for row, parameters in chosen
    }
    is_attacked = any(row.kind == "attack" for row, _ in chosen)
    if state.is_shown and is_attacked and sum(state.costs.values()) > _TIMED_PASSES:
        costs = _measure_costs(context, images)
        state.costs = {row.key: costs.seconds(row.key, parameters, len(images)) for row, parameters in chosen}
        state.seconds_per_cost = 1.0


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
        networks: modules and tables that `evaluate` returned; or, without either, networks of datasets whose outcomes
            by image are stored, as text: ``DATASET:ARCHITECTURE``, the dataset's folder and an architecture, or, of
            several trainings, ``DATASET:ARCHITECTURE@WEIGHTS`` (without weights, all of them). By name, or in a
            list, where the names are those of the classes, numbered if they are equal, and of the dataset's networks.
        images: see `evaluate`; not needed without modules.
        labels: see `evaluate`.
        keys: see `evaluate`; by default clean images, FGSM and PGD. Of networks of a dataset: names of keys, or keys at
            a strength, such as ``"pgd:8"``; by default every key at one strength (that nearest to 1/255, severity 3).
        data: which dataset of a dataset's folder, if it has several.
        options: further arguments of `evaluate`, the same for all modules, such as `seed`.

    Returns:
        A DataFrame whose property `summary` is a sentence about each pair. One row per pair, key and strength: `first`
        and `second` (names), `key`, `strength`, `first_accuracy`, `second_accuracy`, `difference` (of the second less
        the first), `low` and `high` (its paired 95% interval), `only_first` and `only_second` (images that one alone
        classifies correctly), `p_value` (McNemar's exact test, two-sided), `adjusted_p_value` (Holm's correction over
        all rows) and `n_images`.

    Raises:
        ConfigError: fewer than two networks; modules or tables next to networks of a dataset; tables of other images,
            with other parameters of a key, or without a key in common; or a reason of `evaluate`.
        DatasetError: see `evaluate`.
        EvaluationError: see `evaluate`.
    """
    if isinstance(networks, nn.Module | pd.DataFrame):
        raise ConfigError(
            f"Comparing networks failed for {type(networks).__name__}: expected several networks, got one. Give a "
            "list, or a mapping of names to networks."
        )
    evaluations: dict[str, Evaluation] = {}
    pairs = _pair_with_names(networks)
    stored_networks = [network for _, network in pairs if isinstance(network, str)]
    if 0 < len(stored_networks) < len(pairs):
        raise ConfigError(
            f"Comparing networks failed for {stored_networks[0]}: expected networks of datasets only, or modules and "
            "tables only, got both. A dataset has outcomes of its own images and protocol: compare its networks with "
            "each other."
        )
    _check_named_once([network for _, network in pairs if isinstance(network, str)])
    token = _SHOWN_CAUTIONS.set(set())
    try:
        for name, network in pairs:
            if isinstance(network, str):
                for stored, table in _read_stored(name, network, keys, data).items():
                    evaluations[network if stored in evaluations else stored] = table
            elif isinstance(network, nn.Module):
                asked = ("clean", "fgsm", "pgd") if keys is None else keys
                evaluations[name] = evaluate(network, images, labels, asked, **options)
            else:
                evaluations[name] = network
    finally:
        _SHOWN_CAUTIONS.reset(token)
    return compare_evaluations(evaluations)


def _check_named_once(networks: Sequence[str]) -> None:
    for network in networks:
        if networks.count(network) > 1:
            raise ConfigError(
                f"Comparing networks failed for {network}: expected different networks, got this one twice. Name each "
                "once."
            )


_Network = nn.Module | Evaluation | str


def name_networks(networks: Sequence[NetworkT]) -> dict[str, NetworkT]:
    """Name networks by their classes, numbered where these are equal."""
    return dict(zip(_class_names(networks), networks, strict=True))


def _pair_with_names(networks: Mapping[str, _Network] | Sequence[_Network]) -> list[tuple[str, _Network]]:
    """Pair networks with names: those given, or those of their classes, none for the networks of a dataset."""
    if isinstance(networks, Mapping):
        return list(networks.items())
    names = zip(_class_names(networks), networks, strict=True)
    return [("" if isinstance(network, str) else name, network) for name, network in names]


def _class_names(networks: Sequence[object]) -> list[str]:
    classes = [type(network).__name__ for network in networks]
    return [name if classes.count(name) == 1 else f"{name} {n}" for n, name in enumerate(classes, start=1)]


def _read_stored(name: str, network: str, keys: _Keys | None, data: str | None) -> dict[str, Evaluation]:
    """Read what a dataset has of a network, or of all trainings of an architecture, under a name or their own."""
    from robust201.analysis.stored_evaluations import read_evaluations

    asked = [keys] if isinstance(keys, str) else keys
    if asked is not None and not all(isinstance(key, str) for key in asked):
        raise ConfigError(
            f"Comparing networks failed for {network}: expected names of keys, such as pgd or pgd:8, got parameters. A "
            "dataset has the parameters that it was made with."
        )
    found = read_evaluations(network, keys=None if asked is None else [str(key) for key in asked], data=data)
    if not name:
        return found
    if len(found) > 1:
        raise ConfigError(
            f"Comparing networks failed for {name}: expected one network, got the trainings {', '.join(found)}. Name "
            "one, or give a list."
        )
    return dict.fromkeys([name], next(iter(found.values())))


def _digest(given: ImageSet) -> str:
    digest = hashlib.sha256(str(given.images.shape).encode())
    digest.update(given.images.tobytes())
    digest.update(given.labels.astype("<i8").tobytes())
    return digest.hexdigest()


def attack(
    key: str,
    model: nn.Module,
    images: Any,
    labels: Any,
    *,
    epsilon_255: float | Sequence[float] | None = None,
    epsilon: float | Sequence[float] | None = None,
    normalisation: Normalisation | tuple[Sequence[float], Sequence[float]] | None = None,
    n_classes: int | None = None,
    seed: int = 0,
    engine: str = "fused",
    device: torch.device | str | None = None,
    batch_size: int = 250,
    **parameters: Any,
) -> torch.Tensor:
    """Attack images; all arguments but these are those of `evaluate`.

    Args:
        key: an attack, such as ``"pgd"``.
        model: any module.
        images: N images.
        labels: their classes.
        epsilon_255: S radii of the Linf ball in units of 1/255, or
        epsilon: of the L2 ball in units of pixels in [0, 1]; None takes the attack's defaults.
        normalisation: see `evaluate`.
        n_classes: see `evaluate`.
        seed: see `evaluate`.
        engine: see `evaluate`.
        device: see `evaluate`.
        batch_size: see `evaluate`.
        parameters: further parameters of the attack, such as ``steps=80`` (docs/configuration.md).

    Returns:
        (S, N, 3, H, W) float32 in [0, 1] on the device of the computation, in the order of the radii given (of the
        defaults: ascending). Images that an attack of AutoAttack could not fool come back clean.

    Raises:
        ConfigError: the key is no attack, or one of `evaluate`'s reasons.
        DatasetError: see `evaluate`.
        EvaluationError: see `evaluate`.
    """
    row = _find_key(key)
    if row.kind != "attack":
        attacks = ", ".join(name for name, row in TASKS.items() if row.kind == "attack")
        raise ConfigError(f"Attacking failed for {key!r}: expected one of {attacks}, got another key. Name an attack.")
    field = "epsilons_255" if "epsilons_255" in row.parameters.model_fields else "epsilons"
    radii, wrong = (epsilon_255, epsilon) if field == "epsilons_255" else (epsilon, epsilon_255)
    if row.constraint is None and (radii, wrong) != (None, None):
        raise ConfigError(
            f"Attacking failed for {key!r}: expected no epsilon, since it has none, got one. Leave epsilon out."
        )
    if row.constraint is not None and wrong is not None:
        raise ConfigError(
            f"Attacking failed for {key!r}: expected {field.replace('epsilons', 'epsilon')}, since its ball is one of "
            f"{row.constraint.name}, got {'epsilon' if field == 'epsilons_255' else 'epsilon_255'}. Give that one."
        )
    asked = None if radii is None else np.atleast_1d(np.asarray(radii)).tolist()
    read = _parse_parameters(row, parameters | ({} if asked is None else {field: asked}), engine)
    strengths = read.strengths
    given = as_image_set(images, labels)
    _check_shape(given, row, read)
    _warn_of_parameters(row, read)
    setup = _Setup(as_normalisation(normalisation), n_classes, seed, engine, device, batch_size)
    with setup.context(model, given, key=row.key) as context:
        where = context.classifier.device
        pixels, classes = torch.from_numpy(given.images).to(where), torch.from_numpy(given.labels).to(where)
        request = Request(strengths, pixels, classes, given.indices)
        places = [strengths.index(strength) for strength in (asked or strengths)]
        found = torch.empty((len(strengths), *pixels.shape), device=where)
        perturbed = perturb(row, context, read, request)
        name = f"{type(model).__name__} images {row.key}"
        for batch in checked(perturbed, name=name, request=request, constraint=row.constraint):
            found[places.index(batch.strength), batch.positions] = batch.images
    return found


def place(result: pd.DataFrame, dataset: "RobustnessDataset", *, data: str = "cifar10") -> pd.DataFrame:
    """See where a network stands among the evaluated architectures of a dataset.

    Whether the two are comparable is for the caller to know: the images, and the parameters of attacks, should be those
    of the dataset (docs/protocol.md).

    Args:
        result: what `evaluate` returned.
        dataset: the evaluated architectures.
        data: which of its datasets.

    Returns:
        One row per row of `result` that has an accuracy: `key`, `strength`, `accuracy`, `rank` (1 where no architecture
        is better; missing where the dataset has none at this key and strength), `architectures` (how many there are),
        `percentile` (percent of them that are worse, ties counted half), `median`, `best` and `best_architecture`.

    Raises:
        ConfigError: the DataFrame is not one of `evaluate`, or the dataset has no such data.
        ResultsError: a file of the dataset is damaged.
    """
    missing = [column for column in ("key", "strength", "accuracy") if column not in result]
    if missing:
        raise ConfigError(
            f"Placing failed for the result: expected the columns that evaluate gives, got none named "
            f"{', '.join(missing)}. Give what robust201.evaluate returned."
        )
    if data not in dataset.data:
        raise ConfigError(f"Placing failed for data={data!r}: no such dataset.{closest(data, dataset.data)}")
    rows = [
        _place_one(str(row["key"]), float(row["strength"]), float(row["accuracy"]), dataset, data)
        for row in result.dropna(subset="accuracy").to_dict("records")
    ]
    columns = ("key", "strength", "accuracy", "rank", "architectures")
    frame = pd.DataFrame(rows, columns=[*columns, "percentile", "median", "best", "best_architecture"])
    has_text_ids = any(isinstance(name, str) for name in frame["best_architecture"])
    return frame.astype({"rank": "Int64", "best_architecture": "string" if has_text_ids else "Int64"})


def _place_one(key: str, strength: float, accuracy: float, dataset: "RobustnessDataset", data: str) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "strength": strength, "accuracy": accuracy, "architectures": 0}
    if dataset.files.find(data, key, "accuracy") is None:
        return row
    if strength not in dataset.strengths(
        data, key
    ):  # at 0 an attack may have the clean values, which are none of its own
        return row
    frame = dataset.to_frame(data, key)
    values = frame[frame["strength"] == strength].set_index("architecture")["value"].dropna()
    if values.empty:
        return row
    better, equal = int((values > accuracy).sum()), int((values == accuracy).sum())
    return row | {
        "rank": 1 + better,
        "architectures": len(values),
        "percentile": 100 * (len(values) - better - equal / 2) / len(values),
        "median": float(values.median()),
        "best": float(values.max()),
        "best_architecture": values.index[int(values.argmax())],
    }


@dataclass(frozen=True)
class _Setup:
    """How a model is shown images; the arguments that `evaluate` and `attack` share."""

    normalisation: Normalisation | None
    n_classes: int | None
    seed: int
    engine: str
    device: torch.device | str | None
    batch_size: int
    randomised: bool = False

    @contextmanager
    def context(self, model: nn.Module, given: ImageSet, key: str = "") -> Iterator[Context]:
        """Check a model and the labels, and surround an evaluation with what it needs."""
        if self.batch_size < 1:
            raise ConfigError(f"Reading arguments failed for batch_size: expected 1 or more, got {self.batch_size}.")
        shown = to_float(torch.from_numpy(given.images[: min(_CHECKED_IMAGES, self.batch_size)]))
        prepared = as_classifier(
            model,
            shown,
            normalisation=self.normalisation,
            n_classes=self.n_classes,
            device=self.device,
            batch_size=self.batch_size,
            randomised=self.randomised,
        )
        with prepared as classifier:
            _check_class_folders(given, classifier)
            check_label_range(given.labels, classifier.n_classes)
            compiled = self._compile(classifier, shown) if self.engine == "fused" else None
            yield Context(
                classifier,
                self.seed,
                self.batch_size,
                corrupted=_generated(given, self.seed),
                key=key,
                engine=self.engine,
                model=compiled,
                model_batch=None if compiled is None else self.batch_size,
            )

    def shared_protocol(self, given: ImageSet, classifier: Classifier) -> dict[str, Any]:
        """Return what decides the numbers of every key, apart from model, images and parameters."""
        is_reference = self.engine == "reference"
        shared: dict[str, Any] = {
            "seed": self.seed,
            "engine": self.engine,
            "batch_size": self.batch_size if is_reference else None,
        }
        if self.randomised:
            shared["randomised"] = True
        if given.images.dtype != np.uint8:
            shared["pixels"] = "floats, not multiples of 1/255"
        if classifier.dtype is not torch.float32:
            shared["precision"] = str(classifier.dtype).removeprefix("torch.")
        if given.decoder:
            shared["decoder"] = dict(given.decoder)
        return shared

    @staticmethod
    def _compile(classifier: Classifier, shown: torch.Tensor) -> CompiledNetwork | None:
        compiled = None if classifier.compiler is None else classifier.compiler(classifier.network, classifier.device)
        if compiled is not None:
            pixels = shown.to(classifier.device)
            check_compiled(classifier, compiled, pixels, precision="fp32", name=type(classifier.network).__name__)
        return compiled


def _check_class_folders(given: ImageSet, classifier: Classifier) -> None:
    """Check that class folders that number the classes are those of all classes of the network."""
    n_folders = len(given.class_names)
    if n_folders not in {0, classifier.n_classes}:
        raise DatasetError(
            f"Reading labels failed for the images of {n_folders:,} class folders: the network has "
            f"{classifier.n_classes:,} classes, so the order of the folders does not give the labels. Write the label "
            "of each folder into labels.json beside the folders, or evaluate another network."
        )


def _generated(images: ImageSet, seed: int) -> CorruptedImages:
    def corrupted(key: str, severity: int, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        positions = np.searchsorted(images.indices, rows)
        clean = np.ascontiguousarray(images.images[positions].transpose(0, 2, 3, 1))
        found = corrupt(clean, key, severity, seed=seed, indices=rows, frost=synthetic_frost(seed))
        return found.transpose(0, 3, 1, 2)

    return corrupted


def _corruption_refusal(given: ImageSet) -> str | None:
    """Return why images cannot be corrupted, and what to do; None where they can."""
    channels, height, width = given.images.shape[1:]
    if height != width or height < SMALLEST_SIZE:
        size = f"expected square images of {SMALLEST_SIZE} pixels or more, got {height}x{width}."
        return f"{size} {_shape_advice(height, width)}"
    if channels != 3:
        return "corruptions are of RGB images, but these have one channel."
    if given.images.dtype != np.uint8:
        return (
            "corruptions start from pixels of 8 bits, but some of these floats are not multiples of 1/255. Round them, "
            "as in (images * 255).round() / 255,"
        )
    return None


def _shape_advice(height: int, width: int) -> str:
    return "Give larger images," if height == width else "Crop or pad them to a square first,"


def _check_shape(given: ImageSet, row: Task, parameters: Parameters) -> None:
    height, width = given.images.shape[2:]
    if row.kind == "corruption":
        what, refusal = "Corrupting", _corruption_refusal(given)
    else:
        what, refusal = "Attacking", parameters.shape_refusal(height, width)
        refusal = refusal and f"{refusal} {_shape_advice(height, width)}"
    if refusal is not None:
        remedy = "Leave the key out." if refusal.endswith(".") else "or leave the key out."
        raise DatasetError(f"{what} images failed for {row.key!r}: {refusal} {remedy}")


def _normalisation_of(classifier: Classifier) -> Normalisation:
    means, stds = classifier.mean.flatten().tolist(), classifier.std.flatten().tolist()
    return Normalisation(tuple(means), tuple(stds))


def _wrong_normalisation(given: object) -> ConfigError:
    return ConfigError(
        f"Reading arguments failed for normalisation: expected (mean, std) of three numbers each, or of one for grey "
        f"images, got {reprlib.repr(given)}. Give means and standard deviations of pixels in [0, 1]."
    )


def as_normalisation(given: Normalisation | tuple[Sequence[float], Sequence[float]] | None) -> Normalisation | None:
    """Check a normalisation given as (mean, std), a number per channel each; raises ConfigError."""
    if given is None:
        return None
    if isinstance(given, Normalisation):
        normalisation = given
    else:
        try:
            mean, std = (tuple(float(value) for value in values) for values in given)
        except (TypeError, ValueError) as error:
            raise _wrong_normalisation(given) from error
        if len(mean) != len(std) or len(mean) not in {1, 3}:
            raise _wrong_normalisation(given)
        normalisation = Normalisation(mean, std)
    if (problem := normalisation.problem) is not None:
        raise ConfigError(f"Reading arguments failed for normalisation ({problem.field}): {problem.text}")
    return normalisation


def parse_keys(keys: _Keys, engine: str, *, randomised: bool = False) -> list[tuple[Task, Parameters]]:
    """Parse the keys of `evaluate` with their parameters; a ConfigError names the first that is wrong."""
    chosen: dict[str, tuple[Task, Parameters]] = {}
    items = [keys] if isinstance(keys, str | Mapping) else list(keys)
    listed = [pair for item in items for pair in (item.items() if isinstance(item, Mapping) else [(item, {})])]
    if randomised:
        listed = [(RANDOMISED_GROUPS.get(key, key) if isinstance(key, str) else key, given) for key, given in listed]
    named = [key for key, _ in listed]
    for name, fields in listed:
        # A key of a group that is also listed by name keeps its own parameters, as in a sweep.
        members = [name]
        if isinstance(name, str) and name in KEY_GROUPS:
            members = [key for key in expand_keys([name]) if key not in named]
        for key in members:
            own = _find_own_task(key, fields)
            row = _find_key(key) if own is None else own[0]
            if row.key in chosen:
                raise ConfigError(
                    f"Reading keys failed for {row.key!r}: expected each key once, got it twice. Evaluate the second "
                    "by another call."
                )
            if randomised and issubclass(row.parameters, MinimumNorm):
                raise ConfigError(
                    f"Reading keys failed for {row.key}: expected attacks that average over random outputs, such as "
                    "aa_rand, got one for the smallest perturbation, which leaves out images that are wrong once by "
                    "chance. Choose another."
                )
            parameters = _parse_parameters(row, fields, engine) if own is None else own[1]
            chosen[row.key] = row.with_parameters(parameters), parameters
    if not chosen:
        raise ConfigError("Reading keys failed for keys: expected one key or more, got none. Name some, such as clean.")
    return list(chosen.values())


def _find_own_task(key: object, fields: object) -> tuple[UserTask, Parameters] | None:
    """Find a task of the user's own or of an installed package, and its parameters; None for any other key."""
    given = {} if fields is None else fields
    if not isinstance(key, str) or not isinstance(given, Mapping):
        return None
    try:
        parameters = read_own_task(key, given)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"Reading keys failed for {key!r}: {error}") from error
    if parameters is None:
        return None
    if parameters.own_images is not None:
        raise ConfigError(
            f"Reading parameters failed for {key}: split, images and image_seed choose images of a sweep; here all "
            "given images are measured. Leave them out, or evaluate the key in a sweep."
        )
    return parameters.to_task(key).located(parameters.file, hash_file(parameters.file)), parameters


def _find_key(key: object) -> Task:
    if not isinstance(key, str):
        raise ConfigError(
            f"Reading keys failed for {key!r}: expected a name such as 'pgd', or {{'pgd': {{'steps': 80}}}}, got a "
            f"value of type {type(key).__name__}. Give a list of these."
        )
    return find_task(key)


_OWN_IMAGES = ("split", "images", "image_seed")
"""Parameters by which a measure of a sweep chooses its own images."""


def _parse_parameters(row: Task, fields: object, engine: str) -> Parameters:
    if not isinstance(fields, Mapping | None):
        raise ConfigError(
            f"Reading parameters failed for {row.key}: expected names with values, got {reprlib.repr(fields)}. Write "
            f"{{{row.key!r}: {{…}}}}."
        )
    values = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in (fields or {}).items()}
    named = [*row.parameters.model_fields, *row.parameters.other_spellings]
    known = [name for name in named if row.kind != "measure" or name not in _OWN_IMAGES]
    for name in values:
        if name not in known:
            raise ConfigError(
                f"Reading parameters failed for {row.key}: expected a known parameter, got {name!r}."
                f"{closest(str(name), known)}"
            )
    row.load(engine)  # an engine that it does not have is refused before anything starts
    try:
        parameters = row.parameters(**values)
    except ValidationError as error:
        problem = describe_problem(error, row.parameters)
        remedy = "" if re.search(r"[.?] [A-Z]", problem) else " Correct it."
        raise ConfigError(f"Reading parameters failed for {row.key}: {problem}{remedy}") from error
    refusal = parameters.refusal(engine)
    if refusal is not None:
        raise ConfigError(f"Reading parameters failed for {row.key}: {refusal} Choose another.")
    # The number of classes comes from the network, which has not been called yet; more classes cost no less.
    if (refusal := row.cost_refusal(parameters, parameters.fewest_classes)) is not None:
        raise ConfigError(f"Reading parameters failed for {row.key}: {refusal}")
    return parameters


_SHOWN_CAUTIONS: ContextVar[set[str] | None] = ContextVar("shown_cautions", default=None)
"""Warnings that the current call of `compare` has shown, since its networks share their parameters."""


def _warn_of_parameters(row: Task, parameters: Parameters, *, randomised: bool = False) -> None:
    """Warn the caller of `evaluate` or `attack` of doubtful parameters (see `Parameters.cautions`)."""
    for caution in parameters.cautions:
        message = f"{row.key}.{caution.field}: {caution.what}. {caution.fix}"
        shown = _SHOWN_CAUTIONS.get()
        if shown is not None and message in shown:
            continue
        if shown is not None:
            shown.add(message)
        warnings.warn(message, RobustWarning, stacklevel=3)
    if randomised and row.key.startswith("aa_standard"):
        message = (
            f"{row.key} does not average over the network's random numbers, so accuracies come out too high. Evaluate "
            "aa_rand, or the group autoattack."
        )
        warnings.warn(message, RobustWarning, stacklevel=3)


_IMAGES_OF_GRADIENTS = 64
"""Images whose gradients are looked at for the sign that attacks have nothing to follow."""


def _measure_zero_gradients(context: Context, image_set: ImageSet) -> float:
    """Return the fraction of some images at which the gradient of the loss is exactly 0."""
    pixels = to_float(torch.from_numpy(image_set.images[:_IMAGES_OF_GRADIENTS])).to(context.classifier.device)
    labels = torch.from_numpy(image_set.labels[:_IMAGES_OF_GRADIENTS]).to(context.classifier.device)
    _, _, gradient = context.classifier.loss_and_gradient(pixels, labels)
    return float((gradient.flatten(1) == 0).all(dim=1).double().mean())


def _warn_of_weak_attacks(
    rows: Sequence[Mapping[str, Any]], name: str, n_images: int, n_classes: int, zero_share: float
) -> None:
    """Warn of signs of weak attacks, such as a weaker attack that fools more images; one warning for each sign."""
    results: dict[Evaluated, Accuracies] = {ZERO_GRADIENTS: {name: zero_share}}
    for row in rows:
        if "accuracy" in row:
            results[row["key"], row["strength"]] = {name: row["accuracy"]}
        elif "zero_share" in row:
            results[ZERO_GRADIENTS] = {name: row["zero_share"]}
    flags = find_flags("", results, n_images=n_images, n_classes=n_classes, at_all=True)
    by_sign: dict[str, list[AttackFlag]] = {}
    for flag in flags:
        by_sign.setdefault(flag.check, []).append(flag)
    for alike in by_sign.values():
        clearest = max(alike, key=lambda flag: flag.networks[0][1] - flag.networks[0][2])
        n_more = len(alike) - 1
        more = f" The same sign appears in {n_more:,} more {'case' if n_more == 1 else 'cases'}." if n_more else ""
        warnings.warn(f"{clearest.message}{more} See docs/trust.md.", RobustWarning, stacklevel=3)


def _row(result: EvaluationResult) -> dict[str, Any]:
    values = result.values
    n_images = result.part.unit.n_images
    row: dict[str, Any] = {
        "key": result.part.unit.key,
        "strength": result.strength,
        "n_images": n_images,
        "seconds": result.seconds,
    }
    if not holds_answers(values):
        return row | {name: array.item() if array.ndim == 0 else array.tolist() for name, array in values.items()}
    correct, confidence = summarise(values)
    low, high = map(float, accuracy_intervals(correct / n_images, n_images))
    return row | {"accuracy": correct / n_images, "low": low, "high": high, "confidence": confidence}
