"""A worker of training runs: trains networks from their last saved states, and stores their snapshots."""

import time
from collections.abc import Callable

import torch

from robust201.core.errors import ConfigError, StorageError
from robust201.core.interrupts import SignalInterrupt
from robust201.networks.device import choose_device
from robust201.run.snapshots import folder_of, recorded_steps, save_record
from robust201.run.work import Outcome, ShouldStop
from robust201.run.worker import CODE_ERRORS, collecting_notices, report_failure
from robust201.store.events import Events
from robust201.sweep.inputs import make_worker_space
from robust201.sweep.training_inputs import TrainingInputs
from robust201.sweep.training_plan import PlannedTraining, TrainingSetup
from robust201.training.loop import Snapshot, measure_accuracy, train
from robust201.training.state import EpochRecord
from robust201.weights.store import CheckpointRecord, CheckpointStore

_SOURCE = "robust201 run"
"""Value of the field `source` in the manifest."""


class TrainingWorker:
    """Trains networks in this process, one after the other.

    Raises:
        ConfigError: this machine lacks the device or precision, or its device is not of the planned kind.
    """

    def __init__(self, setup: TrainingSetup, events: Events) -> None:
        config = setup.config
        device = choose_device(config.execution.device, config.precision)
        if device.type != setup.device:
            raise ConfigError(
                f"Starting a worker failed for {config.name}: the training runs were planned for {setup.device}, but "
                f"this worker's device is {device.type}. Set execution.device to the device of the workers."
            )
        self._config, self._events, self._device = config, events, device
        self._inputs = TrainingInputs(config, copy_hashes=setup.images)
        self._space = make_worker_space(config, setup.code)
        self._store = CheckpointStore(config.store)

    def compute(self, part: PlannedTraining, should_stop: ShouldStop) -> Outcome:
        """Train a network and store its missing snapshots, or end after the current step when asked to stop.

        An error of the training becomes an outcome with a failure.

        Raises:
            StorageError: a state or weights cannot be written, so the run must stop.
            WorkerBrokenError: the device failed, so this process cannot continue.
        """
        start, failure = time.monotonic(), ""
        self._events.write("part_started", **part.fields)
        with collecting_notices() as notices:
            try:
                self._train(part, should_stop)
            except (StorageError, SignalInterrupt):
                raise
            except CODE_ERRORS as error:
                failure = report_failure(self._events, part, error, self._device)
        seconds = time.monotonic() - start
        if failure:
            return Outcome(part.label, (), seconds, failure, tuple(notices))
        self._events.write("stopped" if should_stop() else "done", **part.fields, seconds=round(seconds, 3))
        steps = recorded_steps(folder_of(self._config.results, part.folder_name))
        return Outcome(part.label, tuple(map(float, steps)), seconds, notices=tuple(notices))

    def close(self) -> None:
        """Record the end of the worker."""
        self._events.close()

    def _train(self, part: PlannedTraining, should_stop: ShouldStop) -> None:
        training, config = part.training, self._config
        folder = folder_of(config.results, part.folder_name)
        stored = recorded_steps(folder)  # by a worker that was lost before it could report them
        snapshots = train(
            self._space,
            training.architecture,
            self._inputs.data(training.recipe, training.dataset),
            config.recipes[training.recipe],
            seed=training.seed,
            device=self._device.type,
            threads=config.execution.threads,
            precision=config.precision,
            start=None if part.start is None else self._store.load(part.start),
            states=folder,
            snapshot_steps=[step for step in part.missing if step not in stored],
            on_epoch=self._make_epoch_reporter(part),
            keep_going=lambda _step: not should_stop(),
        )
        for snapshot in snapshots:
            save_record(folder, snapshot.step, self._store_snapshot(part, snapshot))

    def _make_epoch_reporter(self, part: PlannedTraining) -> Callable[[EpochRecord], None]:
        last_end = time.monotonic()

        def report(record: EpochRecord) -> None:
            nonlocal last_end
            now = time.monotonic()
            fields = {"epoch": record.epoch, "loss": record.loss, "accuracy": record.accuracy}
            self._events.write("epoch", **part.fields, **fields, macs=part.macs, seconds=round(now - last_end, 3))
            last_end = now

        return report

    def _store_snapshot(self, part: PlannedTraining, snapshot: Snapshot) -> CheckpointRecord:
        training, space = part.training, self._space
        identity = space.identity()
        last_epoch = snapshot.history[-1] if snapshot.history else None
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
            n_classes=self._config.dataset_spec(training.dataset).n_classes,
            source=_SOURCE,
            source_sha256=part.weights_id,
            state_dict=snapshot.state_dict,
            training={
                "inputs": part.inputs,
                "outcome": {
                    "steps": snapshot.step,
                    "n_batches": snapshot.n_batches,
                    "train_loss": None if last_epoch is None else last_epoch.loss,
                    "train_accuracy": None if last_epoch is None else last_epoch.accuracy,
                    "test_accuracy": self._measure_test_accuracy(part, snapshot),
                    "torch": torch.__version__,
                },
            },
            recipe=training.recipe,
        )

    def _measure_test_accuracy(self, part: PlannedTraining, snapshot: Snapshot) -> float | None:
        images = self._inputs.test_images(part.training.dataset)
        if images is None:
            return None
        return measure_accuracy(
            self._space,
            part.training.architecture,
            snapshot.state_dict,
            images,
            device=self._device.type,
            threads=self._config.execution.threads,
        )
