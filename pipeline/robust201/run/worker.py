"""A worker: computes parts one after the other, writes their results or images, and reports what it did."""

import platform
import socket
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch

from robust201.attacks.context import Context
from robust201.core.errors import (
    ConfigError,
    RobustWarning,
    StorageError,
    UnstableNetworkError,
    WorkerBrokenError,
    one_line,
)
from robust201.core.interrupts import SignalInterrupt
from robust201.core.records import EvaluationResult, ImageSet, Unit, content_digest
from robust201.evaluation.evaluate import ResidentImages, copy_to_device, evaluate_part
from robust201.images.corrupted import CorruptedStore
from robust201.networks.device import (
    choose_device,
    configure_torch,
    describe_device,
    free_cached_memory,
    is_out_of_memory,
)
from robust201.run.images import CorruptedImages, ImagePart
from robust201.run.networks import LoadedNetwork, NetworkLoader
from robust201.run.work import Outcome, ShouldStop, WorkPart
from robust201.store.events import UNSTABLE, Events
from robust201.store.folder import ResultsFolder
from robust201.store.names import ShardName, content_hash
from robust201.store.shards import encode
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import Facts
from robust201.sweep.filters import Filters
from robust201.sweep.inputs import Inputs, make_worker_space, make_worker_tasks
from robust201.sweep.parts import SlicePart
from robust201.sweep.protocol import make_protocol
from robust201.sweep.weights import WeightsSource

_PACKAGES = ("robust201", "torch", "numpy", "foolbox", "pyautoattack")

CODE_ERRORS = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions that may come from a user's code and therefore fail only the part."""


def report_failure(events: Events, part: WorkPart, error: BaseException, device: torch.device) -> str:
    """Write the event of a failed part, and return one line about the error.

    Raises:
        WorkerBrokenError: the device failed, so this process cannot continue.
    """
    failure = f"{type(error).__name__}: {one_line(error, 1000)}"
    unstable = {UNSTABLE: True} if isinstance(error, UnstableNetworkError) else {}
    events.write("failed", **part.fields, **unstable, failure=failure, traceback=traceback.format_exc())
    if isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error):
        raise WorkerBrokenError(
            f"Computing failed for {part.label}: the {device.type} device failed ({one_line(error)}). A new worker "
            "resumes the work."
        ) from error
    return failure


@contextmanager
def collecting_notices() -> Iterator[list[str]]:
    """Collect the messages of this package's warnings in a block, each once."""
    notices: dict[str, None] = {}
    show = warnings.showwarning

    def collect(message: Warning | str, category: type[Warning], *arguments: Any, **options: Any) -> None:
        if issubclass(category, RobustWarning):
            notices.setdefault(one_line(message) if isinstance(message, Warning) else message)
        else:
            show(message, category, *arguments, **options)

    collected: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", RobustWarning)
        warnings.showwarning = collect
        yield collected
    collected += notices


