"""Counts and hashes of a sweep's inputs, which planning needs; they contain no paths."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from robust201.core.records import ArchitectureId, ImageSelection, Weights


class ImageFacts(NamedTuple):
    """Number of selected images, and their `ImageSet.sha256`."""

    n_images: int
    sha256: str


@dataclass(frozen=True)
class DatasetFacts:
    """Counts and hashes of a dataset's images.

    Attributes:
        n_images: number of test images that the sweep selects.
        images_sha256: `ImageSet.sha256` of that selection.
        corruptions: by key, the payload that identifies the corrupted images (source, hash and, if generated, recipe);
            keys whose images have not been generated are missing.
        own_images: facts about the images that measures use instead of the sweep's images, by selection.
        decoder: libraries and settings that affect pixels of JPEG, PNG and resized images (see `ImageSet.decoder`).
    """

    n_images: int
    images_sha256: str
    corruptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own_images: Mapping[ImageSelection, ImageFacts] = field(default_factory=dict)
    decoder: Mapping[str, str] = field(default_factory=dict)

    def images(self, selection: ImageSelection | None) -> ImageFacts:
        """Return the facts about the images of a measure, or about the sweep's images if `selection` is None."""
        return ImageFacts(self.n_images, self.images_sha256) if selection is None else self.own_images[selection]

    def add_corruptions_of(self, other: "DatasetFacts") -> "DatasetFacts":
        """Add the corrupted images that `other` has, if it describes the same test images."""
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
            payload["own_images"] = [
                asdict(selection) | facts._asdict() for selection, facts in self.own_images.items()
            ]
        if self.decoder:
            payload["decoder"] = dict(self.decoder)
        return payload

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "DatasetFacts":
        own_images = {
            ImageSelection(*(image_payload[name] for name in ("split", "count", "seed", "file"))): ImageFacts(
                image_payload["n_images"], image_payload["sha256"]
            )
            for image_payload in payload.get("own_images", ())
        }
        decoder = payload.get("decoder", {})
        return cls(payload["n_images"], payload["images_sha256"], payload["corruptions"], own_images, decoder)


@dataclass(frozen=True)
class InputFacts:
    """Hashes of all inputs of a sweep, from which the ids of its units are derived.

    Attributes:
        datasets: facts about each dataset, by name.
        weights: weights to evaluate, by dataset and architecture.
        code: SHA-256 of each Python file of the sweep, by the YAML field that names it.
        test_accuracies: accuracy on all test images that was recorded with the weights, by the SHA-256 of the weights.
            It does not affect results; it is compared with the measured accuracy.
    """

    datasets: Mapping[str, DatasetFacts]
    weights: Mapping[str, Mapping[ArchitectureId, tuple[Weights, ...]]]
    code: Mapping[str, str] = field(default_factory=dict)
    test_accuracies: Mapping[str, float] = field(default_factory=dict)

    def without_weights(self) -> "InputFacts":
        """Return the facts without weights, for sending to workers; units contain the hashes of weights."""
        return InputFacts(self.datasets, {}, self.code)

    def add_corruptions_of(self, other: "InputFacts") -> "InputFacts":
        """Add the corrupted images of `other` that these facts lack."""
        facts_by_dataset = {
            name: facts.add_corruptions_of(other.datasets[name]) if name in other.datasets else facts
            for name, facts in self.datasets.items()
        }
        return replace(self, datasets=facts_by_dataset)

    def to_payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "datasets": {name: facts.to_payload() for name, facts in self.datasets.items()},
            "checkpoints": {
                dataset: {str(name): _dump_weights(network_weights) for name, network_weights in networks.items()}
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
                dataset: {_parse_architecture_id(name): _parse_weights(entry) for name, entry in networks.items()}
                for dataset, networks in payload["checkpoints"].items()
            },
            payload.get("code", {}),
            payload.get("test_accuracies", {}),
        )


def _dump_weights(network_weights: tuple[Weights, ...]) -> Any:
    """Return the hash if there is one unnamed set of weights (as in format 1), or else a list of payloads."""
    if len(network_weights) == 1 and network_weights[0] == Weights(network_weights[0].sha256):
        return network_weights[0].sha256
    return [weights.to_payload() for weights in network_weights]


def _parse_weights(payload: Any) -> tuple[Weights, ...]:
    return (Weights(payload),) if isinstance(payload, str) else tuple(Weights(**fields) for fields in payload)


def _parse_architecture_id(text: str) -> ArchitectureId:
    return int(text) if text.isdecimal() else text
