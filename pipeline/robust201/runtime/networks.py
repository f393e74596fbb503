"""Loads a worker's networks with their weights, compiles them if possible, checks them and limits their batches."""

import torch

from robust201.core.records import ImageSet, Unit
from robust201.models.buckets import BucketedModel
from robust201.models.capacity import Capacity, choose_capacity
from robust201.models.classifier import Classifier
from robust201.models.device import GraphCapture, device_memory, is_gpu
from robust201.models.model import CompiledNetwork
from robust201.models.network_check import COMPARISON_BATCH, CheckedImages, check_compiled, check_network
from robust201.planning.config import SweepConfig
from robust201.planning.weights import WRONG_WEIGHTS_ADVICE, WeightsSource
from robust201.spaces.base import Space
from robust201.tasks.attack_kit.batching import MAX_IMAGES_PER_SAMPLE
from robust201.weights.loading import fill_network


class LoadedNetwork:
    """A unit's network and, if there is one, the compiled network that `engine: fused` uses instead."""

    def __init__(self, classifier: Classifier, compiled: CompiledNetwork | BucketedModel | None) -> None:
        self.classifier = classifier
        self.model = compiled
        # The limit of a compiled network that does not use buckets; `limit` can only lower it.
        self._chunk = None if compiled is None or isinstance(compiled, BucketedModel) else compiled.chunk
        self._is_checked = False

    @property
    def capacity(self) -> Capacity | None:
        """Maximum batch sizes that fit into the device's memory; None if they are unknown."""
        return self.model.capacity if isinstance(self.model, BucketedModel) else None

    @property
    def last_batch_size(self) -> int:
        """Batch size of the last call; 0 if there was no call since `limit`."""
        return self.classifier.last_batch_size if self.model is None else self.model.last_batch_size

    @property
    def min_batch_size(self) -> int:
        """Minimum to which the batch size may be reduced if memory runs out."""
        return 1 if self.model is None else COMPARISON_BATCH

    def limit(self, micro_batch: int | None) -> None:
        """Limit the batch size; None removes this limit, but not the compiled network's own limit."""
        self.classifier.micro_batch = micro_batch
        if isinstance(self.model, BucketedModel):
            self.model.limit(micro_batch)
        elif self.model is not None and self._chunk is not None:
            self.model.chunk = min(self._chunk, micro_batch or self._chunk)
        for model in (self.classifier, self.model):
            if model is not None:
                model.last_batch_size = 0

    def check(self, images: ImageSet, *, precision: str, name: str) -> None:
        """Check the network's outputs, at the first call only (see `check_compiled`); `limit` must be called first."""
        if self._is_checked:
            return
        checked_images = CheckedImages.of(images, self.classifier.device)
        if self.model is None:
            check_network(self.classifier, checked_images, name=name, n_classes=images.n_classes)
        else:
            check_compiled(self.classifier, self.model, checked_images.pixels, precision=precision, name=name)
        self._is_checked = True

    def release(self) -> None:
        if isinstance(self.model, BucketedModel):
            self.model.release()


class NetworkLoader:
    """Loads the networks of units, and caches the last network."""

    def __init__(self, config: SweepConfig, space: Space, weights: WeightsSource, device: torch.device) -> None:
        self._config = config
        self._space = space
        self._weights = weights
        self._device = device
        self._memory = device_memory(device)
        self._cached: tuple[tuple[str, int | str, str], LoadedNetwork] | None = None

    @property
    def loaded(self) -> LoadedNetwork | None:
        return None if self._cached is None else self._cached[1]

    def load(self, unit: Unit, images: ImageSet) -> LoadedNetwork:
        """Load a unit's network for the images of its dataset."""
        network_id = (unit.dataset, unit.architecture, unit.checkpoint_sha256)
        if self._cached is None or self._cached[0] != network_id:
            if self._cached is not None:
                self._cached[1].release()
            self._cached = None
            self._cached = network_id, self._load(unit, images)
        return self._cached[1]

    def _load(self, unit: Unit, images: ImageSet) -> LoadedNetwork:
        network = self._build(unit, images.n_classes)
        precision = self._config.precision
        classifier = Classifier(
            network,
            images.normalisation,
            images.n_classes,
            device=self._device,
            precision=precision,
            channels_last=self._space.channels_last,
        )
        if self._config.engine != "fused":
            return LoadedNetwork(classifier, None)
        compiled = self._space.compile(
            unit.architecture,
            network,
            images.normalisation,
            n_classes=images.n_classes,
            device=self._device,
            precision=precision,
        )
        if compiled is None or self._memory is None:
            return LoadedNetwork(classifier, compiled)
        return LoadedNetwork(classifier, self._restrict_batches(compiled, images.images.shape[-1]))

    def _build(self, unit: Unit, n_classes: int) -> torch.nn.Module:
        seed = self._weights.random_seed(unit)
        if seed is not None:
            with torch.random.fork_rng(devices=()):
                torch.manual_seed(seed)
                return self._space.build(unit.architecture, n_classes=n_classes)
        state_dict = self._weights.load(unit)
        network = self._space.build(unit.architecture, n_classes=n_classes)
        fill_network(network, state_dict, unit.network_label, WRONG_WEIGHTS_ADVICE)
        return network

    def _restrict_batches(self, compiled: CompiledNetwork, image_size: int) -> BucketedModel:
        """Wrap a network on a GPU so that it uses only a few batch sizes, which depend on the GPU's memory."""
        assert self._memory is not None  # noqa: S101 - checked by the caller
        free_bytes, total_bytes = self._memory
        execution = self._config.execution
        capacity = choose_capacity(
            free_bytes=free_bytes,
            total_bytes=total_bytes,
            share=min(1.0, execution.gpus_per_worker),
            sample_bytes=Capacity(
                logits=compiled.sample_bytes(image_size, gradient=False),
                gradients=compiled.sample_bytes(image_size, gradient=True),
            ),
            image_size=image_size,
            images_per_sample=MAX_IMAGES_PER_SAMPLE,
        )
        uses_graphs = execution.cuda_graphs and is_gpu(self._device) and not compiled.is_constant
        prepare = GraphCapture(self._device) if uses_graphs else None
        return BucketedModel(compiled, capacity, device=self._device, prepare=prepare)
