"""The plain records that every layer speaks in: no torch, no Ray, no disk.

Words (architecture, key, strength, evaluation, unit, part, bundle, protocol, shard) are those of ARCHITECTURE.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:  # the records are also those of a machine where a package is missing: `robust201 doctor` says which
    import numpy as np
    from numpy.typing import NDArray

CLEAN_STRENGTH = 0.0

MAX_CLASSES = 32_767
"""The most classes of a dataset: results store their number as a signed integer of two bytes."""

ArchitectureId: TypeAlias = int | str
"""Names an architecture within its space: an index, or text that begins with a letter."""


def canonical_json(value: Any) -> str:
    """Text of a JSON value that is the same for equal values: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_digest(value: Any) -> str:
    """32 hex digits (128 bits of SHA-256) that name a JSON value by its content."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


class FieldProblem(NamedTuple):
    """A field with an invalid value.

    Attributes:
        field: its name.
        text: what is wrong with it, and what to do.
    """

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Normalisation:
    """Per-channel mean and standard deviation of pixels in [0, 1], applied inside the classifier."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of_channels(self, channels: int) -> Normalisation:
        """Return the normalisation of the first channels."""
        return Normalisation(self.mean[:channels], self.std[:channels])

    @property
    def problem(self) -> FieldProblem | None:
        """Return the first field that cannot be of pixels in [0, 1]; None if both are valid."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            # NaN compares as false.
            if not all(0 <= value <= 1 for value in values) or (name == "std" and 0 in values):
                expected = "numbers from 0 to 1" if name == "mean" else "numbers above 0 and up to 1"
                shown = ", ".join(f"{value:g}" for value in values)
                divide = " Divide those of pixels from 0 to 255 by 255." if max(values) > 1 else " Correct them."
                return FieldProblem(name, f"expected {expected}, since pixels are in [0, 1], got {shown}.{divide}")
        return None


PIXELS_AS_THEY_ARE = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""Of RGB images that networks are shown without a normalisation."""


Split: TypeAlias = Literal["test", "train"]


@dataclass(frozen=True, slots=True)
class ImageSelection:
    """Which images of a dataset: a class-stratified subset of a split, or all of it."""

    split: Split
    count: int | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one dataset's test split, or a selection of them.

    Attributes:
        images: (N, C, H, W) uint8, C 3 (RGB) or 1 (grey). Images that a user hands over as arrays may also be float32
            in [0, 1] (see `images.user_arrays`).
        labels: (N,) int64 in [0, n_classes).
        indices: (N,) int64, each image's row in the dataset's full split, ascending.
        normalisation: what the networks of this dataset were trained with.
        sha256: 64 hex digits of `images`, `labels` and `indices` together (see `image_hash`).
        class_names: names of the class folders that the images lie in, by label; empty where there are none.
        decoder: libraries and versions that decided the pixels, by what they did (see `images.decoding`).
        n_split: images in the full split; 0 where these are all.
    """

    dataset: str
    images: NDArray[Any]
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]
    n_classes: int
    normalisation: Normalisation
    sha256: str
    class_names: tuple[str, ...] = ()
    decoder: Mapping[str, str] = field(default_factory=dict)
    n_split: int = 0

    def __len__(self) -> int:
        return len(self.labels)


def image_hash(images: NDArray[Any], labels: NDArray[np.int64], indices: NDArray[np.int64]) -> str:
    """Hash what a network is shown to 64 hex digits: shape, pixels, labels and indices, in that order."""
    digest = hashlib.sha256(canonical_json(list(images.shape)).encode())
    for array in (images, labels.astype("<i8"), indices.astype("<i8")):
        digest.update(array.tobytes())  # in C order, however the array lies in memory
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class EvaluationProtocol:
    """Everything but architecture, checkpoint and strength that decides a number.

    Attributes:
        payload: JSON value: dataset and its hash, image selection, key, attack parameters without their strengths,
            semantics version, engine, precision, seed, draw batch.
        digest: `content_digest` of the payload.
    """

    payload: Mapping[str, Any]
    digest: str

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> EvaluationProtocol:
        return cls(payload, content_digest(payload))


def show_architecture(architecture: ArchitectureId) -> str:
    """Name an architecture in text: ``#21``, or ``resnet18``."""
    return f"#{architecture}" if isinstance(architecture, int) else architecture


