"""The plan of training runs: the inputs that determine their weights, and the snapshots that a store lacks."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from robust201.core.errors import CheckpointError, ConfigError, did_you_mean
from robust201.networks.space import Space
from robust201.sweep.protocol import list_differences
from robust201.sweep.training_config import TrainingConfig, TrainingRun
from robust201.sweep.training_inputs import Hashes, TrainingInputs, count_epoch_images
from robust201.training.identity import hash_training
from robust201.training.recipes import Recipe
from robust201.weights.manifest import CheckpointRecord
from robust201.weights.store import CheckpointStore

DeviceKind = Literal["cpu", "cuda"]

_PASSES_PER_GRADIENT = 3
"""Cost of a gradient, in units of a forward pass; a backward pass costs as much as two forward passes."""


@dataclass(frozen=True)
class PlannedTraining:
    """A planned training run, which a worker computes as one part (see `run.work.WorkPart`).

    Attributes:
        steps: steps of the requested snapshots, ascending; the last one ends the training.
        missing: steps of requested snapshots that the store lacks.
        n_batches: steps per epoch.
        macs: estimated multiply-accumulates of one epoch.
        weights_id: result of `hash_training`; empty if the start weights do not exist yet.
        inputs: everything that determines the weights except network and seed, as a JSON value for the manifest.
        start: record of the start weights; None for initial weights, or if they do not exist yet.
    """

    training: TrainingRun
    steps: tuple[int, ...]
    missing: tuple[int, ...]
    n_batches: int
    macs: float
    weights_id: str
    inputs: Mapping[str, Any]
    start: CheckpointRecord | None = None

    @property
    def id(self) -> TrainingRun:
        return self.training

    @property
    def label(self) -> str:
        return self.training.label

    @property
    def network(self) -> TrainingRun:
        return self.training

    @property
    def fields(self) -> Mapping[str, Any]:
        return {"part": self.label, "training": self.training.digest, "n_epochs": self.n_epochs}

    @property
    def n_epochs(self) -> int:
        """Number of epochs, the last of which may be shorter."""
        return -(-self.steps[-1] // self.n_batches)

    @property
    def is_ready(self) -> bool:
        """Whether the training run can start, because its start weights exist."""
        return bool(self.weights_id)

    @property
    def is_done(self) -> bool:
        """Whether the store has the final weights."""
        return self.is_ready and self.steps[-1] not in self.missing

    @property
    def folder_name(self) -> str:
        """Name of the folder of saved states (see `run.snapshots`); two runs with equal weights have two folders."""
        return f"{self.training.digest[:16]}{self.weights_id[:16]}"


@dataclass(frozen=True)
class TrainingSetup:
    """Data that a worker of training runs needs besides its parts; small, because each worker receives a copy.

    Attributes:
        images: hashes of the images that were copied for workers.
        code: hashes of the Python files that were copied for workers.
        device: kind of device, on which the weights depend.
    """

    config: TrainingConfig
    images: Hashes
    code: Mapping[str, str]
    device: DeviceKind


def epoch_macs(config: TrainingConfig, space: Space, training: TrainingRun, n_batches: int) -> float:
    """Estimate the multiply-accumulates of an epoch."""
    recipe, spec = config.recipes[training.recipe], config.dataset_spec(training.dataset)
    macs = space.macs(training.architecture, n_classes=spec.n_classes, image_size=spec.image_size)
    return macs * _PASSES_PER_GRADIENT * recipe.batch_size * _count_gradients(recipe) * n_batches


def _count_gradients(recipe: Recipe) -> int:
    """Return the number of gradients per image and step: for the loss, the attack and TRADES."""
    adversarial = recipe.adversarial
    if adversarial is None:
        return 1
    if adversarial.pgd is not None:
        return 1 + adversarial.pgd.steps
    return 2 + (0 if adversarial.trades is None else adversarial.trades.steps)


class TrainingPlanner:
    """Plans training runs and looks up their snapshots in a store."""

    def __init__(
        self,
        config: TrainingConfig,
        inputs: TrainingInputs,
        store: CheckpointStore,
        *,
        device: DeviceKind,
        code: Mapping[str, str],
    ) -> None:
        self._config, self._inputs, self._store, self._device = config, inputs, store, device
        self._space = config.make_space(code)

    def plan(self, training_runs: Iterable[TrainingRun], requested: Collection[TrainingRun]) -> list[PlannedTraining]:
        """Plan training runs, given the current content of the store; the driver will compute all runs in `requested`.

        Raises:
            ConfigError: a recipe is rejected (see `_snapshot_steps`), or the training images have a different number of
                classes than the dataset.
            DatasetError: images are missing, damaged or too few.
            CheckpointError: the store has different training runs under the same names, or lacks start weights that no
                requested training run produces.
        """
        return [self._plan(training, frozenset(requested)) for training in training_runs]

    def _plan(self, training: TrainingRun, requested: frozenset[TrainingRun]) -> PlannedTraining:
        config, space, is_on_cpu = self._config, self._space, self._device == "cpu"
        recipe, data = config.recipes[training.recipe], self._inputs.data(training.recipe, training.dataset)
        n_batches = data.n_batches(recipe.batch_size)
        steps = _snapshot_steps(recipe, training, n_batches, data.n_images)
        start, is_waiting = self._find_start(training, requested)
        fields: dict[str, Any] = {
            "recipe": recipe.identity(),
            "data": data.identity(),
            "device": self._device,
            "threads": config.execution.threads if is_on_cpu else None,
            "precision": None if is_on_cpu else config.precision,
            "start": None if start is None else start.sha256,
        }
        inputs = {field: value for field, value in fields.items() if value is not None}
        macs = epoch_macs(config, space, training, n_batches)
        if is_waiting:
            return PlannedTraining(training, steps, steps, n_batches, macs, "", inputs)
        weights_id = hash_training(
            space=space.name,
            space_identity=space.identity(),
            architecture=training.architecture,
            n_classes=data.n_classes,
            seed=training.seed,
            **fields,
        )
        finished = self._find_finished_steps(training, weights_id, inputs)
        missing = tuple(step for step in steps if step not in finished)
        return PlannedTraining(training, steps, missing, n_batches, macs, weights_id, inputs, start)

    def _find_finished_steps(self, training: TrainingRun, weights_id: str, inputs: Mapping[str, Any]) -> set[int]:
        """Return the steps of a training run's snapshots in the store, without snapshots whose files are damaged."""
        finished: set[int] = set()
        for record in self._records(training):
            if record.source_sha256 != weights_id:
                differences = "; ".join(list_differences(record.inputs, inputs)) or "the network's fields or code"
                raise CheckpointError(
                    f"Planning training runs failed for {record.label} in {self._store.root}: the store has a "
                    f"different training run under this name ({differences}). Rename the recipe, or choose another "
                    "store."
                )
            try:
                self._store.check(record)
            except CheckpointError:
                continue  # the damaged snapshot is trained again
            if record.steps_done is not None:
                finished.add(record.steps_done)
        return finished

    def _records(self, training: TrainingRun) -> list[CheckpointRecord]:
        space_name = self._space.weights_name
        return [
            record
            for record in self._store.records_of_network(training.architecture, training.dataset, space_name)
            if (record.recipe, record.seed) == (training.recipe, training.seed)
        ]

    def _find_start(
        self, training: TrainingRun, requested: frozenset[TrainingRun]
    ) -> tuple[CheckpointRecord | None, bool]:
        """Return the weights that a training run starts from, and whether another run has yet to produce them."""
        predecessor = self._config.start_of(training)
        if predecessor is None:
            return None, False
        records = self._records(predecessor)
        recipes = self._config.recipes
        if predecessor.recipe in recipes and predecessor.dataset in self._config.targets(predecessor.recipe):
            planned = self._plan(predecessor, requested)
            if not planned.is_done and predecessor in requested:
                return None, True
            records = [record for record in records if planned.is_done and record.steps_done == planned.steps[-1]]
        suggestion = "" if predecessor.recipe in recipes else did_you_mean(predecessor.recipe, recipes)
        if not records:
            raise CheckpointError(
                f"Planning training runs failed for {training.label}: it starts from the final weights of "
                f"{predecessor.label}, which are not in {self._store.root}. Train {predecessor.label} first, or add "
                f"its recipe, dataset and seed to this YAML.{suggestion}"
            )
        last_record = max(records, key=lambda record: (record.epochs, record.steps or 0))
        if last_record.is_final is False:
            raise CheckpointError(
                f"Planning training runs failed for {training.label}: it starts from the final weights of "
                f"{predecessor.label}, but {self._store.root} has only its snapshots up to step "
                f"{last_record.steps_done}. Finish the training of {predecessor.label} first.{suggestion}"
            )
        self._store.check(last_record)
        return last_record, False


