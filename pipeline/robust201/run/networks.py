"""Loading of a worker's networks with their weights, their compilation, checks of them, and limits of their batches."""

import math

import torch

from robust201.attacks.batching import MAX_IMAGES_PER_SAMPLE
from robust201.core.records import ImageSet, Unit
from robust201.networks.batch_sizes import BatchSizes, halve_all
from robust201.networks.classifier import Classifier
from robust201.networks.device import GraphCapture, device_memory, is_gpu
from robust201.networks.gpu_memory import fit_memory
from robust201.networks.graphed_model import GraphedModel
from robust201.networks.model import CompiledNetwork
from robust201.networks.network_check import CheckedImages, check_again, check_compiled, check_network
from robust201.networks.space import Space
from robust201.sweep.config import SweepConfig
from robust201.sweep.weights import WRONG_WEIGHTS_ADVICE, WeightsSource
from robust201.weights.loading import fill_network


class LoadedNetwork:
    """A unit's network and, if there is one, the compiled network that `engine: fused` uses instead."""

    def __init__(self, classifier: Classifier, compiled: CompiledNetwork | GraphedModel | None) -> None:
        self.classifier = classifier
        self.model = compiled
        self._is_checked = False

    @property
    def batch_sizes(self) -> BatchSizes:
        """Batch sizes of the network that is attacked."""
        return self.classifier.batch_sizes if self.model is None else self.model.batch_sizes

    def limit(self, micro_batch: int | None) -> None:
        """Limit the batch size; None removes this limit, but not the network's own maximum."""
        self.classifier.batch_sizes.limit = self.batch_sizes.limit = micro_batch
        self.release()  # prepared passes of larger sizes would keep the memory that the limit is meant to free

    def halve(self) -> int | None:
        """Halve the batch size after memory ran out; return the new size, or None if it is already the minimum."""
        limit = halve_all(self.classifier.batch_sizes, self.batch_sizes)
        if limit is not None:
            self.limit(limit)
        return limit

    def check(self, images: ImageSet, *, precision: str, name: str) -> None:
        """Check the network's outputs, at the first call only (see `networks.network_check`); first call `limit`."""
        if self._is_checked:
            return
        checked_images = CheckedImages.of(images, self.classifier.device)
        if self.model is None:
            check_network(self.classifier, checked_images, name=name, n_classes=images.n_classes)
        else:
            check_compiled(self.classifier, self.model, checked_images.pixels, precision=precision, name=name)
        self._is_checked = True

    def check_again(self, name: str) -> None:
        """Check that the outputs of a network without a compiled form have not changed since `check`."""
        check_again(self.classifier, name=name)

    def release(self) -> None:
        """Free the memory of prepared passes."""
        if isinstance(self.model, GraphedModel):
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
        compiled: CompiledNetwork | None = None
        if self._config.engine == "fused":  # before the weights move to the device; folding would copy them back
            compiled = self._space.compile(
                unit.architecture,
                network,
                images.normalisation,
                device=self._device,
                precision=precision,
            )
        classifier = Classifier(
            network,
            images.normalisation,
            images.n_classes,
            device=self._device,
            precision=precision,
            channels_last=self._space.channels_last,
        )
        if self._memory is not None:
            shape = images.images.shape[1:]
            fit_memory(
                classifier if compiled is None else compiled,
                shape,
                self._device,
                self._memory,
                share=min(1.0, self._config.execution.gpus_per_worker),
                attack_bytes=MAX_IMAGES_PER_SAMPLE * math.prod(shape) * torch.float32.itemsize,
            )
        uses_graphs = self._config.execution.cuda_graphs and is_gpu(self._device)
        if compiled is None or compiled.is_constant or not uses_graphs:
            return LoadedNetwork(classifier, compiled)
        return LoadedNetwork(classifier, GraphedModel(compiled, GraphCapture(self._device)))

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
