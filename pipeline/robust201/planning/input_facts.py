"""What planning must know of a sweep's inputs: counts and hashes, no paths."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from robust201.core.records import ArchitectureId, ImageSelection, Weights
from robust201.planning.samples import Samples


class ImageFacts(NamedTuple):
    """What planning must know of a selection of images: how many there are, and `ImageSet.sha256`."""

    n_images: int
    sha256: str


@dataclass(frozen=True)
class DatasetFacts:
    """What planning must know of a dataset's images.

    Attributes:
        n_images: images of the test split that the sweep selects.
        images_sha256: `ImageSet.sha256` of that selection.
        corruptions: identity payload of each corruption key's images (source, hash and, where generated, recipe);
            keys without generated images are missing.
        own_images: selections that measures ask for.
        decoder: what decided the pixels of JPEG, PNG and resized images (see `ImageSet.decoder`).
    """

    n_images: int
    images_sha256: str
    corruptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own_images: Mapping[ImageSelection, ImageFacts] = field(default_factory=dict)
    decoder: Mapping[str, str] = field(default_factory=dict)

    def images(self, selection: ImageSelection | None) -> ImageFacts:
        """Facts of a measure's own images, or of those that the sweep selects."""
        return ImageFacts(self.n_images, self.images_sha256) if selection is None else self.own_images[selection]

    def completed_by(self, other: "DatasetFacts") -> "DatasetFacts":
        """Add what other facts record about corrupted images of the same selection."""
        if other.images_sha256 != self.images_sha256:
            return self
        return replace(self, corruptions={**other.corruptions, **self.corruptions})

    def to_payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "n_images": self.n_images,
            "images_sha256": self.images_sha256,
            "corruptions": self.corruptions,
        }
        if self.own_images:
            payload["own_images"] = [asdict(wanted) | found._asdict() for wanted, found in self.own_images.items()]
        if self.decoder:
            payload["decoder"] = dict(self.decoder)
        return payload

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "DatasetFacts":
        own = {
            ImageSelection(item["split"], item["count"], item["seed"]): ImageFacts(item["n_images"], item["sha256"])
            for item in payload.get("own_images", ())
        }
        decoder = payload.get("decoder", {})
        return cls(payload["n_images"], payload["images_sha256"], payload["corruptions"], own, decoder)


@dataclass(frozen=True)
class InputFacts:
    """Hashes of everything a sweep reads: what identity is made of.

    Attributes:
        datasets: by name.
        weights: the weights to evaluate, by dataset and architecture.
        code: SHA-256 of each Python file that the sweep names, by the field that names it.
        test_accuracies: accuracy on the whole test split that was recorded with weights, by their SHA-256; decides no
            number, and is compared with what the sweep measures.
        samples: samples of images that were drawn; they have a file of their own (`planning.samples`).
    """

    datasets: Mapping[str, DatasetFacts]
    weights: Mapping[str, Mapping[ArchitectureId, tuple[Weights, ...]]]
    code: Mapping[str, str] = field(default_factory=dict)
    test_accuracies: Mapping[str, float] = field(default_factory=dict)
    samples: Samples | None = None

    def without_weights(self) -> "InputFacts":
        """What workers need, which find the hash of the weights in each unit: small enough to travel."""
        return InputFacts(self.datasets, {}, self.code)

    def completed_by(self, other: "InputFacts") -> "InputFacts":
        """Add what other facts record about corrupted images and these lack."""
        completed = {
            name: facts.completed_by(other.datasets[name]) if name in other.datasets else facts
            for name, facts in self.datasets.items()
        }
        return replace(self, datasets=completed)

    def to_payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "datasets": {name: facts.to_payload() for name, facts in self.datasets.items()},
            "checkpoints": {
                dataset: {str(name): _weights_payload(states) for name, states in networks.items()}
                for dataset, networks in self.weights.items()
            },
        }
        if self.code:
            payload["code"] = dict(self.code)
        if self.test_accuracies:
            payload["test_accuracies"] = dict(self.test_accuracies)
        return payload

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "InputFacts":
        return cls(
            {name: DatasetFacts.from_payload(facts) for name, facts in payload["datasets"].items()},
            {
                dataset: {_parse_id(name): _parse_weights(states) for name, states in networks.items()}
                for dataset, networks in payload["checkpoints"].items()
            },
            payload.get("code", {}),
            payload.get("test_accuracies", {}),
        )


def _weights_payload(states: tuple[Weights, ...]) -> Any:
    """A hash where a network has one unnamed state, as it was before there could be several; else all of them."""
    if len(states) == 1 and states[0] == Weights(states[0].sha256):
        return states[0].sha256
    return [state.to_payload() for state in states]


def _parse_weights(value: Any) -> tuple[Weights, ...]:
    return (Weights(value),) if isinstance(value, str) else tuple(Weights(**state) for state in value)


def _parse_id(text: str) -> ArchitectureId:
    return int(text) if text.isdecimal() else text
