"""Worker of training runs: trains networks and stores their snapshots."""

import time
from collections.abc import Iterator

import torch

from robust201.core.errors import ConfigError
from robust201.core.records import Part, Receipt
from robust201.planning.training_inputs import TrainingInputs
from robust201.planning.training_plan import PlannedTraining, TrainingWork
from robust201.runtime.heartbeat import Heartbeat, TrainingSteps
from robust201.runtime.part_worker import PartWorker
from robust201.sweep.inputs import make_worker_space
from robust201.training.loop import Snapshot, measure_accuracy, train
from robust201.training.state import EpochRecord
from robust201.weights.store import CheckpointRecord, CheckpointStore

_SOURCE = "robust201 run"
"""Value of the field `source` in the manifest."""


class TrainingWorker(PartWorker):
    """Trains the networks of bundles, resuming from saved states. On draining, it saves the state and stops.

    Raises:
        ConfigError: the device is a GPU although the training runs were planned for CPUs, or the reverse.
    """

    activity = "Training"

    def __init__(self, work: TrainingWork) -> None:
        config = work.config
        super().__init__(config)
        if self.device.type != work.device:
            raise ConfigError(
                f"Starting a worker failed for {config.name}: the training runs were planned for {work.device}, but "
                f"this worker's device is {self.device.type}. Set execution.device to the device of the workers."
            )
        self._config, self._work = config, work
        self._inputs = TrainingInputs(config, copy_hashes=work.images)
        self._space = make_worker_space(config, work.code)
        self._store = CheckpointStore(config.store)  # workers write only weights files; the driver writes the manifest

    def compute(self, part: Part, heartbeat: Heartbeat) -> Iterator[Receipt]:
        planned_training = self._work.trainings[part.unit.id]
        training, config = planned_training.training, self._config
        start_weights = None if planned_training.start is None else self._store.load(planned_training.start)
        start_time = time.perf_counter()
        first_report: tuple[int, float] | None = None  # step and time

        def note_steps(step: int, record: EpochRecord | None) -> None:
            nonlocal first_report
            now = time.perf_counter()
            first_report = first_report or (step, now)
            heartbeat.note_steps(
                TrainingSteps(
                    step=step,
                    first_step=first_report[0],
                    n_steps=int(part.strengths[-1]),
                    per_epoch=planned_training.n_batches,
                    seconds=now - first_report[1],
                    loss=None if record is None else record.loss,
                    accuracy=None if record is None else record.accuracy,
                )
            )

        snapshots = train(
            self._space,
            training.architecture,
            self._inputs.data(training.recipe, training.dataset),
            config.recipes[training.recipe],
            seed=training.seed,
            device=self.device.type,
            threads=config.execution.threads,
            precision=config.precision,
            start=start_weights,
            states=planned_training.states_folder(config),
            snapshot_steps=tuple(map(int, part.strengths)),
            on_epoch=self._log_epoch,
            on_steps=note_steps,
            keep_going=lambda _step: not self._draining.is_set(),
            on_notice=lambda line: self._log.write("state_damaged", line, level="warning"),
        )
        for snapshot in snapshots:
            record = self._store_snapshot(planned_training, snapshot)
            seconds = time.perf_counter() - start_time
            strengths, line = (float(snapshot.step),), record.to_line().decode()
            yield Receipt(part.unit.id, strengths, part.start, part.stop, record.file, seconds, line)
            start_time = time.perf_counter()

    def _log_epoch(self, record: EpochRecord) -> None:
        self._log.write("epoch_ended", f"epoch {record.epoch}", loss=record.loss, accuracy=record.accuracy)

    def _store_snapshot(self, planned_training: PlannedTraining, snapshot: Snapshot) -> CheckpointRecord:
        training, space = planned_training.training, self._space
        identity = space.identity()
        last_epoch = snapshot.history[-1] if snapshot.history else None
        n_classes = self._config.dataset_spec(training.dataset).n_classes
        return self._store.write(
            space=space.weights_name,
            index=training.architecture,
            spec=space.spec(training.architecture),
            dataset=training.dataset,
            epochs=snapshot.step // snapshot.n_batches,
            steps=None if snapshot.epochs is not None else snapshot.step,
            seed=training.seed,
            channels=identity.get("channels"),
            cells=identity.get("cells"),
            n_classes=n_classes,
            source=_SOURCE,
            source_sha256=planned_training.id,
            state_dict=snapshot.state_dict,
            training={
                "inputs": planned_training.fields,
                "outcome": {
                    "steps": snapshot.step,
                    "n_batches": snapshot.n_batches,
                    "train_loss": None if last_epoch is None else last_epoch.loss,
                    "train_accuracy": None if last_epoch is None else last_epoch.accuracy,
                    "test_accuracy": self._measure_test_accuracy(planned_training, snapshot),
                    "torch": torch.__version__,
                },
            },
            recipe=training.recipe,
        )

    def _measure_test_accuracy(self, planned_training: PlannedTraining, snapshot: Snapshot) -> float | None:
        images = self._inputs.test_images(planned_training.training.dataset)
        if images is None:
            return None
        return measure_accuracy(
            self._space,
            planned_training.training.architecture,
            snapshot.state_dict,
            images,
            device=self.device.type,
            threads=self._config.execution.threads,
        )
