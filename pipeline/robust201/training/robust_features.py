"""Generate datasets of robust and non-robust features with a network (Ilyas et al., NeurIPS 2019).

There are three methods:

- ``representation``: each image x is replaced by an image with nearly the same representation and the label of x. The
  optimisation starts from another random training image, and minimises the distance between the representations. By
  default, it takes 1,000 steps of length 0.1 along the normalised gradient, and clips pixels to [0, 1] after each step.
  With an adversarially trained network, the result is the authors' D_R (`robust_CIFAR`); with a standard network, it is
  `non_robust_CIFAR`.
- ``random-target`` and ``next-target``: each image is attacked in an L2 ball towards a target class, by default with
  100 steps of length 0.1 and epsilon 0.5. The target is a random class, or the class after the image's label, and
  becomes the label even if the attack fails. The results are the authors' D_NR (`drand_CIFAR` and `ddet_CIFAR`).

The representation is the input of the network's last linear layer. docs/protocol/training.md gives the source of each
choice. Each batch of images is stored in a separate array until all are complete, so an interrupted command resumes
with the missing batches (see `images.store`).
"""

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
from robust201.core.records import ImageSet
from robust201.images.checks import LabelledImages
from robust201.images.store import ArrayFolder, find_generated_split, to_8_bits, write_generated_split
from robust201.networks.classifier import Classifier
from robust201.weights.store import hash_weights

Method: TypeAlias = Literal["representation", "random-target", "next-target"]

_VERSION = 1
"""Version of the algorithm. It changes whenever equal settings give different images than before."""

_NORM_OFFSET = 1e-10
"""Number that is added to norms in denominators, which may be 0."""


@dataclass(frozen=True, slots=True)
class FeatureSettings:
    """Everything that determines the generated images, except the network, the training images and the device.

    Attributes:
        steps: number of gradient descent steps.
        step_size: L2 length of a step, for pixels in [0, 1].
        epsilon: radius of the L2 ball around each image; None for ``representation``, which has no ball.
        seed: seed for the random starting images and target classes. An image's random number depends only on the
            seed, the method and the image's position in the full split.
        batch_size: images per pass. It may affect the last bits of the network's outputs.
    """

    method: Method = "representation"
    steps: int = 1000
    step_size: float = 0.1
    epsilon: float | None = None
    seed: int = 0
    batch_size: int = 100

    @classmethod
    def of(cls, method: Method, **changes: Any) -> "FeatureSettings":
        """Return the method's default settings (docs/protocol/training.md), with `changes` to some of the fields."""
        defaults = {} if method == "representation" else {"steps": 100, "epsilon": 0.5}
        return cls(method, **defaults | changes)


def write_feature_images(
    folder: Path,
    images: ImageSet,
    classifier: Classifier,
    settings: FeatureSettings,
    *,
    network: Mapping[str, Any],
) -> str:
    """Generate a training split of features in a folder, or resume it, and return its hash (see `images.store`).

    Pixels are rounded half up to 8 bits. On a CPU, equal arguments and thread counts give equal bytes. `network`
    has fields that identify the network, such as its name; they are recorded next to the images, together with the hash
    of its weights.

    Raises:
        ConfigError: for `representation`, the network has no linear layer, or there is only one image.
        DatasetError: the folder contains other images, or the file of a batch is damaged.
        EvaluationError: gradients are not finite, or the last linear layer is not called once per pass on all images.
        StorageError: another process generates images in this folder.
    """
    recipe = _make_recipe(images, classifier, settings, network)
    with sole_writer(folder, "Generating images"):
        existing_digest = find_generated_split(folder, "train", recipe)
        if existing_digest is not None:
            return existing_digest
        feature_generator, store = _FeatureGenerator(images, classifier, settings), ArrayFolder(folder / "train")
        block_names = []
        for start in range(0, len(images), settings.batch_size):
            block_names.append(f"block-{start:08d}")
            stop = min(start + settings.batch_size, len(images))
            if not store.is_complete(block_names[-1], recipe):
                store.write(block_names[-1], to_8_bits(feature_generator.generate(start, stop)), recipe=recipe)
        pixels = np.concatenate([store.read(name) for name in block_names])
        digest = write_generated_split(
            folder,
            "train",
            LabelledImages(pixels, feature_generator.labels),
            recipe=recipe,
            n_classes=images.n_classes,
            info={"outcome": feature_generator.measure(pixels)},
            **feature_generator.sources,
        )
        store.remove(block_names)
    return digest


