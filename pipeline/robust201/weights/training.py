"""Train networks as the published ones were trained, in small: for the demo and wherever no published weights exist.

The recipe is that of NAS-Bench-201 (Dong and Yang, ICLR 2020, table 1): SGD with Nesterov momentum .9, a learning rate
of .1 that falls to 0 along a cosine, step by step, weight decay 5e-4 on every parameter, batches of 256, random
horizontal flips and crops out of zero-padded images (4 pixels; 2 for ImageNet16-120), 200 epochs.

Every draw is keyed by (seed, epoch, purpose), so on a CPU equal settings give equal weights to the byte, whatever else
the process does. The threads belong to the settings because the order of float additions depends on them.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from robust201.core.errors import CheckpointError, ConfigError, EvaluationError
from robust201.core.noise import derived_seed, generator
from robust201.core.records import ImageSet, Normalisation, canonical_json
from robust201.spaces import DEFAULT_SPACE, SPACES
from robust201.weights.store import CheckpointRecord, CheckpointStore

RECIPE_VERSION = 1
"""Raised only when equal settings give other weights."""

_SPACE = SPACES[DEFAULT_SPACE]
"""The space that the recipe is of."""

_NAME_DIGITS = 8

_EVALUATION_BATCH = 256


class TrainingSettings(BaseModel):
    """Everything that decides the weights, images aside; the defaults are the published networks'.

    Attributes:
        channels: C, the width of the first stage.
        cells: N, the number of cells in each of the three stages.
        epochs: passes over the training images.
        batch_size: images a step; the last batch of an epoch may be smaller.
        learning_rate: of the first step.
        momentum: of SGD with Nesterov's look-ahead; 0 is plain SGD.
        weight_decay: L2 penalty on every parameter.
        flip: mirror each image left to right in half of the epochs; not for digits.
        crop_padding: zero pixels added to each side before a crop of the original size; 0 for no crops.
        seed: of the initial weights and of all draws.
        threads: CPU threads; part of the settings because the last bits depend on them.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    channels: Annotated[int, Field(ge=1)] = 16
    cells: Annotated[int, Field(ge=1)] = 5
    epochs: Annotated[int, Field(ge=1)] = 200
    batch_size: Annotated[int, Field(ge=2)] = 256
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5e-4
    flip: bool = True
    crop_padding: Annotated[int, Field(ge=0)] = 4
    seed: Annotated[int, Field(ge=0)] = 777
    threads: Annotated[int, Field(ge=1)] = 1
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What one epoch did.

    Attributes:
        epoch: from 1.
        learning_rate: of its first step.
        loss: mean cross-entropy of the training images as they were shown (augmented, in training mode).
        accuracy: fraction of those images that were classified correctly.
    """

    epoch: int
    learning_rate: float
    loss: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A trained network.

    Attributes:
        state_dict: CPU tensors under the published names.
        history: one record an epoch.
        test_accuracy: fraction of the test images classified correctly after the last epoch; None without test images.
    """

    state_dict: Mapping[str, torch.Tensor]
    history: tuple[EpochRecord, ...]
    test_accuracy: float | None


def train(
    spec: str,
    train_images: ImageSet,
    test_images: ImageSet | None,
    settings: TrainingSettings,
    progress: Callable[[int, float, float], None] | None = None,
) -> TrainedNetwork:
    """Train one network from scratch; on a CPU the weights' bytes depend on the arguments alone, less `test_images`.

    `progress` receives epoch (from 1), mean loss and accuracy on the training images after each epoch.

    Raises:
        ArchitectureError: the string is no cell.
        ConfigError: there is no such device here.
        EvaluationError: the loss is no longer finite.
    """
    with _deterministic(settings):
        network = _initialise(spec, train_images.n_classes, settings)
        history = []
        for record in _epochs(network, train_images, settings):
            if not np.isfinite(record.loss):
                raise EvaluationError(
                    f"Training failed for {spec} on {train_images.dataset}: expected a finite loss, got {record.loss} "
                    f"in epoch {record.epoch}. Lower the learning rate ({settings.learning_rate})."
                )
            history.append(record)
            if progress is not None:
                progress(record.epoch, record.loss, record.accuracy)
        test_accuracy = None if test_images is None else _measure_accuracy(network, test_images)
        state_dict = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
    return TrainedNetwork(state_dict, tuple(history), test_accuracy)


