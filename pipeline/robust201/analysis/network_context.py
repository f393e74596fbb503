"""The network, images and options of `robust201.evaluate` and `attack`, checked and ready for attacks."""

import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from robust201.analysis.evaluation_progress import ProgressOption
from robust201.attacks.context import Context, CorruptedImageSource
from robust201.core.errors import ConfigError, DatasetError, warn_caller
from robust201.core.records import ImageSet, Normalisation
from robust201.images.checks import check_labels
from robust201.networks.classifier import Classifier
from robust201.networks.model import CompiledNetwork
from robust201.networks.network_check import CheckedImages, check_compiled
from robust201.networks.user_module import as_classifier
from robust201.tasks import Task
from robust201.tasks.parameters import Parameters

_MIN_IMAGES_TO_COMPARE_CLASSES = 50
"""Minimum number of images for a warning that labels use few of a model's classes.

If labels were drawn uniformly from the classes, all 50 would be in the lower half with a probability of 10^-15.
"""


@dataclass(frozen=True)
class Options:
    """Arguments of `robust201.evaluate` and `attack` that follow the images and keys.

    Attributes:
        name: name of the network in messages; if empty, the name of the network's class.
        shown_cautions: warnings about parameters that have already been shown, perhaps for another network.
    """

    save: str | Path | None = None
    count: int | None = None
    normalisation: Normalisation | tuple[Sequence[float], Sequence[float]] | None = None
    n_classes: int | None = None
    seed: int = 0
    engine: str = "fused"
    device: torch.device | str | None = None
    batch_size: int = 250
    progress: ProgressOption = True
    name: str = ""
    shown_cautions: set[str] = field(default_factory=set)

    def name_of(self, network: nn.Module) -> str:
        """Return a network's name in messages."""
        return self.name or type(network).__name__

    def check(self, images: ImageSet, task: Task, parameters: Parameters) -> None:
        """Check that a key can be evaluated on images, and warn about doubtful parameters once."""
        _check_shape(images, task, parameters)
        shape, ball = images.images.shape[1:], task.constraint
        if ball is not None and (reason := ball.excessive_strength_reason(parameters.strengths, shape)):
            raise ConfigError(f"Attacking images failed for {task.key}: {reason}")
        for caution in parameters.cautions:
            message = f"{task.key}.{caution.field}: {caution.problem}. {caution.remedy}"
            if message not in self.shown_cautions:
                warn_caller(message)
            self.shown_cautions.add(message)

    @contextmanager
    def open_context(self, model: nn.Module, images: ImageSet, key: str = "") -> Iterator[Context]:
        """Check a model and labels, and yield the context of an evaluation."""
        if self.batch_size < 1:
            raise ConfigError(f"Reading arguments failed for `batch_size`: expected 1 or more, got {self.batch_size}.")
        prepared = as_classifier(
            model,
            images,
            normalisation=as_normalisation(self.normalisation),
            n_classes=self.n_classes,
            device=self.device,
            batch_size=self.batch_size,
            name=self.name_of(model),
        )
        with prepared as classifier:
            _check_class_folders(images, classifier)
            check_labels(f"a model of {classifier.n_classes} classes", images.labels, classifier.n_classes)
            _warn_about_unused_classes(images.labels, classifier.n_classes)
            compiled = self._compile(classifier, images) if self.engine == "fused" else None
            yield Context(
                classifier,
                self.seed,
                self.batch_size,
                corrupted_images=_generate_corruptions(images, self.seed),
                key=key,
                engine=self.engine,
                model=compiled,
            )

    def shared_protocol(self, images: ImageSet, classifier: Classifier) -> dict[str, Any]:
        """Return the settings that affect the results of every key, without the model, images and parameters."""
        is_reference = self.engine == "reference"
        shared: dict[str, Any] = {
            "seed": self.seed,
            "engine": self.engine,
            "batch_size": self.batch_size if is_reference else None,
            "device": classifier.device.type,
        }
        if images.images.dtype != np.uint8:
            shared["pixels"] = "floats, not multiples of 1/255"
        if classifier.dtype is not torch.float32:
            shared["precision"] = str(classifier.dtype).removeprefix("torch.")
        return shared

    def _compile(self, classifier: Classifier, images: ImageSet) -> CompiledNetwork | None:
        compiled = None if classifier.compiler is None else classifier.compiler(classifier.network, classifier.device)
        if compiled is not None:
            compiled.batch_sizes.limit = self.batch_size
            pixels = CheckedImages.of(images, classifier.device).pixels
            check_compiled(classifier, compiled, pixels, precision="fp32", name=self.name_of(classifier.network))
        return compiled


