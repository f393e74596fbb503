"""One worker: loads weights and images once a bundle, evaluates its parts, writes shards, reports receipts."""

import platform
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import numpy as np
import torch
from torch import nn

from robust201.core.errors import CheckpointError, ConfigError, EvaluationError, StorageError, WorkerBrokenError
from robust201.core.precision import check_precision
from robust201.core.records import Bundle, EvaluationResult, ImageSet, Part, Receipt, Unit, UnitFailure
from robust201.engine.arithmetic import configure_torch
from robust201.engine.attack_job import IMAGES_HELD
from robust201.engine.buckets import Bucketed
from robust201.engine.capacity import choose_capacity
from robust201.engine.classifier import Classifier
from robust201.engine.context import Context, to_float
from robust201.engine.graphs import GraphCapture
from robust201.images.corrupted import CorruptedStore
from robust201.planning.config import (SweepConfig)
from robust201.planning.inputs import Inputs
from robust201.planning.facts import (DatasetFacts)
from robust201.runtime.heartbeat import Heartbeat
from robust201.runtime.metrics import Metrics
from robust201.runtime.work_log import WorkLog
from robust201.shards import ShardStore
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.spaces.nasbench201.compiled import CPU_CHUNK, MIN_BATCH, InferenceNetwork, compile_network
from robust201.spaces.nasbench201.network import build_network
from robust201.tasks import (PERTURBATIONS)
from robust201.tasks.evaluate import ResidentImages, evaluate, resident

COMMIT_SECONDS = 300.0
"""A worker writes what it has at least this often, between the strengths of a part."""


@dataclass(frozen=True)
class WorkerSettings:
    """Everything a worker needs to know; travels to other machines.

    Attributes:
        config: the sweep.
        datasets: hashes that the images and corruptions must have, by dataset.
    """

    config: SweepConfig
    datasets: Mapping[str, DatasetFacts]


_Fused = InferenceNetwork | Bucketed
"""What the fused engine attacks and measures: on a device with memory to plan by, it is shown fixed batch sizes."""