@contextmanager
def _deterministic(settings: TrainingSettings) -> Iterator[None]:
    """Set threads and deterministic algorithms, and leave the process as it was."""
    if settings.device != "cpu":
        if not torch.cuda.is_available():
            raise ConfigError(
                f"Training failed for device {settings.device!r}: expected a CUDA device, got a machine or a PyTorch "
                "without one. Use --device cpu."
            )
        # cuBLAS reads it when its first handle is made; without it deterministic matrix products are refused.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads, deterministic = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    benchmark = torch.backends.cudnn.benchmark
    torch.set_num_threads(settings.threads)
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)
        torch.backends.cudnn.benchmark = benchmark


def _initialise(spec: str, n_classes: int, settings: TrainingSettings) -> nn.Module:
    # The published networks start from PyTorch's own initialisation, which only knows the global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(settings.seed, "training", "initial weights"))
        space = _SPACE.sized(channels=settings.channels, cells=settings.cells)
        network = space.build(spec, n_classes=n_classes)
    return network.to(settings.device)


def _epochs(network: nn.Module, images: ImageSet, settings: TrainingSettings) -> Iterator[EpochRecord]:
    optimiser = torch.optim.SGD(
        network.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.momentum > 0,
    )
    n_batches = -(-len(images) // settings.batch_size)
    n_steps = settings.epochs * n_batches
    labels = torch.from_numpy(images.labels)
    network.train()
    for epoch in range(settings.epochs):
        loss_sum, n_correct = 0.0, 0
        pixels = _augment(images.images, settings, epoch)
        order = np.argsort(_draws(settings.seed, epoch, "order", len(images)), kind="stable")
        for batch, chosen in enumerate(
            np.array_split(order, range(settings.batch_size, len(order), settings.batch_size))
        ):
            step = epoch * n_batches + batch
            optimiser.param_groups[0]["lr"] = _learning_rate(settings, step / n_steps)
            target = labels[chosen].to(settings.device)
            logits = network(_normalise(pixels[chosen], images.normalisation, settings.device))[1]
            loss = nn.functional.cross_entropy(logits, target)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            loss_sum += loss.item() * len(chosen)
            n_correct += int((logits.argmax(dim=1) == target).sum())
        start = _learning_rate(settings, epoch / settings.epochs)
        yield EpochRecord(epoch + 1, start, loss_sum / len(images), n_correct / len(images))


def _learning_rate(settings: TrainingSettings, fraction_done: float) -> float:
    return settings.learning_rate * 0.5 * (1 + float(np.cos(np.pi * fraction_done)))


def _draws(seed: int, epoch: int, purpose: str, count: int) -> NDArray[np.uint64]:
    # Raw draws: NumPy promises the stream of a bit generator, not that of a distribution.
    draws: NDArray[np.uint64] = generator(seed, "training", epoch, purpose).bit_generator.random_raw(count)
    return draws


def _augment(images: NDArray[np.uint8], settings: TrainingSettings, epoch: int) -> NDArray[np.uint8]:
    """Mirror and crop the images of one epoch, (N, 3, H, W) uint8; beyond the image all pixels are 0."""
    count, padding = len(images), settings.crop_padding
    if settings.flip:
        mirrored = _draws(settings.seed, epoch, "flip", count) % 2 == 1
        images = np.where(mirrored[:, None, None, None], images[..., ::-1], images)
    if padding:
        padded = np.pad(images, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, images.shape[2:], axis=(2, 3))
        offsets = (_draws(settings.seed, epoch, "crop", 2 * count) % (2 * padding + 1)).astype(np.int64)
        images = windows[np.arange(count), :, offsets[:count], offsets[count:]]
    return images


def _normalise(images: NDArray[np.uint8], normalisation: Normalisation, device: str) -> torch.Tensor:
    pixels = torch.from_numpy(np.ascontiguousarray(images)).to(device).float() / 255
    mean, std = (
        torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (normalisation.mean, normalisation.std)
    )
    return (pixels - mean) / std


def _measure_accuracy(network: nn.Module, images: ImageSet) -> float:
    network.eval()
    device = str(next(network.parameters()).device)
    n_correct = 0
    with torch.inference_mode():
        for start in range(0, len(images), _EVALUATION_BATCH):
            batch = slice(start, start + _EVALUATION_BATCH)
            logits = network(_normalise(images.images[batch], images.normalisation, device))[1]
            n_correct += int((logits.argmax(dim=1).cpu().numpy() == images.labels[batch]).sum())
    return n_correct / len(images)


def train_into_store(
    indices: Sequence[int],
    train_images: ImageSet,
    test_images: ImageSet | None,
    settings: TrainingSettings,
    store: CheckpointStore,
    *,
    progress: Callable[[int, int, float, float], None] | None = None,
) -> Iterator[CheckpointRecord]:
    """Train networks and keep their weights, one after the other; what the store already has is not trained again.

    Each record has the recipe and the accuracies in `training`; each network is stored before the next one begins.
    Recipes are named by their settings (see `recipe_name`), so that none takes the place of another or of published
    weights, which have none.
    `progress` receives index, epoch (from 1), mean loss and accuracy on the training images after each epoch.

    Raises:
        ArchitectureError: an index is out of range; nothing is trained.
        ConfigError: there is no such device here.
        EvaluationError: a loss is no longer finite; the networks before it are kept.
        StorageFullError: no space is left on the device.
    """
    specs = [str(_SPACE.spec(index)) for index in indices]
    for index, spec in zip(indices, specs, strict=True):
        recipe = _recipe(spec, train_images, settings)
        recipe_sha256 = hashlib.sha256(canonical_json(recipe).encode()).hexdigest()
        there = _find_trained(store, index, train_images.dataset, recipe_sha256)
        if there is not None and _is_whole(store, there):
            yield there
            continue
        tell = None if progress is None else partial(progress, index)
        trained = train(spec, train_images, test_images, settings, tell)
        outcome = {
            "train_accuracy": trained.history[-1].accuracy,
            "train_loss": trained.history[-1].loss,
            "test_accuracy": trained.test_accuracy,
            "torch": torch.__version__,
        }
        yield store.add(
            space=_SPACE.name,
            index=index,
            spec=spec,
            dataset=train_images.dataset,
            epochs=settings.epochs,
            seed=settings.seed,
            channels=settings.channels,
            cells=settings.cells,
            n_classes=train_images.n_classes,
            source="robust201 train",
            source_sha256=recipe_sha256,
            state_dict=trained.state_dict,
            training={"recipe": recipe, "outcome": outcome},
            # Stores of earlier versions have trainings without a name: what was lost there comes back under the same.
            recipe=recipe_name(train_images, settings) if there is None else there.recipe,
        )


def recipe_name(images: ImageSet, settings: TrainingSettings) -> str:
    """Name a training in a store, such as ``trained-3f9a2c1b``: by all that decides it but network, epochs and seed.

    Those three are named wherever it is.
    """
    payload = {
        "version": RECIPE_VERSION,
        "train_images": images.sha256,
        "settings": settings.model_dump(mode="json", exclude={"epochs", "seed"}),
    }
    # The word in front keeps YAML from reading digits such as 12345678 or 1e234567 as a number.
    return f"trained-{hashlib.sha256(canonical_json(payload).encode()).hexdigest()[:_NAME_DIGITS]}"


def _recipe(spec: str, images: ImageSet, settings: TrainingSettings) -> dict[str, Any]:
    return {
        "version": RECIPE_VERSION,
        "spec": spec,
        "train_images": images.sha256,
        "settings": settings.model_dump(mode="json"),
    }


def _find_trained(store: CheckpointStore, index: int, dataset: str, recipe_sha256: str) -> CheckpointRecord | None:
    if not store.manifest.exists():
        return None
    wanted = index, dataset, recipe_sha256
    return next(
        (record for record in store.records() if (record.index, record.dataset, record.source_sha256) == wanted), None
    )


def _is_whole(store: CheckpointStore, record: CheckpointRecord) -> bool:
    """Whether a record's weights can be read: a lost or damaged file is what training again makes good."""
    try:
        store.load(record)
    except CheckpointError:
        return False
    return True
