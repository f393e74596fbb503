"""Training by the published recipe, at any scale: for the demo, and where no published weights exist.

The recipe is that of NAS-Bench-201 (Dong and Yang, ICLR 2020, table 1): SGD with Nesterov momentum .9, a learning rate
of .1 that falls to 0 along a cosine, step by step, weight decay 5e-4 on every parameter, batches of 256, random
horizontal flips and crops out of zero-padded images (4 pixels; 2 for ImageNet16-120), 200 epochs.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from robust201.core.errors import CheckpointError
from robust201.core.fields import MAX_COUNT, Cells, Channels, Fields, PositiveInt
from robust201.core.host import MAX_THREADS
from robust201.core.records import ArchitectureId, ImageSet, canonical_json
from robust201.spaces import DEFAULT_SPACE, SPACES
from robust201.spaces.base import Space
from robust201.training.data import OneSource
from robust201.training.loop import Snapshot, measure_accuracy, train
from robust201.training.recipes import TRAINING_VERSION, Augmentation, CosineSchedule, Recipe, Schedule
from robust201.training.state import EpochRecord
from robust201.weights.store import CheckpointRecord, CheckpointStore

_SPACE = SPACES[DEFAULT_SPACE]
"""The space of the published recipe."""

_NAME_DIGITS = 8


class TrainingSettings(Fields):
    """Everything that decides the weights apart from the images; the defaults are those of the published networks.

    Stores name trainings by a hash of these fields (see `recipe_name`), so the fields must not change.

    Attributes:
        channels: C, the width of the first stage.
        cells: N, the number of cells in each of the three stages.
        epochs: passes over the training images.
        batch_size: images per step; the last batch of an epoch may be smaller.
        learning_rate: of the first step.
        momentum: of SGD with Nesterov momentum; 0 is plain SGD.
        weight_decay: L2 penalty on every parameter.
        flip: mirror images left to right with probability 1/2; not for digits.
        crop_padding: zero pixels added to each side before a crop of the original size; 0 for no crops.
        seed: of the initial weights and of all draws.
        threads: CPU threads; part of the settings because the last bits depend on them.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    """

    channels: Channels = 16
    cells: Cells = 5
    epochs: PositiveInt = 200
    batch_size: Annotated[int, Field(ge=2, le=MAX_COUNT)] = 256
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5e-4
    flip: bool = True
    crop_padding: Annotated[int, Field(ge=0)] = 4
    seed: Annotated[int, Field(ge=0)] = 777
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] = 1
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"

    def recipe(self) -> Recipe:
        """Give the recipe for the training loop."""
        return Recipe(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            nesterov=self.momentum > 0,
            weight_decay=self.weight_decay,
            schedule=Schedule(cosine=CosineSchedule()),
            augmentation=Augmentation(flip=self.flip, crop_padding=self.crop_padding),
        )


def train_network(
    space: Space,
    index: ArchitectureId,
    images: ImageSet,
    settings: TrainingSettings,
    on_epoch: Callable[[EpochRecord], None] = lambda _record: None,
) -> Snapshot:
    """Train one network of a sized space from scratch to the recipe's end (see `loop.train`)."""
    (snapshot,) = train(
        space,
        index,
        OneSource(images),
        settings.recipe(),
        seed=settings.seed,
        device=settings.device,
        threads=settings.threads,
        on_epoch=on_epoch,
    )
    return snapshot


def _tell(progress: Callable[[int, int, float, float], None], index: int, record: EpochRecord) -> None:
    progress(index, record.epoch, record.loss, record.accuracy)


def train_into_store(
    indices: Sequence[int],
    train_images: ImageSet,
    test_images: ImageSet | None,
    settings: TrainingSettings,
    store: CheckpointStore,
    *,
    progress: Callable[[int, int, float, float], None] = lambda *_event: None,
) -> Iterator[CheckpointRecord]:
    """Train networks one after the other and store their weights; networks in the store are not trained again.

    Each record has the recipe and the accuracies in `training`; each network is stored before the next one starts.
    Recipes are named by their settings (see `recipe_name`), so that none replaces another one or published weights,
    which have no recipe name.

    `progress` receives index, epoch (from 1), mean loss and accuracy on the training images after each epoch.

    Raises:
        ArchitectureError: an index is out of range; nothing is trained.
        ConfigError: there is no such device here.
        EvaluationError: a loss is no longer finite; the networks before it are kept.
        StorageFullError: no space is left on the device.
    """
    space = _SPACE.sized(channels=settings.channels, cells=settings.cells)
    specs = [str(space.spec(index)) for index in indices]
    for index, spec in zip(indices, specs, strict=True):
        recipe = _recipe(spec, train_images, settings)
        recipe_sha256 = hashlib.sha256(canonical_json(recipe).encode()).hexdigest()
        there = _find_trained(store, index, train_images.dataset, recipe_sha256)
        if there is not None and _is_whole(store, there):
            yield there
            continue
        trained = train_network(space, index, train_images, settings, partial(_tell, progress, index))
        outcome = {
            "train_accuracy": trained.history[-1].accuracy,
            "train_loss": trained.history[-1].loss,
            "test_accuracy": None
            if test_images is None
            else measure_accuracy(
                space, index, trained.state_dict, test_images, device=settings.device, threads=settings.threads
            ),
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
            # Stores of earlier versions have trainings without a name, which are restored without one.
            recipe=recipe_name(train_images, settings) if there is None else there.recipe,
        )


def recipe_name(images: ImageSet, settings: TrainingSettings) -> str:
    """Name a recipe in a store, such as ``trained-3f9a2c1b``, by all that decides weights but network, epochs, seed.

    Stores record these three separately.
    """
    payload = {
        "version": TRAINING_VERSION,
        "train_images": images.sha256,
        "settings": settings.model_dump(mode="json", exclude={"epochs", "seed"}),
    }
    # The prefix keeps YAML from reading digits such as 12345678 or 1e234567 as a number.
    return f"trained-{hashlib.sha256(canonical_json(payload).encode()).hexdigest()[:_NAME_DIGITS]}"


def _recipe(spec: str, images: ImageSet, settings: TrainingSettings) -> dict[str, Any]:
    return {
        "version": TRAINING_VERSION,
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
    """Whether a record's weights can be read; otherwise they are trained again."""
    try:
        store.load(record)
    except CheckpointError:
        return False
    return True
