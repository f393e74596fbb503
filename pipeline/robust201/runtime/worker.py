"""Worker of a sweep: evaluates networks, retries with less memory, and writes the results to shards.

A worker receives its work in bundles. A bundle has parts of one network and dataset; a part is a range of images at
some of the strengths of a key.
"""

import platform
import socket
import time
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import version

from robust201.core.input_facts import InputFacts
from robust201.core.records import Bundle, EvaluationResult, ImageSet, Part, Receipt, Unit, UnitFailure
from robust201.images.corrupted import CorruptedStore
from robust201.models.device import configure_torch, describe_device
from robust201.run.networks import LoadedNetwork, NetworkLoader
from robust201.runtime.heartbeat import Heartbeat
from robust201.runtime.part_worker import PartWorker
from robust201.shards import ShardStore
from robust201.sweep.config import SweepConfig
from robust201.sweep.inputs import Inputs, make_worker_space, make_worker_tasks
from robust201.sweep.weights import WeightsSource
from robust201.tasks.attack_kit.context import Context
from robust201.tasks.evaluate import ResidentImages, copy_to_device, evaluate_part

COMMIT_SECONDS = 300.0
"""Minimum time between two commits of a part's results; the last results are committed when the part is complete."""


class Worker(PartWorker):
    """Evaluates the parts of bundles, and writes their results to shards."""

    def __init__(self, config: SweepConfig, facts: InputFacts) -> None:
        super().__init__(config)
        self._config = config
        self._facts = facts
        self._inputs = Inputs(config, keys=())  # published corrupted images are opened when a unit needs them
        self._tasks = make_worker_tasks(config, facts.code)
        self._store = ShardStore.open(config.results)
        self._corrupted: dict[str, CorruptedStore] = {}
        self._resident_images: dict[str, ResidentImages] = {}
        space = make_worker_space(config, facts.code)
        self._networks = NetworkLoader(config, space, WeightsSource(config, space), self.device)
        self._micro_batch = config.execution.micro_batch
        configure_torch(config.execution.threads, config.precision)

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        # Torch's settings apply to the whole process: another worker in it may have set another precision.
        configure_torch(self._config.execution.threads, self._config.precision)
        yield from super().run(bundle)

    def _compute_with_retries(self, part: Part, heartbeat: Heartbeat) -> Iterator[Receipt | UnitFailure]:
        # Smaller micro-batches for one part must not change the last bits of the next part's results.
        self._micro_batch = self._config.execution.micro_batch
        yield from super()._compute_with_retries(part, heartbeat)

    def use_less_memory(self) -> bool:
        """Halve the micro-batch; return False if it already has the minimum size."""
        network = self._networks.loaded
        micro_batch = None if network is None else network.halve()
        if micro_batch is None:
            return False
        self._micro_batch = micro_batch
        self._log.write("micro_batch_halved", f"now {self._micro_batch} images at once", level="warning")
        return True

    def compute(self, part: Part, heartbeat: Heartbeat) -> Iterator[Receipt]:
        del heartbeat
        unit = part.unit
        images = self._image_set(unit)
        network = self._load_network(unit, images)
        context = self._make_context(unit, network)
        results = evaluate_part(
            context,
            self._tasks[unit.key],
            self._config.parameters[unit.key],
            part,
            images,
            self._config.measurements,
            provenance=self._provenance | {"micro_batch": network.batch_sizes.describe()},
            resident_images=self._images_on_device(unit),
        )
        uncommitted: list[EvaluationResult] = []
        last_commit = time.monotonic()
        for result in results:
            uncommitted.append(result)
            if time.monotonic() - last_commit >= COMMIT_SECONDS:
                yield self._store.commit(uncommitted)
                uncommitted, last_commit = [], time.monotonic()
        if uncommitted:
            yield self._store.commit(uncommitted)

    def _load_network(self, unit: Unit, images: ImageSet) -> LoadedNetwork:
        network = self._networks.load(unit, images)
        # Limit batches before the check, so that the micro-batch is also halved if the check runs out of memory.
        network.limit(self._micro_batch)
        network.check(images, precision=self._config.precision, name=unit.network_label)
        return network

    def _make_context(self, unit: Unit, network: LoadedNetwork) -> Context:
        return Context(
            classifier=network.classifier,
            model=network.model,
            seed=self._config.seed,
            batch_size=self._config.batch_size,
            corrupted_images=self._corrupted_store(unit),
            engine=self._config.engine,
        )

    @cached_property
    def _provenance(self) -> dict[str, str]:
        packages = ("robust201", "torch", "numpy", "foolbox", "pyautoattack")
        return {name: version(name) for name in packages} | {
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "device": f"{self.device.type} {describe_device(self.device)}",
        }

    def _image_set(self, unit: Unit) -> ImageSet:
        own_selection = self._config.parameters[unit.key].own_images  # used instead of the sweep's images
        return self._inputs.read_copied_images(
            unit.dataset, self._facts.datasets[unit.dataset].images(own_selection).sha256, own_selection
        )

    def _images_on_device(self, unit: Unit) -> ResidentImages:
        images = self._image_set(unit)
        if images.sha256 not in self._resident_images:
            self._resident_images[images.sha256] = copy_to_device(images, self.device)
        return self._resident_images[images.sha256]

    def _corrupted_store(self, unit: Unit) -> CorruptedStore | None:
        if self._tasks[unit.key].kind != "corruption":
            return None
        if unit.dataset not in self._corrupted:
            self._image_set(unit)  # opens the copied clean images, which `open_corruptions` requires
            self._corrupted[unit.dataset] = self._inputs.open_corruptions(unit.dataset)
        store = self._corrupted[unit.dataset]
        store.verify(unit.key, expected=self._facts.datasets[unit.dataset].corruptions[unit.key])
        return store