class Worker:
    """Computes bundles in this process.

    Args:
        settings: the sweep and the hashes of its inputs.
        metrics: where numbers for monitoring go.

    Attributes:
        device: where it computes.

    Raises:
        ConfigError: the sweep asks for a GPU, and there is none, or for a precision that the device does not have.
    """

    def __init__(self, settings: WorkerSettings, metrics: Metrics | None = None) -> None:
        self.device = choose_device(settings.config.execution.device, settings.config.precision)
        self._config = settings.config
        self._metrics = metrics or Metrics()
        self._log = WorkLog(settings.config.results)
        self._facts = settings.datasets
        self._inputs = Inputs(settings.config)
        self._store = ShardStore.open(settings.config.results)
        self._draining = threading.Event()
        self._corrupted: dict[str, CorruptedStore] = {}
        self._resident: dict[str, ResidentImages] = {}
        self._memory = _device_memory(self.device)
        self._is_checked = False
        self._loaded: tuple[tuple[str, int, str], Classifier, _Fused | None] | None = None
        self._micro_batch = settings.config.execution.micro_batch
        configure_torch(settings.config.execution.threads, settings.config.precision)

    def drain(self) -> None:
        """Stop after the part in progress; callable from another thread."""
        self._draining.set()

    def run(self, bundle: Bundle) -> Iterator[Receipt | UnitFailure]:
        """Evaluate a bundle part by part.

        Args:
            bundle: parts of one architecture and dataset.

        Yields:
            A receipt for each committed shard, a failure for each part that could not be evaluated.

        Raises:
            StorageError: results cannot be written; nothing else can be computed either.
            WorkerBrokenError: the device failed, and with it every later computation of this process.
        """
        # torch's switches are the process's: another worker in it may have set them for a precision of its own.
        configure_torch(self._config.execution.threads, self._config.precision)
        with Heartbeat(self._config.results) as heartbeat:
            for part in bundle.parts:
                if self._draining.is_set():
                    return
                heartbeat.begin(part)
                yield from self._run_part(part)

    def _run_part(self, part: Part) -> Iterator[Receipt | UnitFailure]:
        # A part that needed smaller micro-batches must not change the last bits of the next one.
        self._micro_batch = self._config.execution.micro_batch
        with self._log.about(part):
            self._log.write("part_started", strengths=part.strengths, images=f"{part.start}:{part.stop}")
            for outcome in self._attempt(part):
                self._log.write_outcome(outcome)
                yield outcome

    def _attempt(self, part: Part) -> Iterator[Receipt | UnitFailure]:
        remaining = list(part.strengths)
        attempt = 1
        while remaining:
            rest = Part(part.unit, tuple(remaining), part.start, part.stop)
            if attempt > 1 and self.device.type == "cuda":
                # Not where the error was caught: until that ends, it holds what the evaluation held.
                torch.cuda.empty_cache()
            try:
                for receipt in self._evaluate(rest):
                    remaining = [strength for strength in remaining if strength not in receipt.strengths]
                    yield receipt
            except StorageError as error:
                self._log.write("storage_failed", str(error), level="error")
                raise
            except Exception as error:
                if _is_out_of_memory(error) and self._shrink_micro_batch():
                    attempt += 1
                    unit = part.unit
                    self._metrics.record("robust201_micro_batch_halvings_total", dataset=unit.dataset, key=unit.key)
                    self._log.write("micro_batch_halved", f"now {self._micro_batch} images at once", level="warning")
                    continue
                if isinstance(error, torch.AcceleratorError):
                    self._log.write("device_failed", str(error), level="error", traceback=traceback.format_exc())
                    raise WorkerBrokenError(
                        f"Evaluating failed for {part.label}: expected a working {self.device.type} device, got "
                        f"{error}. Its process cannot go on; a new one computes the part again."
                    ) from error
                kind = "memory" if _is_out_of_memory(error) else "application"
                message = f"{type(error).__name__}: {error}"
                rest = Part(part.unit, tuple(remaining), part.start, part.stop)
                yield UnitFailure(rest, kind, message, traceback.format_exc(), attempt)
                return

    def _evaluate(self, part: Part) -> Iterator[Receipt]:
        unit = part.unit
        classifier, model = self._network(unit)
        capacity = model.capacity if isinstance(model, Bucketed) else None
        batch = self._micro_batch or "none" if capacity is None else f"{capacity.logits}/{capacity.gradients}"
        context = Context(
            classifier=classifier,
            model=model,
            model_batch=None if capacity is None else capacity.logits,
            seed=self._config.seed,
            batch_size=self._config.batch_size,
            corrupted=self._corrupted_images(unit),
            engine=self._config.engine,
        )
        results = evaluate(
            context,
            PERTURBATIONS[unit.key],
            self._config.parameters[unit.key],
            part,
            self._image_set(unit.dataset),
            self._config.measurements,
            provenance=self._provenance | {"micro_batch": str(batch)},
            on_device=self._images_on_device(unit.dataset),
        )
        pending: list[EvaluationResult] = []
        last_commit = time.monotonic()
        for result in results:
            pending.append(result)
            if time.monotonic() - last_commit >= COMMIT_SECONDS:
                yield self._store.commit(pending)
                pending, last_commit = [], time.monotonic()
        if pending:
            yield self._store.commit(pending)

    def _network(self, unit: Unit) -> tuple[Classifier, _Fused | None]:
        """The network of a unit, and the form of it that the fused engine attacks and measures."""
        wanted = (unit.dataset, unit.architecture, unit.checkpoint_sha256)
        if self._loaded is None or self._loaded[0] != wanted:
            if self._loaded is not None and isinstance(self._loaded[2], Bucketed):
                self._loaded[2].release()
            self._loaded = None
            network = self._load_network(unit)
            images = self._image_set(unit.dataset)
            classifier = Classifier(
                network, images.normalisation, images.n_classes, device=self.device, precision=self._config.precision
            )
            compiled = self._compile(unit, network, images) if self._config.engine == "fused" else None
            self._loaded = wanted, classifier, compiled
            self._is_checked = compiled is None
        _, classifier, model = self._loaded
        classifier.micro_batch = self._micro_batch
        if isinstance(model, Bucketed):
            model.limit(self._micro_batch)
        elif model is not None and model.chunk is not None:
            model.chunk = min(CPU_CHUNK, self._micro_batch or CPU_CHUNK)
        for shown in (classifier, model):
            if shown is not None:
                shown.shown = 0
        if not self._is_checked and model is not None:
            # After the batches were set, so that memory that runs out here is an occasion to show fewer, too.
            images = self._image_set(unit.dataset)
            check_compiled(classifier, model, images, precision=self._config.precision, name=unit.label)
            self._is_checked = True
        return classifier, model

    def _compile(self, unit: Unit, network: nn.Module, images: ImageSet) -> _Fused:
        compiled = compile_network(
            network,
            nasbench201.architecture(unit.architecture).spec,
            images.normalisation,
            n_classes=images.n_classes,
            device=self.device,
            precision=self._config.precision,
        )
        if self._memory is None:
            return compiled
        free_bytes, total_bytes = self._memory
        skeleton, execution = self._config.network, self._config.execution
        capacity = choose_capacity(
            free_bytes=free_bytes,
            total_bytes=total_bytes,
            share=min(1.0, execution.gpus_per_worker),
            skeleton=(skeleton.channels, skeleton.cells, images.images.shape[-1]),
            images_held=IMAGES_HELD,
        )
        graphs = execution.cuda_graphs and self.device.type == "cuda" and not compiled.is_constant
        return Bucketed(compiled, capacity, device=self.device, prepare=GraphCapture(self.device) if graphs else None)

    def _load_network(self, unit: Unit) -> nn.Module:
        record = self._inputs.checkpoint(unit.dataset, unit.architecture)
        if record.sha256 != unit.checkpoint_sha256:
            raise CheckpointError(
                f"Loading weights failed for {unit.label}: expected the checkpoint {unit.checkpoint_sha256[:16]} that "
                f"was planned, got {record.sha256[:16]}. Start the run again to plan with the new weights."
            )
        images = self._image_set(unit.dataset)
        network = build_network(
            nasbench201.architecture(unit.architecture).spec,
            channels=self._config.network.channels,
            cells=self._config.network.cells,
            n_classes=images.n_classes,
        )
        try:
            network.load_state_dict(self._inputs.checkpoints.load(record), strict=True)
        except RuntimeError as error:
            raise CheckpointError(
                f"Loading weights failed for {unit.label} from {record.file}: expected the tensors of this network, "
                f"got others ({' '.join(str(error).split())[:300]}). Import the right weights again."
            ) from error
        return network

    @cached_property
    def _provenance(self) -> dict[str, str]:
        packages = ("robust201", "torch", "numpy", "foolbox", "pyautoattack")
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine()
        return {name: version(name) for name in packages} | {
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "device": f"{self.device.type} {device}",
        }

    def _image_set(self, dataset: str) -> ImageSet:
        return self._inputs.kept_images(dataset, self._facts[dataset].images_sha256)

    def _images_on_device(self, dataset: str) -> ResidentImages:
        if dataset not in self._resident:
            self._resident[dataset] = resident(self._image_set(dataset), self.device)
        return self._resident[dataset]

    def _corrupted_images(self, unit: Unit) -> CorruptedStore | None:
        if PERTURBATIONS[unit.key].kind != "corruption":
            return None
        if unit.dataset not in self._corrupted:
            self._image_set(unit.dataset)  # opening compares with the clean images: those that were kept
            self._corrupted[unit.dataset] = self._inputs.open_corruptions(unit.dataset)
        store = self._corrupted[unit.dataset]
        store.verify(unit.key, expected=self._facts[unit.dataset].corruptions[unit.key])
        return store

    def _shrink_micro_batch(self) -> bool:
        """Halve what the network was shown at once when memory ran out; False when fewer images would not be fewer."""
        if self._loaded is None:
            return False
        _, classifier, model = self._loaded
        smallest = 1 if model is None else MIN_BATCH
        shown = classifier.shown if model is None else model.shown
        if shown <= smallest:
            return False
        self._micro_batch = shown // 2
        if isinstance(model, Bucketed):
            model.limit(self._micro_batch)  # now, so that the graphs' memory is free before the next attempt
        return True