def _check_class_folders(images: ImageSet, classifier: Classifier) -> None:
    """Check that there are as many class folders as classes of the network, if labels come from class folders."""
    n_folders = len(images.class_names)
    if n_folders not in {0, classifier.n_classes}:
        raise DatasetError(
            f"Reading labels failed for the images of {n_folders:,} class folders: the network has "
            f"{classifier.n_classes:,} classes, so labels cannot be derived from the order of the folders. Write the "
            "label of each class folder into a file labels.json in their parent folder, such as "
            f'{{"{images.class_names[0]}": 0, …}}.'
        )


def _warn_about_unused_classes(labels: NDArray[np.int64], n_classes: int) -> None:
    """Warn if no label is in the upper half of the model's classes, as on CIFAR-10 with an ImageNet model."""
    labels_bound = int(labels.max(initial=-1)) + 1
    if len(labels) >= _MIN_IMAGES_TO_COMPARE_CLASSES and labels_bound <= n_classes // 2:
        warn_caller(
            f"The model has {n_classes:,} classes, but all {len(labels):,} labels are below {labels_bound:,}. If the "
            "model was trained on other classes, its accuracy means nothing. If the images are sorted by class, select "
            "them at random."
        )


def _generate_corruptions(images: ImageSet, seed: int) -> CorruptedImageSource:
    """Return a source of generated corrupted images."""

    def corrupt_rows(key: str, severity: int, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        from robust201.corruptions.frost_textures import synthetic_frost
        from robust201.corruptions.generator import corrupt

        positions = np.searchsorted(images.indices, rows)
        clean = np.ascontiguousarray(images.images[positions].transpose(0, 2, 3, 1))
        corrupted_pixels = corrupt(clean, key, severity, seed=seed, indices=rows, frost=synthetic_frost(seed))
        return corrupted_pixels.transpose(0, 3, 1, 2)

    return corrupt_rows


def uncorruptible_reason(images: ImageSet) -> str | None:
    """Return the reason why images cannot be corrupted; None if they can."""
    from robust201.corruptions import MIN_IMAGE_SIZE

    channels, height, width = images.images.shape[1:]
    if height != width or height < MIN_IMAGE_SIZE:
        return f"expected square images of {MIN_IMAGE_SIZE} pixels or more, got {height}x{width}."
    if channels != 3:
        return "expected RGB images, got images with one channel."
    if images.images.dtype != np.uint8:
        return "expected 8-bit pixels, or floats such as (images * 255).round() / 255, got other floats."
    return None


def _check_shape(images: ImageSet, task: Task, parameters: Parameters) -> None:
    if task.kind == "corruption":
        activity, reason = "Corrupting", uncorruptible_reason(images)
    else:
        activity, reason = "Attacking", parameters.unsupported_shape_reason(*images.images.shape[2:])
    if reason is not None:
        raise DatasetError(f"{activity} images failed for {task.key!r}: {reason} Change the images, or omit the key.")


def normalisation_of(classifier: Classifier) -> Normalisation:
    """Return a classifier's normalisation of images."""
    means, stds = classifier.mean.flatten().tolist(), classifier.std.flatten().tolist()
    return Normalisation(tuple(means), tuple(stds))


def as_normalisation(value: Normalisation | tuple[Sequence[float], Sequence[float]] | None) -> Normalisation | None:
    """Convert (mean, std), each with one number per channel, to a `Normalisation`."""
    if value is None:
        return None
    pair = (value.mean, value.std) if isinstance(value, Normalisation) else value
    try:
        mean, std = (tuple(map(float, numbers)) for numbers in pair)
        is_valid = len(mean) == len(std) and len(mean) in {1, 3}
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"Reading arguments failed for `normalisation`: expected (mean, std), each with three numbers, or one for "
            f"grey images, got {reprlib.repr(value)}. Pass means and standard deviations of pixels in [0, 1]."
        )
    normalisation = Normalisation(mean, std)
    if problem := normalisation.problem:
        raise ConfigError(f"Reading arguments failed for `normalisation`: {problem}")
    return normalisation
