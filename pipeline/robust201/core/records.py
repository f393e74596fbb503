"""Dataclasses used by all packages. This module needs neither torch nor Ray and does not access the disk.

docs/glossary.md defines the terms architecture, key, strength, evaluation, unit, part, protocol and shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:  # `robust201 doctor` imports this module even if NumPy is missing, and reports that
    import numpy as np
    from numpy.typing import NDArray

CLEAN_STRENGTH = 0.0
"""Placeholder strength of evaluations that have none, such as `clean` and measures."""

MAX_CLASSES = 32_767
"""Maximum number of classes of a dataset; result files store the number as a signed 16-bit integer."""

ArchitectureId: TypeAlias = int | str
"""Id of an architecture within its space: an index, or text that begins with a letter."""


def canonical_json(value: Any) -> str:
    """Return canonical JSON, which is equal for equal values: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_digest(value: Any) -> str:
    """Return the first 32 hex digits of the SHA-256 of a JSON value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Per-channel mean and standard deviation of pixels in [0, 1], applied inside the classifier."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of_channels(self, channels: int) -> Normalisation:
        """Return the normalisation of the first `channels` channels."""
        return Normalisation(self.mean[:channels], self.std[:channels])

    @property
    def problem(self) -> str:
        """Error message if values are impossible for pixels in [0, 1]; else empty."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            # Comparisons with NaN are false.
            if not all(0 <= value <= 1 for value in values) or (name == "std" and 0 in values):
                expected = "numbers from 0 to 1" if name == "mean" else "numbers above 0 and up to 1"
                value_list = ", ".join(f"{value:g}" for value in values)
                remedy = (
                    " If they are for pixels from 0 to 255, divide by 255." if max(values) > 1 else " Correct them."
                )
                return f"{name}: expected {expected}, since pixels are in [0, 1], got {value_list}.{remedy}"
        return ""


NO_NORMALISATION = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""Identity normalisation of RGB images."""


Split: TypeAlias = Literal["test", "train"]


@dataclass(frozen=True, slots=True)
class ImageSelection:
    """Selection of images of a split: a class-stratified subset, the images that a file lists, or all images.

    Attributes:
        count: size of the subset.
        seed: seed of the subset.
        file: file with the positions of the images (see `images.selection`).
    """

    split: Split
    count: int | None = None
    seed: int = 0
    file: str | None = None


@dataclass(frozen=True, eq=False)
class ImageSet:
    """All images of one split of a dataset, or a selection of them.

    Attributes:
        images: (N, C, H, W) uint8 with C = 3 (RGB) or 1 (grey). Images that a user passes as arrays may also be
            float32 in [0, 1]; their `n_classes` is 0, and `sha256` is empty (see `images.user_arrays`).
        labels: (N,) int64 in [0, n_classes).
        indices: (N,) int64, ascending position of each image in the dataset's full split.
        normalisation: normalisation with which this dataset's networks were trained.
        sha256: SHA-256 (64 hex digits) of `images`, `labels` and `indices` together (see `image_hash`).
        class_names: names of the class folders, in the order of labels; empty if there are none.
        n_split: number of images in the full split; 0 if it is not recorded.
    """

    dataset: str
    images: NDArray[Any]
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]
    n_classes: int
    normalisation: Normalisation
    sha256: str
    class_names: tuple[str, ...] = ()
    n_split: int = 0

    def __len__(self) -> int:
        return len(self.labels)


def image_hash(images: NDArray[Any], labels: NDArray[np.int64], indices: NDArray[np.int64]) -> str:
    """Return the SHA-256 (64 hex digits) of shape, pixels, labels and indices, in that order."""
    digest = hashlib.sha256(canonical_json(list(images.shape)).encode())
    for array in (images, labels.astype("<i8"), indices.astype("<i8")):
        digest.update(array.tobytes())  # in C order, whatever the memory layout
    return digest.hexdigest()


def format_architecture(architecture: ArchitectureId) -> str:
    """Return the display name of an architecture: ``#21``, or ``resnet18``."""
    return f"#{architecture}" if isinstance(architecture, int) else architecture