def _make_recipe(
    images: ImageSet, classifier: Classifier, settings: FeatureSettings, network: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that determines the generated images, as JSON."""
    normalisation = [*classifier.mean.flatten().tolist(), *classifier.std.flatten().tolist()]
    is_on_cpu = classifier.device.type == "cpu"
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
        **({"threads": torch.get_num_threads()} if is_on_cpu else {}),
        "rounding": "half up to 8 bits",
    }


class _FeatureGenerator:
    """Generates the images of a dataset of features, batch by batch.

    Attributes:
        labels: (N,) int64, labels of the new images.
        sources: arrays (N,) by name. They contain, for each new image, the position of its training image in the full
            split, and either the position of its starting image or its original label.
    """

    def __init__(self, images: ImageSet, classifier: Classifier, settings: FeatureSettings) -> None:
        self._images, self._classifier, self._settings = images, classifier, settings
        # Random words depend on the position in the full split, so they do not depend on batches. They are raw words,
        # because NumPy guarantees the stream of a bit generator, but not the values of a distribution.
        random_words = [
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
                    f"Generating images failed for {images.dataset}: each image starts from another one, so at least "
                    f"two are needed, got {count}. Use more images."
                )
            offsets = np.array([word % (count - 1) for word in random_words])
            self._starts = offsets + (offsets >= np.arange(count))  # skip the image itself
            self.sources["start_rows"] = images.indices[self._starts]
        else:
            random_classes = np.array([word % n_classes for word in random_words], np.int64)
            self.labels = random_classes if settings.method == "random-target" else (images.labels + 1) % n_classes
            self.sources["original_labels"] = images.labels

    def generate(self, start: int, stop: int) -> NDArray[np.float32]:
        """Generate the images at positions `start` to `stop` - 1: (n, channels, H, W) float32 in [0, 1]."""
        settings, rows = self._settings, slice(start, stop)
        origin = self._to_float(self._images.images[rows])
        if settings.method == "representation":
            with _representation(self._classifier.network) as represent:
                target = represent(self._classifier, origin)

                def distance(pixels: torch.Tensor) -> torch.Tensor:
                    # The squared distance has the same gradient direction as the distance, and is differentiable at 0.
                    return (represent(self._classifier, pixels) - target).square().sum(dim=1)

                generated = self._descend(self._to_float(self._images.images[self._starts[rows]]), distance, None)
        else:
            labels = torch.from_numpy(self.labels[rows]).to(origin.device)

            def loss(pixels: torch.Tensor) -> torch.Tensor:
                return functional.cross_entropy(self._classifier(pixels), labels, reduction="none")

            generated = self._descend(origin, loss, origin)
        if not bool(torch.isfinite(generated).all()):
            raise EvaluationError(
                f"Generating images failed for {self._images.dataset} images {start}:{stop}: gradients are NaN "
                "or infinite. Check the network."
            )
        return generated.cpu().numpy()

    def _descend(
        self,
        pixels: torch.Tensor,
        objective: Callable[[torch.Tensor], torch.Tensor],
        origin: torch.Tensor | None,
    ) -> torch.Tensor:
        """Take gradient descent steps of equal length. If `origin` is not None, stay in the ball around it."""
        settings = self._settings
        for _ in range(settings.steps):
            inputs = pixels.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(objective(inputs).sum(), [inputs])
            pixels = pixels - settings.step_size * gradient / (_image_norms(gradient) + _NORM_OFFSET)
            if origin is not None and settings.epsilon is not None:
                change = pixels - origin
                pixels = origin + change * (settings.epsilon / _image_norms(change).clamp(min=settings.epsilon))
            pixels = pixels.clamp(0, 1)
        return pixels

    def measure(self, generated: NDArray[np.uint8]) -> dict[str, float]:
        """Return the mean relative distances to the target representations (start and end), or the success rate."""
        totals: dict[str, float] = {}
        with torch.no_grad(), _representation(self._classifier.network) as represent:
            for first in range(0, len(generated), self._settings.batch_size):
                rows = slice(first, first + self._settings.batch_size)
                pixels, labels = self._to_float(generated[rows]), torch.from_numpy(self.labels[rows])
                if self._settings.method == "representation":
                    target = represent(self._classifier, self._to_float(self._images.images[rows]))
                    start = represent(self._classifier, self._to_float(self._images.images[self._starts[rows]]))
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

    def _to_float(self, images: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(images).to(self._classifier.device).float() / 255


def _image_norms(batch: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of each image, (B, 1, 1, 1)."""
    norms: torch.Tensor = batch.flatten(1).norm(dim=1)
    return norms.view(-1, 1, 1, 1)


@contextmanager
def _representation(network: nn.Module) -> Iterator[Callable[[nn.Module, torch.Tensor], torch.Tensor]]:
    """Yield a function of a classifier and pixels that returns the input (B, D) of the network's last linear layer."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    layer_inputs: list[torch.Tensor] = []
    handles = [
        layer.register_forward_pre_hook(lambda _layer, inputs: layer_inputs.append(inputs[0])) for layer in layers[-1:]
    ]
    is_first_pass = True

    def represent(classifier: nn.Module, pixels: torch.Tensor) -> torch.Tensor:
        nonlocal is_first_pass
        if not layers:  # other methods measure such a network without its representation
            raise ConfigError(
                f"Finding the representation failed for {type(network).__name__}: it has no torch.nn.Linear, "
                "whose input would be the representation. Use another network."
            )
        if is_first_pass:  # a classifier checks its gradients once, in an extra pass
            classifier(pixels[:1].detach().clone().requires_grad_())
            is_first_pass = False
        layer_inputs.clear()
        classifier(pixels)
        if len(layer_inputs) != 1 or len(layer_inputs[0]) != len(pixels):
            raise EvaluationError(
                f"Finding the representation failed for {type(network).__name__}: its last linear layer must be called "
                f"once per pass on all images, got {len(layer_inputs)} calls. Use another network."
            )
        representation: torch.Tensor = layer_inputs.pop().flatten(1)
        return representation

    try:
        yield represent
    finally:
        for handle in handles:
            handle.remove()
