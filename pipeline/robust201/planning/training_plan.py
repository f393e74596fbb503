"""Plan training runs: their ids, requested and missing snapshots, and estimated work."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from robust201.core.errors import CheckpointError, ConfigError
from robust201.core.records import Bundle, Part, Unit
from robust201.planning.identity import describe_difference
from robust201.planning.training_inputs import Hashes, TrainingInputs, count_epoch_images
from robust201.spaces.base import Space
from robust201.sweep.training_config import Training, TrainingConfig
from robust201.training.identity import hash_training
from robust201.training.recipes import Recipe
from robust201.weights.manifest import CheckpointRecord
from robust201.weights.store import CheckpointStore

DeviceKind = Literal["cpu", "cuda"]

_PASSES_PER_GRADIENT = 3
"""Cost of a gradient, in units of a forward pass; a backward pass costs as much as two forward passes."""


@dataclass(frozen=True)
class PlannedTraining:
    """A training run with everything that affects its weights.

    Attributes:
        steps: steps of the requested snapshots, ascending; the last one ends the training.
        missing: steps of requested snapshots that the store lacks.
        n_batches: steps per epoch.
        id: result of `hash_training`; empty if the start weights do not exist yet.
        fields: all hashed fields except network and seed, as a JSON value for the manifest.
        start: record of the start weights; None for initial weights, or if they do not exist yet.
    """

    training: Training
    steps: tuple[int, ...]
    missing: tuple[int, ...]
    n_batches: int
    id: str
    fields: Mapping[str, Any]
    start: CheckpointRecord | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the training run can start, because its start weights exist."""
        return bool(self.id)

    @property
    def is_done(self) -> bool:
        """Whether the store has the final weights."""
        return self.is_ready and self.steps[-1] not in self.missing

    def unit(self) -> Unit:
        """Return the training run as a unit for the scheduler; the unit's strengths are the steps of the snapshots."""
        training = self.training
        return Unit(
            id=training.digest,
            architecture=training.architecture,
            dataset=training.dataset,
            key=training.recipe,
            strengths=tuple(map(float, self.steps)),
            n_images=1,
            protocol=self.id,
            checkpoint_sha256="" if self.start is None else self.start.sha256,
            weights=f"s{training.seed}",
        )

    def part(self) -> Part:
        return Part(self.unit(), tuple(map(float, self.missing)), 0, 1)

    def states_folder(self, config: TrainingConfig) -> Path:
        """Return the folder of the training's saved states."""
        return config.results / "states" / self.id[:32]


@dataclass(frozen=True)
class TrainingPlan:
    """All selected training runs of a YAML."""

    config: TrainingConfig
    trainings: tuple[PlannedTraining, ...]
    code: Mapping[str, str]

    @property
    def n_evaluations(self) -> int:
        """Number of requested snapshots; progress is counted in snapshots."""
        return sum(len(planned_training.steps) for planned_training in self.trainings)

    @property
    def n_done(self) -> int:
        return self.n_evaluations - sum(len(planned_training.missing) for planned_training in self.trainings)

    @cached_property
    def by_unit(self) -> dict[str, PlannedTraining]:
        """Training runs by the id of their unit."""
        return {planned_training.training.digest: planned_training for planned_training in self.trainings}

    @cached_property
    def _space(self) -> Space:
        return self.config.make_space(self.code)

    def macs(self, part: Part) -> float:
        """Estimate the multiply-accumulates of a training run's snapshots, each counted from the previous snapshot."""
        previous_steps = dict(zip(part.unit.strengths, (0.0, *part.unit.strengths), strict=False))
        steps = sum(step - previous_steps[step] for step in part.strengths)
        return steps * step_macs(self.config, self._space, self.by_unit[part.unit.id].training)

    def bundles(self, trainings: Iterable[PlannedTraining], has_gpu: bool) -> list[Bundle]:
        """Make one bundle per training run, in order of decreasing estimated time."""
        rate = self.config.execution.assumed_gmacs(has_gpu) * 1e9
        parts = [planned_training.part() for planned_training in trainings]
        bundles = [Bundle(part.unit.architecture, part.unit.dataset, (part,), self.macs(part) / rate) for part in parts]
        return sorted(bundles, key=lambda bundle: -bundle.seconds)