def choose_device(choice: str, precision: str) -> torch.device:
    """Choose where this process computes.

    Args:
        choice: `execution.device`: auto, cpu or cuda.
        precision: the sweep's.

    Raises:
        ConfigError: a GPU is asked for and there is none, or the device does not have the precision.
    """
    available = torch.cuda.is_available()
    if choice == "cuda" and not available:
        raise ConfigError(
            "Starting a worker failed for execution.device cuda: expected a GPU that PyTorch can use, got none. "
            "Set it to auto or cpu, or install a CUDA build of PyTorch."
        )
    device = torch.device("cuda" if available and choice != "cpu" else "cpu")
    check_precision(precision, device)
    return device


_COMPARED_IMAGES = 64
_TOLERANCES = {"fp32": 1e-3, "tf32": 0.05, "bf16": 0.1}
"""How far the compiled network's logits may be from the published one's, relative to the largest (at least 1): far more
than rounding, far less than a mistake."""


def check_compiled(classifier: Classifier, model: _Fused, images: ImageSet, *, precision: str, name: str) -> None:
    """Compare a compiled network with the published one on a few images.

    oneDNN's fused ReLU turns NaN into zero, so a network that overflows would answer with finite, wrong logits.

    Args:
        classifier: the published network.
        model: the same, compiled.
        images: images of its dataset.
        precision: of both.
        name: the unit's label, for messages.

    Raises:
        EvaluationError: the published network's logits are not finite, or the compiled network's are others.
    """
    rows = np.linspace(0, len(images) - 1, min(len(images), _COMPARED_IMAGES)).astype(np.int64)
    pixels = to_float(torch.from_numpy(images.images[rows]).to(classifier.device))
    with torch.inference_mode():
        pieces = [(classifier(piece), model.logits(piece)) for piece in torch.split(pixels, MIN_BATCH)]
    expected, found = (torch.cat(column) for column in zip(*pieces, strict=True))
    not_finite = int((~expected.isfinite().all(dim=1)).sum())
    if not_finite:
        raise EvaluationError(
            f"Compiling failed for {name}: expected finite logits of the published network, got NaN or infinity for "
            f"{not_finite} of {len(rows)} images. Check this network's weights."
        )
    difference = float((found - expected).abs().max())
    if not difference <= _TOLERANCES[precision] * max(1.0, float(expected.abs().max())):
        raise EvaluationError(
            f"Compiling failed for {name}: expected the published network's logits within rounding, got a difference "
            f"of {difference:.3g}. Compute this network with engine: reference, and report it."
        )


def _device_memory(device: torch.device) -> tuple[int, int] | None:
    """Bytes of a GPU that are free for this process and bytes that it has; None for a CPU, whose batches are small."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device), total


_SIGNS_OF_NO_MEMORY = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
"""What torch's CPU allocator, the CUDA runtime, and cuBLAS and cuDNN say in plain RuntimeErrors."""


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Tell whether memory ran out, be it in an error that another one followed."""
    if error is None:
        return False
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS_OF_NO_MEMORY):
        return True
    return _is_out_of_memory(error.__context__)