def unit_id(space: str, architecture: ArchitectureId, checkpoint_sha256: str, protocol_digest: str) -> str:
    """Name a unit by its content: 32 hex digits.

    Strengths are no part of it: an evaluation is named by (unit id, strength), so that one more epsilon is one more
    evaluation of the same unit.
    """
    text = f"{space}\n{architecture}\n{checkpoint_sha256}\n{protocol_digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Weights:
    """One state of an architecture's parameters, named by its content.

    Attributes:
        sha256: 64 hex digits of the weights' file, or of the recipe of random weights.
        recipe: name of the training that made them; empty where nobody named it.
        epochs: length of the training, or epoch of the snapshot; None where unknown, or within an epoch.
        seed: of the training, or of random weights; None where unknown.
        is_random: whether nothing was trained.
        steps: iterations of the training until then; None where unknown.
    """

    sha256: str
    recipe: str = ""
    epochs: int | None = None
    seed: int | None = None
    is_random: bool = False
    steps: int | None = None

    @property
    def name(self) -> str:
        """Short name among the weights of a network, such as ``e200-s777``, ``i1500-s0`` or ``random-s0``; or empty."""
        parts = [self.recipe or ("random" if self.is_random else "")]
        if self.epochs is not None:
            parts += [f"e{self.epochs}"]
        elif self.steps is not None:
            parts += [f"i{self.steps}"]
        parts += [f"s{self.seed}"] if self.seed is not None else []
        return "-".join(filter(None, parts))

    def to_payload(self) -> dict[str, Any]:
        """JSON value of the fields; steps came after the others, and are left out where they are unknown."""
        return {name: value for name, value in asdict(self).items() if name != "steps" or value is not None}


@dataclass(frozen=True, slots=True)
class Unit:
    """The evaluations of one (architecture, dataset, key): one row of JSON.

    Attributes:
        id: 32 hex digits, see `unit_id`.
        key: the task.
        strengths: ascending, on the task's axis: epsilons in units of 1/255 (Linf) or of pixels in [0, 1] (L2),
            severities 1 to 5, or `(CLEAN_STRENGTH,)`.
        checkpoint_sha256: hash of the weights (see `Weights`).
        weights: short name of the weights where a network has several in its sweep; else empty.
        columns: columns of a measure; empty where images are shown and answers measured.
        makes_images: whether it has no results, but makes the images that a transfer shows (`runtime.sweep`).
        images: hash of the images that it is shown, of a sample; empty where these are all images of its key.
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
    makes_images: bool = False
    images: str = ""

    @property
    def label(self) -> str:
        """Readable name for messages and logs, such as ``#21 cifar10 pgd``."""
        return f"{self.network_label} {'images of ' if self.makes_images else ''}{self.key}"

    @property
    def network_label(self) -> str:
        """Readable name of the network alone, such as ``#21 cifar10``: what is wrong with it is reported once."""
        weights = f" {self.weights}" if self.weights else ""
        return f"{show_architecture(self.architecture)}{weights} {self.dataset}"


@dataclass(frozen=True, slots=True)
class Part:
    """A slice of a unit: some of its strengths on the image positions [start, stop). A whole unit is one part."""

    unit: Unit
    strengths: tuple[float, ...]
    start: int
    stop: int

    @property
    def label(self) -> str:
        if (self.start, self.stop) == (0, self.unit.n_images):
            return self.unit.label
        return f"{self.unit.label} images {self.start}:{self.stop}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Parts of one network on one dataset that one worker computes with the weights loaded once.

    Attributes:
        seconds: how long it takes, by estimate.
    """

    architecture: ArchitectureId
    dataset: str
    parts: tuple[Part, ...]
    seconds: float = 0.0

    @property
    def network(self) -> tuple[str, ArchitectureId]:
        """What a worker loads for it, whichever its weights are."""
        return self.dataset, self.architecture

    def keep(self, parts: Sequence[Part]) -> Bundle:
        """Keep what is left of its parts, and of its time the share that their images at all strengths are."""
        whole, left = (sum(len(p.strengths) * (p.stop - p.start) for p in some) for some in (self.parts, parts))
        return Bundle(self.architecture, self.dataset, tuple(parts), self.seconds * left / whole)


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """One strength of a part, measured: one row of a shard.

    Attributes:
        strength: the one strength of it that this is.
        values: columns (see `tasks.columns`): of answers `accuracy` () float64, `cm` (C, C) int32 or, beyond 256
            classes where no matrix is asked for, `outcome_counts` (2,) int32, and, where asked for, `confidence_label`
            (C, C), `confidence_argmax` (C, C), `confidence_prediction` (2,) float64 and `predictions` (n,) uint8 or
            uint16; of a measure its own, () or (n,) float64.
        seconds: wall time of the evaluation; where the fused engine attacks several strengths at once, that of all of
            them lies with the strength that is complete first, and only their sum means something.
        provenance: versions, host and device that made it; never part of identity.
    """

    part: Part
    strength: float
    values: Mapping[str, NDArray[Any]]
    seconds: float
    provenance: Mapping[str, str] = field(default_factory=dict)


class Receipt(NamedTuple):
    """What a worker reports to the driver of one committed shard: a few hundred bytes.

    Attributes:
        unit_id: the unit that the shard's evaluations belong to.
        strengths: strengths in the shard.
        start: first image position.
        stop: one past the last image position.
        seconds: wall time of the work in it.
    """

    unit_id: str
    strengths: tuple[float, ...]
    start: int
    stop: int
    shard: str
    seconds: float


@dataclass(frozen=True, slots=True)
class UnitFailure:
    """A part that could not be evaluated.

    Attributes:
        kind: ``"application"`` (an error in the evaluation), ``"killed"`` (its worker died each time), ``"memory"``.
        traceback: the worker's traceback, or ``""``.
        attempt: which attempt failed, from 1.
    """

    part: Part
    kind: str
    message: str
    traceback: str
    attempt: int