@dataclass(frozen=True)
class TrainingWork:
    """The work of one stage (training runs whose start weights exist), small enough to send to workers.

    Attributes:
        trainings: training runs by the id of their unit.
        images: hashes of the images that the driver has copied.
        code: hashes of the Python files that the driver has copied.
        device: kind of device, which is part of the ids of training runs.
    """

    config: TrainingConfig
    trainings: Mapping[str, PlannedTraining]
    images: Hashes
    code: Mapping[str, str]
    device: DeviceKind


def saved_states(config: TrainingConfig) -> frozenset[Path]:
    """Return the saved states of all unfinished training runs; a new file means progress."""
    return frozenset((config.results / "states").glob("*/step-*.safetensors"))


def step_macs(config: TrainingConfig, space: Space, training: Training) -> float:
    """Estimate the multiply-accumulates of one training step."""
    recipe, spec = config.recipes[training.recipe], config.dataset_spec(training.dataset)
    macs = space.macs(training.architecture, n_classes=spec.n_classes, image_size=spec.image_size)
    return macs * _PASSES_PER_GRADIENT * recipe.batch_size * _count_gradients(recipe)


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
        self.config, self.inputs, self.store, self.device, self.code = config, inputs, store, device, code
        self._space = config.make_space(code)

    def plan(self, trainings: Sequence[Training]) -> TrainingPlan:
        """Plan training runs, given the current content of the store.

        Raises:
            ConfigError: a snapshot is after the end of a training run, a batch has more images than the dataset, or the
                training images have another number of classes.
            DatasetError: images are missing, damaged or too few.
            CheckpointError: the store has different training runs under the same names, or lacks start weights that
                none of these training runs produces.
        """
        planned_trainings: dict[Training, PlannedTraining] = {}
        for training in trainings:
            # The predecessors of a training run are planned as well, even if the filters exclude them.
            for run in self._with_predecessors(training):
                if run not in planned_trainings:
                    planned_trainings[run] = self._plan(run, planned_trainings)
        requested_trainings = set(trainings)
        for training in trainings:
            predecessor = self.config.start_of(training)
            if (
                predecessor is not None
                and predecessor in planned_trainings
                and predecessor not in requested_trainings
                and not planned_trainings[predecessor].is_done
            ):
                raise self._missing_start_error(training, predecessor)
        return TrainingPlan(self.config, tuple(planned_trainings[training] for training in trainings), self.code)

    def _with_predecessors(self, training: Training) -> list[Training]:
        """Return a training run after its predecessors, the training runs of the YAML whose final weights it needs."""
        predecessor = self.config.start_of(training)
        is_absent = predecessor is None or predecessor.recipe not in self.config.recipes
        return [*([] if is_absent or predecessor is None else self._with_predecessors(predecessor)), training]

    def _plan(self, training: Training, planned_trainings: Mapping[Training, PlannedTraining]) -> PlannedTraining:
        """Plan one training run, after its predecessor."""
        config, is_on_cpu = self.config, self.device == "cpu"
        recipe = config.recipes[training.recipe]
        training_images = self.inputs.data(training.recipe, training.dataset)
        n_batches = training_images.n_batches(recipe.batch_size)
        steps = _snapshot_steps(recipe, training, n_batches, training_images.n_images)
        start, is_waiting = self._find_start(training, planned_trainings)
        fields: dict[str, Any] = {
            "recipe": recipe.identity(),
            "data": training_images.identity(),
            "device": self.device,
            "threads": config.execution.threads if is_on_cpu else None,
            "precision": None if is_on_cpu else config.precision,
            "start": None if start is None else start.sha256,
        }
        recorded_fields = {field: value for field, value in fields.items() if value is not None}
        if is_waiting:
            return PlannedTraining(training, steps, steps, n_batches, "", recorded_fields)
        training_id = hash_training(
            space=self._space.name,
            space_identity=self._space.identity(),
            architecture=training.architecture,
            n_classes=training_images.n_classes,
            seed=training.seed,
            **fields,
        )
        finished_steps = self._find_finished_steps(training, training_id, recorded_fields)
        missing_steps = tuple(step for step in steps if step not in finished_steps)
        return PlannedTraining(training, steps, missing_steps, n_batches, training_id, recorded_fields, start)

    def _find_finished_steps(self, training: Training, training_id: str, fields: Mapping[str, Any]) -> set[int]:
        """Return the steps of a training run's snapshots in the store, without snapshots whose files are damaged."""
        finished_steps: set[int] = set()
        for record in self.store.records_of_network(training.architecture, training.dataset, self._space.weights_name):
            if (record.recipe, record.seed) != (training.recipe, training.seed):
                continue
            if record.source_sha256 != training_id:
                differences = (
                    "; ".join(describe_difference(record.inputs, fields)) or "the network's configuration or code"
                )
                raise CheckpointError(
                    f"Planning training runs failed for {record.label} in {self.store.root}: the store has a different "
                    f"training run under this name ({differences}). Rename the recipe, or choose another store."
                )
            try:
                self.store.check(record)
            except CheckpointError:
                continue  # the damaged snapshot is trained again
            if record.steps_done is not None:
                finished_steps.add(record.steps_done)
        return finished_steps

    def _find_start(
        self, training: Training, planned_trainings: Mapping[Training, PlannedTraining]
    ) -> tuple[CheckpointRecord | None, bool]:
        """Return the weights that a training run starts from, and whether this plan has yet to produce them."""
        predecessor = self.config.start_of(training)
        if predecessor is None:
            return None, False
        planned_training = planned_trainings.get(predecessor)
        if planned_training is not None and not planned_training.is_done:
            return None, True
        records = [
            record
            for record in self.store.records_of_network(
                predecessor.architecture, predecessor.dataset, self._space.weights_name
            )
            if (record.recipe, record.seed) == (predecessor.recipe, predecessor.seed)
        ]
        if planned_training is not None:
            records = [record for record in records if record.steps_done == planned_training.steps[-1]]
        if not records:
            raise self._missing_start_error(training, predecessor)
        last_record = max(records, key=lambda record: (record.epochs, record.steps or 0))
        if last_record.is_final is False:
            raise CheckpointError(
                f"Planning training runs failed for {training.label}: it starts from the final weights of "
                f"{predecessor.label}, but {self.store.root} has only its snapshots up to step "
                f"{last_record.steps_done}. Finish the training of {predecessor.label} first."
            )
        self.store.check(last_record)
        return last_record, False

    def _missing_start_error(self, training: Training, predecessor: Training) -> CheckpointError:
        return CheckpointError(
            f"Planning training runs failed for {training.label}: it starts from the final weights of "
            f"{predecessor.label}, which are not in {self.store.root}. Train {predecessor.label} first, or add its "
            "recipe, dataset and seed to this YAML."
        )


