"""Generation of datasets of robust and non-robust features with a network (Ilyas et al., NeurIPS 2019).

Three methods, by the names of the authors' datasets:

- ``representation``: each image x is replaced by an image with the same representation. It starts from another, random
  training image and minimises the distance between the representations; the label is that of x. With an adversarially
  trained network this is D_R (`robust_CIFAR`), with a standard one its counterpart (`non_robust_CIFAR`). By default,
  1,000 steps of length 0.1 along the normalised gradient; pixels are clipped to [0, 1] after each step.
- ``random-target`` and ``next-target``: each image is attacked in an L2 ball towards a class t, either random
  (`drand`) or the class after its own (`ddet`), and labelled t whether the attack succeeds or not: D_NR. By default,
  100 steps of length 0.1 and epsilon 0.5.

The representation is the input of the network's last linear layer. docs/protocol.md gives the source of each choice.
Each batch of images is a file with its hash in the name, so an interrupted command resumes with the missing batches
(see `images.adversarial`).
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from robust201.core.errors import ConfigError, EvaluationError
from robust201.core.files import sole_writer
from robust201.core.noise import generator
from robust201.core.records import ImageSet, content_digest
from robust201.images.adversarial import AdversarialStore
from robust201.images.checks import LabelledImages
from robust201.images.image_folder import find_split, to_8_bits, write_split
from robust201.models.classifier import Classifier
from robust201.weights.store import hash_weights

Method: TypeAlias = Literal["representation", "random-target", "next-target"]

_VERSION = 1
"""Incremented when equal settings would give other images."""

_NORM_OFFSET = 1e-10
"""Added to norms in denominators."""

_BLOCK = 0.0
"""Strength of all blocks in the store: there is only one."""


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """Everything that determines the images except network and training images.

    Attributes:
        steps: number of gradient descent steps.
        step_size: length of a step, in the L2 norm of pixels in [0, 1].
        epsilon: radius of the L2 ball around each image; None for ``representation``, which has no ball.
        seed: seed of starts and targets, which are keyed by the image's row.
        batch_size: images per pass, which may affect the last bits of a network's outputs.
    """

    method: Method = "representation"
    steps: int = 1000
    step_size: float = 0.1
    epsilon: float | None = None
    seed: int = 0
    batch_size: int = 100

    @classmethod
    def of(
        cls,
        method: Method,
        *,
        steps: int | None = None,
        step_size: float | None = None,
        epsilon: float | None = None,
        seed: int = 0,
        batch_size: int = 100,
    ) -> "FeatureSettings":
        """Return settings with the defaults of a method (docs/protocol.md)."""
        has_ball = method != "representation"
        if epsilon is not None and not has_ball:
            raise ConfigError(
                f"Reading the settings failed for method {method}: expected no epsilon, since this method has no ball, "
                f"got {epsilon}. Leave epsilon out."
            )
        settings = cls(
            method,
            steps=(100 if has_ball else 1000) if steps is None else steps,
            step_size=0.1 if step_size is None else step_size,
            epsilon=(0.5 if epsilon is None else epsilon) if has_ball else None,
            seed=seed,
            batch_size=batch_size,
        )
        for name, value in asdict(settings).items():
            if name in {"steps", "step_size", "epsilon", "batch_size"} and value is not None and not 0 < value < 1e9:
                raise ConfigError(
                    f"Reading the settings failed for {name}: expected a number above 0, got {value}. Correct it."
                )
        return settings


def write_feature_images(
    folder: Path,
    images: ImageSet,
    classifier: Classifier,
    settings: FeatureSettings,
    *,
    network: Mapping[str, Any],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> str:
    """Generate or resume a dataset of features in a folder (see `images.image_folder`), and return its hash.

    Pixels are rounded half up to 8 bits. On a CPU, equal arguments and threads give equal bytes.

    The folder contains blocks of images until all are complete, and then ``train.npz``. `network` are further fields
    that identify the network, such as its name; they are part of the recipe, like its hash.

    Raises:
        ConfigError: the network has no linear layer.
        DatasetError: the folder contains other images, or a block is damaged.
        EvaluationError: the network's gradients are not finite.
        StorageError: another process generates images in this folder.
    """
    recipe = _recipe(images, classifier, settings, network)
    with sole_writer(folder, "Making images"):
        existing_digest = find_split(folder, "train", recipe)
        if existing_digest is not None:
            return existing_digest
        blocks = folder / f"blocks-{content_digest(recipe)[:16]}"
        work = _Work(images, classifier, settings)
        store = AdversarialStore(blocks, np.arange(len(images)), settings.batch_size, settings.batch_size)
        missing = [(start, stop) for _, start, stop in store.missing([_BLOCK])]
        done = len(images) - sum(stop - start for start, stop in missing)
        progress(done, len(images))
        for start, stop in missing:
            store.write(_BLOCK, start, work.make(start, stop))
            done += stop - start
            progress(done, len(images))
        pixels = np.concatenate([to_8_bits(store(_BLOCK, rows)) for rows in _batches(len(images), settings.batch_size)])
        digest = write_split(
            folder,
            "train",
            LabelledImages(pixels, work.labels),
            recipe=recipe,
            n_classes=images.n_classes,
            fields={"outcome": work.measure(pixels)},
            **work.sources,
        )
        shutil.rmtree(blocks)
    return digest


def _recipe(
    images: ImageSet, classifier: Classifier, settings: FeatureSettings, network: Mapping[str, Any]
) -> dict[str, Any]:
    normalisation = [*classifier.mean.flatten().tolist(), *classifier.std.flatten().tolist()]
    on_cpu = classifier.device.type == "cpu"
    return {
        "kind": "features",
        "version": _VERSION,
        **asdict(settings),
        "network": {
            **network,
            "weights_sha256": hash_weights(classifier.network.state_dict()),
            "normalisation": normalisation,
        },
        "images": {"dataset": images.dataset, "sha256": images.sha256},
        "device": classifier.device.type,
        **({"threads": torch.get_num_threads()} if on_cpu else {}),
        "rounding": "half up to 8 bits",
    }


class _Work:
    """Generates the images of a dataset of features, block by block.

    Attributes:
        labels: (N,) int64, labels of the new images.
        sources: origin of each image, by array name: row of its training image in the full split, and the row of the
            starting image or the original label.
    """

    def __init__(self, images: ImageSet, classifier: Classifier, settings: FeatureSettings) -> None:
        self._images, self._classifier, self._settings = images, classifier, settings
        # Keyed by row of the full split, to be independent of batches; NumPy guarantees the stream of raw words.
        words = [
            int(generator(settings.seed, "robust features", settings.method, int(row)).bit_generator.random_raw())
            for row in images.indices
        ]
        count, n_classes = len(images), images.n_classes
        self.sources: dict[str, NDArray[np.int64]] = {"source_rows": images.indices}
        self.labels = images.labels
        self._starts = np.arange(count)
        if settings.method == "representation":
            if count < 2:
                raise ConfigError(
                    f"Making images failed for {images.dataset}: expected two images or more, since each starts from "
                    f"another, got {count}. Use more images."
                )
            others = np.array([word % (count - 1) for word in words])
            self._starts = others + (others >= np.arange(count))  # any image but itself
            self.sources["start_rows"] = images.indices[self._starts]
        else:
            random_classes = np.array([word % n_classes for word in words], np.int64)
            self.labels = random_classes if settings.method == "random-target" else (images.labels + 1) % n_classes
            self.sources["original_labels"] = images.labels

    def make(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the images at positions `start` to `stop`: (n, 3, H, W) float32 in [0, 1]."""
        settings, rows = self._settings, slice(start, stop)
        origin = self._pixels(self._images.images[rows])
        if settings.method == "representation":
            with _representation(self._classifier.network) as represent:
                target = represent(self._classifier, origin)

                def distance(pixels: torch.Tensor) -> torch.Tensor:
                    # The gradient of the square has the same direction as that of the norm, and also exists at 0.
                    return (represent(self._classifier, pixels) - target).square().sum(dim=1)

                generated = self._descend(self._pixels(self._images.images[self._starts[rows]]), distance, None)
        else:
            labels = torch.from_numpy(self.labels[rows]).to(origin.device)

            def loss(pixels: torch.Tensor) -> torch.Tensor:
                return functional.cross_entropy(self._classifier(pixels), labels, reduction="none")

            generated = self._descend(origin, loss, origin)
        if not bool(torch.isfinite(generated).all()):
            raise EvaluationError(
                f"Making images failed for {self._images.dataset} images {start}:{stop}: expected finite gradients, "
                "got NaN or infinity. Check the network."
            )
        return generated.cpu().numpy()

    def _descend(
        self,
        pixels: torch.Tensor,
        objective: Callable[[torch.Tensor], torch.Tensor],
        origin: torch.Tensor | None,
    ) -> torch.Tensor:
        """Make gradient steps of equal length, within the ball around `origin` if given."""
        settings = self._settings
        for _ in range(settings.steps):
            inputs = pixels.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(objective(inputs).sum(), [inputs])
            pixels = pixels - settings.step_size * gradient / (_norms(gradient) + _NORM_OFFSET)
            if origin is not None and settings.epsilon is not None:
                change = pixels - origin
                pixels = origin + change * (settings.epsilon / _norms(change).clamp(min=settings.epsilon))
            pixels = pixels.clamp(0, 1)
        return pixels

    def measure(self, generated: NDArray[np.uint8]) -> dict[str, float]:
        """Return the mean distances or success rate that the rounded images reach."""
        totals: dict[str, float] = {}
        with torch.no_grad(), _representation(self._classifier.network) as represent:
            for rows in _batches(len(generated), self._settings.batch_size):
                pixels, labels = self._pixels(generated[rows]), torch.from_numpy(self.labels[rows])
                if self._settings.method == "representation":
                    target = represent(self._classifier, self._pixels(self._images.images[rows]))
                    start = represent(self._classifier, self._pixels(self._images.images[self._starts[rows]]))
                    size = target.norm(dim=1) + _NORM_OFFSET
                    measurements = {
                        "distance_at_start": (start - target).norm(dim=1) / size,
                        "distance": (represent(self._classifier, pixels) - target).norm(dim=1) / size,
                    }
                else:
                    predictions = self._classifier(pixels).argmax(dim=1).cpu()
                    measurements = {"share_seen_as_target": (predictions == labels).double()}
                for name, values in measurements.items():
                    totals[name] = totals.get(name, 0.0) + float(values.double().sum())
        return {name: total / len(generated) for name, total in totals.items()}

    def _pixels(self, images: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(images).to(self._classifier.device).float() / 255


def _norms(batch: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of each image, (B, 1, 1, 1)."""
    norms: torch.Tensor = batch.flatten(1).norm(dim=1)
    return norms.view(-1, 1, 1, 1)


def _batches(count: int, size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


@contextmanager
def _representation(network: nn.Module) -> Iterator[Callable[[nn.Module, torch.Tensor], torch.Tensor]]:
    """Yield a function of classifier and pixels that returns the input (B, D) of the last linear layer."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ConfigError(
            f"Finding the representation failed for {type(network).__name__}: expected a network that ends with a "
            "torch.nn.Linear, whose input is the representation, got one without. Use another network."
        )
    inputs_seen: list[torch.Tensor] = []
    handle = layers[-1].register_forward_pre_hook(lambda _layer, inputs: inputs_seen.append(inputs[0]))

    def represent(classifier: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        inputs_seen.clear()
        classifier(pixels)
        if len(inputs_seen) != 1 or len(inputs_seen[0]) != len(pixels):
            raise EvaluationError(
                f"Finding the representation failed for {type(network).__name__}: expected its last linear layer to be "
                f"called once, for each image, got {len(inputs_seen)} calls. Use another network."
            )
        representation: torch.Tensor = inputs_seen.pop().flatten(1)
        return representation

    try:
        yield represent
    finally:
        handle.remove()