def _snapshot_steps(recipe: Recipe, training: TrainingRun, n_batches: int, n_images: int) -> tuple[int, ...]:
    """Return the steps of a training run's snapshots.

    Raises:
        ConfigError: a batch has more images than an epoch, or `Recipe.snapshot_steps` rejects the recipe.
    """
    recipe_label = f"{training.recipe} on {training.dataset}"
    if recipe.batch_size > n_images:
        raise ConfigError(
            f"Planning training runs failed for recipes.{training.recipe}.batch_size: expected at most {n_images:,}, "
            f"the number of training images of {recipe_label}, got {recipe.batch_size:,}. Reduce it, or restrict the "
            "recipe to other datasets with `on`."
        )
    try:
        return recipe.snapshot_steps(n_batches)
    except ConfigError as error:
        raise ConfigError(f"{error} The recipe is {recipe_label}.") from error


def estimate_training_runs(config: TrainingConfig, training_runs: Sequence[TrainingRun]) -> dict[str, Any]:
    """Return counts and estimated worker-hours of training runs as a JSON value; only the YAML is read."""
    space = config.make_space({})
    n_snapshots, macs, n_steps = 0, 0.0, 0
    uncounted_datasets = set()
    for training in training_runs:
        recipe = config.recipes[training.recipe]
        n_images = count_epoch_images(config, training)
        if n_images is None:
            uncounted_datasets.add(training.dataset)
            continue
        n_batches = -(-n_images // recipe.batch_size)
        steps = _snapshot_steps(recipe, training, n_batches, n_images)
        n_snapshots += len(steps)
        n_steps += steps[-1]
        macs += epoch_macs(config, space, training, n_batches) * steps[-1] / n_batches
    return {
        "name": config.name,
        "architectures": len({training.architecture for training in training_runs}),
        "trainings": len(training_runs),
        "snapshots": n_snapshots,
        "steps": n_steps,
        **config.execution.estimate_hours(macs),
        "trainings_by_recipe": {
            name: sum(training.recipe == name for training in training_runs)
            for name in config.recipes
            if any(training.recipe == name for training in training_runs)
        },
        "warnings": [
            f"The number of training images of {dataset} is unknown without reading them: the estimate excludes its "
            "training runs."
            for dataset in sorted(uncounted_datasets)
        ],
    }