def _snapshot_steps(recipe: Recipe, training: Training, n_batches: int, n_images: int) -> tuple[int, ...]:
    """Return the steps of a training run's snapshots.

    Raises:
        ConfigError: a batch of the recipe has more images than the dataset, or a snapshot is after the end of training.
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


def estimate_trainings(config: TrainingConfig, trainings: Sequence[Training]) -> dict[str, Any]:
    """Return counts and estimated worker-hours of training runs as a JSON value; only the YAML is read."""
    space = config.make_space({})
    n_snapshots, macs, n_steps = 0, 0.0, 0
    uncounted_datasets = set()
    for training in trainings:
        recipe = config.recipes[training.recipe]
        n_images = count_epoch_images(config, training)
        if n_images is None:
            uncounted_datasets.add(training.dataset)
            continue
        steps = _snapshot_steps(recipe, training, -(-n_images // recipe.batch_size), n_images)
        n_snapshots += len(steps)
        n_steps += steps[-1]
        macs += steps[-1] * step_macs(config, space, training)
    return {
        "name": config.name,
        "architectures": len({training.architecture for training in trainings}),
        "trainings": len(trainings),
        "snapshots": n_snapshots,
        "steps": n_steps,
        **config.execution.estimate_hours(macs),
        "trainings_by_recipe": {
            name: sum(training.recipe == name for training in trainings)
            for name in config.recipes
            if any(training.recipe == name for training in trainings)
        },
        "warnings": [
            f"The number of training images of {dataset} is unknown without reading them: the estimate excludes its "
            "training runs."
            for dataset in sorted(uncounted_datasets)
        ],
    }