def unit_id(space: str, architecture: ArchitectureId, checkpoint_sha256: str, protocol_digest: str) -> str:
    """Return the id of a unit, a digest of its content: 32 hex digits.

    The id does not depend on strengths: an evaluation is identified by (unit id, strength), and a new epsilon adds an
    evaluation to the same unit.
    """
    text = f"{space}\n{architecture}\n{checkpoint_sha256}\n{protocol_digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Weights:
    """One state of an architecture's parameters, identified by its content.

    Attributes:
        sha256: SHA-256 (64 hex digits) of the weights file or, for random weights, of the fields that determine them.
        recipe: name of the training recipe; empty if it has none.
        epochs: number of training epochs, of the whole run or up to the snapshot; None if unknown or not a whole
            number.
        seed: seed of the training or of random weights; None if unknown.
        is_random: whether the weights are untrained.
        steps: number of training iterations before this state; None if unknown.
    """

    sha256: str
    recipe: str = ""
    epochs: int | None = None
    seed: int | None = None
    is_random: bool = False
    steps: int | None = None

    @property
    def name(self) -> str:
        """Short name that distinguishes a network's weights, such as ``e200-s777``, ``i1500-s0`` or ``random-s0``."""
        components = [self.recipe or ("random" if self.is_random else "")]
        if self.epochs is not None:
            components += [f"e{self.epochs}"]
        elif self.steps is not None:
            components += [f"i{self.steps}"]
        components += [f"s{self.seed}"] if self.seed is not None else []
        return "-".join(filter(None, components))

    def to_payload(self) -> dict[str, Any]:
        """Return the fields as JSON; `steps` is omitted if it is unknown."""
        return {name: value for name, value in asdict(self).items() if name != "steps" or value is not None}


@dataclass(frozen=True, slots=True)
class Unit:
    """The evaluations of one (architecture, dataset, key).

    Attributes:
        id: 32 hex digits (see `unit_id`).
        key: key of the task.
        strengths: ascending strengths on the task's axis: epsilons in units of 1/255 (Linf) or for pixels in [0, 1]
            (L2, L1), severities 1 to 5, strengths of a custom task, or `(CLEAN_STRENGTH,)`.
        protocol: digest of the protocol (see `sweep.protocol`).
        checkpoint_sha256: hash of the weights (see `Weights`).
        weights: short name of the weights if the sweep has several for the network; else empty.
        columns: columns of a measure; empty for tasks that measure predictions.
    """

    id: str
    architecture: ArchitectureId
    dataset: str
    key: str
    strengths: tuple[float, ...]
    n_images: int
    protocol: str
    checkpoint_sha256: str
    weights: str = ""
    columns: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Display name for messages and logs, such as ``#21 cifar10 pgd``."""
        return f"{self.network_label} {self.key}"

    @property
    def network_label(self) -> str:
        """Display name of the network, such as ``#21 cifar10``, for problems reported once per network."""
        weights = f" {self.weights}" if self.weights else ""
        return f"{format_architecture(self.architecture)}{weights} {self.dataset}"


@dataclass(frozen=True, slots=True)
class Part:
    """Results of a unit that a worker computes at once: some of its strengths, on the image positions [start, stop).

    The positions are a slice of the unit's images, or all of them.
    """

    unit: Unit
    strengths: tuple[float, ...]
    start: int
    stop: int

    @property
    def label(self) -> str:
        if (self.start, self.stop) == (0, self.unit.n_images):
            return self.unit.label
        return f"{self.unit.label} images {self.start}:{self.stop}"


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """The measurements for one strength of a part, stored as one row of a shard.

    Attributes:
        strength: one of the part's strengths.
        values: arrays by column name (see `tasks.columns`). Tasks that measure predictions have `accuracy` () float64
            and `cm` (C, C) int32, the confusion matrix; or, with more than 256 classes and no matrix requested,
            `outcome_counts` (2,) int32 instead of `cm`. If requested, they also have `confidence_label` (C, C),
            `confidence_argmax` (C, C), `confidence_prediction` (2,) float64, `predictions` (n,) uint8 or uint16, and
            `distances` (n,) int64. A measure has its own columns, () or (n,) float64.
        seconds: wall time of the evaluation. If the fused engine attacks several strengths at once, their total time is
            assigned to the strength that is measured first, so only the sum over strengths is meaningful.
        provenance: versions, host and device that computed the result; never part of an id.
    """

    part: Part
    strength: float
    values: Mapping[str, NDArray[Any]]
    seconds: float
    provenance: Mapping[str, str] = field(default_factory=dict)