class Worker:
    """Computes parts in this process.

    Raises:
        ConfigError: this machine lacks the required device or precision.
    """

    def __init__(self, config: SweepConfig, facts: Facts, folder: ResultsFolder, events: Events) -> None:
        self._config, self._facts, self._folder, self._events = config, facts, folder, events
        self._device = choose_device(config.execution.device, config.precision)
        self._inputs = Inputs(config, Filters(keys=()))
        self._tasks = make_worker_tasks(config, facts.code)
        self._parameters = config.parameters
        space = make_worker_space(config, facts.code)
        self._networks = NetworkLoader(config, space, WeightsSource(config, space), self._device)
        self._resident_images: dict[str, ResidentImages] = {}
        self._corrupted = CorruptedImages(config, facts, self._inputs)
        self._micro_batch = config.execution.micro_batch

    def compute(self, part: SlicePart | ImagePart, should_stop: ShouldStop) -> Outcome:
        """Compute a part and store its results; an error of the part becomes an outcome with a failure.

        `should_stop` is ignored, because a part takes only minutes.

        Raises:
            ConfigError: the part belongs to another plan, so the run must stop.
            StorageError: results cannot be written, so the run must stop.
            WorkerBrokenError: the device failed, so this process cannot continue.
        """
        del should_stop
        if isinstance(part, SlicePart):
            self._check_protocol(part.unit)
        start = time.monotonic()
        self._events.write("part_started", **part.fields)
        failure, blocks_network = "", False
        with collecting_notices() as notices:
            try:
                strengths = self._make_images(part) if isinstance(part, ImagePart) else self._compute_part(part)
            except (StorageError, SignalInterrupt):
                raise
            except CODE_ERRORS as error:
                strengths, failure = (), report_failure(self._events, part, error, self._device)
                blocks_network = isinstance(error, UnstableNetworkError)
        seconds = round(time.monotonic() - start, 3)
        for notice in notices:
            self._events.write("warning", **part.fields, message=notice)
        if not failure:
            self._events.write("done", **part.fields, seconds=seconds)
        return Outcome(part.label, strengths, seconds, failure, tuple(notices), blocks_network)

    def close(self) -> None:
        """Record the end of the worker."""
        self._events.close()

    def _check_protocol(self, unit: Unit) -> None:
        """Reject a unit whose protocol differs from this process's; its results would be stored under a wrong id."""
        if self._protocols.get((unit.dataset, unit.key)) != unit.protocol:
            raise ConfigError(
                f"Computing failed for {unit.dataset} {unit.key}: expected the run's protocol {unit.protocol[:8]}, "
                "got another one on this machine. Install the same version of robust201 on all machines, and start the "
                "run again after each change of the sweep."
            )

    @cached_property
    def _protocols(self) -> dict[tuple[str, str], str]:
        """Digests of this process's protocols by dataset and key."""
        return {
            (dataset, key): content_digest(make_protocol(self._config, dataset, key, self._facts))
            for dataset in self._config.datasets
            for key in self._config.keys_of(dataset)
        }

    def _make_images(self, part: ImagePart) -> tuple[float, ...]:
        self._corrupted.make(part)
        return ()

    def _compute_part(self, part: SlicePart) -> tuple[float, ...]:
        """Compute a part, with smaller batches each time memory runs out; return the stored strengths."""
        # Smaller batches for one part must not change the last bits of the next part's results.
        self._micro_batch = self._config.execution.micro_batch
        configure_torch(self._config.execution.threads, self._config.precision)
        while True:
            try:
                return self._compute(part)
            except CODE_ERRORS as error:
                if not is_out_of_memory(error) or not self._use_less_memory(part):
                    raise
            free_cached_memory(self._device)  # after the `except` block, in which the error keeps tensors alive

    def _use_less_memory(self, part: SlicePart) -> bool:
        network = self._networks.loaded
        micro_batch = None if network is None else network.halve()
        if micro_batch is None:
            return False
        self._micro_batch = micro_batch
        self._events.write("micro_batch_halved", **part.fields, images=self._micro_batch)
        return True

    def _compute(self, part: SlicePart) -> tuple[float, ...]:
        unit, images = part.unit, self._images(part.unit)
        network = self._load_network(unit, images)
        is_corruption = self._tasks[unit.key].kind == "corruption"
        corrupted = self._corrupted.open_store(unit.dataset, unit.key) if is_corruption else None
        results = list(
            evaluate_part(
                self._make_context(network, corrupted),
                self._tasks[unit.key],
                self._parameters[unit.key],
                part.part,
                images,
                part.columns,
                provenance=self._provenance | {"micro_batch": network.batch_sizes.describe()},
                resident_images=self._images_on_device(images),
            )
        )
        network.check_again(unit.network_label)
        strengths = tuple(result.strength for result in results)
        pixels = () if corrupted is None else [corrupted.digest(unit.key, [int(severity)]) for severity in strengths]
        self._store(part, results, pixels)
        return strengths

    def _store(self, part: SlicePart, results: list[EvaluationResult], pixels: Sequence[str]) -> None:
        content = encode(results, pixels=pixels)
        name = ShardName(
            part.unit.dataset,
            part.unit.id,
            self._folder.save_tuple([result.strength for result in results]),
            part.index,
            part.n_slices,
            self._folder.save_tuple(part.columns),
            content_hash(content),
        )
        self._folder.write(name, content)

    def _load_network(self, unit: Unit, images: ImageSet) -> LoadedNetwork:
        network = self._networks.load(unit, images)
        # Limit batches before the check, so that they are also halved if the check runs out of memory.
        network.limit(self._micro_batch)
        network.check(images, precision=self._config.precision, name=unit.network_label)
        return network

    def _make_context(self, network: LoadedNetwork, corrupted: CorruptedStore | None) -> Context:
        return Context(
            classifier=network.classifier,
            model=network.model,
            seed=self._config.seed,
            batch_size=self._config.batch_size,
            corrupted_images=corrupted,
            engine=self._config.engine,
        )

    @cached_property
    def _provenance(self) -> dict[str, str]:
        return {name: version(name) for name in _PACKAGES} | {
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "device": f"{self._device.type} {describe_device(self._device)}",
        }

    def _images(self, unit: Unit) -> ImageSet:
        sha256 = self._facts.datasets[unit.dataset].images_of(unit.key).sha256
        return self._inputs.read_copied_images(unit.dataset, sha256)

    def _images_on_device(self, images: ImageSet) -> ResidentImages:
        if images.sha256 not in self._resident_images:
            self._resident_images[images.sha256] = copy_to_device(images, self._device)
        return self._resident_images[images.sha256]
