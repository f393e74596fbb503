"""Samples of images by dataset and key, the choice of the pilot networks, and the file that records both.

The pilot networks are evaluated on all images, and all other networks on samples. A sample grows by increments, which
are disjoint sets of images. `sample.json` in the results folder is written before networks are evaluated on an
increment, so that an interrupted run resumes with the same sample.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, InputError, describe_read_error
from robust201.core.files import load_json, write_text
from robust201.core.records import ArchitectureId, ImageSet, content_digest, image_hash
from robust201.statistics.sampling import SampleDesign

if TYPE_CHECKING:
    from robust201.planning.config import SweepConfig

SAMPLE_FILE = "sample.json"
_SAMPLE_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Increment:
    """Images that were added to a sample together.

    Attributes:
        sizes: number of images of each stratum in the whole sample, including the added images.
        positions: (n,) int64, ascending positions of the added images in the dataset's selected images.
        sha256: hash of the added images (see `core.records.image_hash`).
    """

    sizes: tuple[int, ...]
    positions: NDArray[np.int64]
    sha256: str


@dataclass(frozen=True, eq=False)
class KeySample:
    """The sample of one key on one dataset.

    Attributes:
        protocol: digest of the key's protocol for evaluations on all images, such as those of the pilot networks.
        images_sha256: hash of all images.
        design: strata and order in which their images are drawn, and the sample sizes after the last increment.
        increments: increments in the order in which they were drawn.
    """

    protocol: str
    images_sha256: str
    design: SampleDesign
    increments: tuple[Increment, ...] = ()

    @property
    def n_seen(self) -> int:
        """Number of images in the sample."""
        return sum(len(increment.positions) for increment in self.increments)

    @property
    def is_full(self) -> bool:
        """Whether the sample contains all images."""
        return self.n_seen == len(self.design.stratum)

    def grow(self, larger: SampleDesign, images: ImageSet) -> "KeySample":
        """Return the sample with one more increment: the images in `larger` (same strata) that this sample lacks."""
        positions = np.setdiff1d(larger.positions, self.design.positions)
        sizes = tuple(larger.sizes.tolist())
        increment = Increment(sizes, positions, choose_images(images, positions).sha256)
        return replace(self, design=larger, increments=(*self.increments, increment))

    def continues(self, smaller: "KeySample") -> bool:
        """Return whether this sample begins with all increments of `smaller`, from the same images and strata."""
        increments = [(increment.sizes, increment.sha256) for increment in self.increments]
        return (
            (self.protocol, self.images_sha256) == (smaller.protocol, smaller.images_sha256)
            and np.array_equal(self.design.stratum, smaller.design.stratum)
            and np.array_equal(self.design.order, smaller.design.order)
            and [(increment.sizes, increment.sha256) for increment in smaller.increments]
            == increments[: len(smaller.increments)]
        )

    def to_payload(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol,
            "images_sha256": self.images_sha256,
            "stratum": self.design.stratum.tolist(),
            "order": self.design.order.tolist(),
            "increments": [
                {"n_images": len(increment.positions), "sizes": list(increment.sizes), "sha256": increment.sha256}
                for increment in self.increments
            ],
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "KeySample":
        stratum, order = (np.array(payload[name], dtype=np.int64) for name in ("stratum", "order"))
        design = SampleDesign(stratum, order, np.zeros(int(stratum.max()) + 1, dtype=np.int64))
        increments: list[Increment] = []
        for fields in payload["increments"]:
            larger = replace(design, sizes=np.array(fields["sizes"], dtype=np.int64))
            positions = np.setdiff1d(larger.positions, design.positions)
            increments.append(Increment(tuple(fields["sizes"]), positions, fields["sha256"]))
            design = larger
        return cls(payload["protocol"], payload["images_sha256"], design, tuple(increments))


@dataclass(frozen=True, eq=False)
class Samples:
    """All samples of a sweep.

    Attributes:
        design: fields of the section `sampling` that must not change (see `SamplingSection.design`).
        pilot: the networks that are evaluated on all images.
        key_samples: samples by dataset and key.
        fully_evaluated_networks: by dataset and key, networks outside the pilot that already had results on all images
            when the sample was drawn. They are not evaluated on samples.
    """

    design: Mapping[str, Any]
    pilot: tuple[ArchitectureId, ...]
    key_samples: Mapping[tuple[str, str], KeySample]
    fully_evaluated_networks: Mapping[tuple[str, str], tuple[ArchitectureId, ...]] = field(default_factory=dict)

    def to_payload(self) -> dict[str, Any]:
        fully_evaluated = [
            {"dataset": dataset, "key": key, "networks": list(networks)}
            for (dataset, key), networks in self.fully_evaluated_networks.items()
        ]
        return {
            "format": _SAMPLE_FORMAT,
            "design": dict(self.design),
            "pilot": list(self.pilot),
            "samples": [
                {"dataset": dataset, "key": key, **sample.to_payload()}
                for (dataset, key), sample in self.key_samples.items()
            ],
            # `counted` is an older name of `fully_evaluated_networks`, which the file format keeps.
            **({"counted": fully_evaluated} if fully_evaluated else {}),
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "Samples":
        samples = {(item["dataset"], item["key"]): KeySample.from_payload(item) for item in payload["samples"]}
        fully_evaluated_networks = {
            (item["dataset"], item["key"]): tuple(item["networks"]) for item in payload.get("counted", [])
        }
        return cls(payload["design"], tuple(payload["pilot"]), samples, fully_evaluated_networks)


def choose_images(images: ImageSet, positions: NDArray[np.int64]) -> ImageSet:
    """Return the images at these positions; each keeps its index in the full split, which seeds its random numbers."""
    arrays = images.images[positions], images.labels[positions], images.indices[positions]
    return replace(images, images=arrays[0], labels=arrays[1], indices=arrays[2], sha256=image_hash(*arrays))


def choose_pilot(architectures: Sequence[ArchitectureId], count: int, seed: int) -> tuple[ArchitectureId, ...]:
    """Choose `count` networks pseudorandomly, the same on every machine; return them in the order of `architectures`.

    The networks with the smallest hashes are chosen.
    """

    def hash_architecture(architecture: ArchitectureId) -> bytes:
        return hashlib.sha256(f"{seed}/pilot/{architecture}".encode()).digest()

    pilot = set(sorted(architectures, key=hash_architecture)[:count])
    return tuple(architecture for architecture in architectures if architecture in pilot)


def merge_samples(first: Samples, second: Samples, results: Path) -> Samples:
    """Combine the records of two results folders of the same sweep; either folder may have the larger samples.

    Args:
        first: record of the merged folder.
        second: record to add.
        results: folder of the second record, for the error.

    Raises:
        InputError: neither sample of a key continues the other, so the results of one folder could not be used.
    """
    is_different = dict(first.design) != dict(second.design) or first.pilot != second.pilot
    key_samples = dict(first.key_samples)
    for dataset_key, sample in second.key_samples.items():
        smaller, larger = sorted(
            (key_samples.get(dataset_key, sample), sample), key=lambda key_sample: len(key_sample.increments)
        )
        is_different |= not larger.continues(smaller)
        key_samples[dataset_key] = larger
    if is_different:
        raise InputError(
            f"Merging samples failed for {results}: the samples in its {SAMPLE_FILE} differ from the samples of the "
            "folders merged before it. Merge it into a separate folder."
        )
    fully_evaluated_networks = dict(first.fully_evaluated_networks)
    for dataset_key, networks in second.fully_evaluated_networks.items():
        earlier_networks = fully_evaluated_networks.get(dataset_key, ())
        fully_evaluated_networks[dataset_key] = tuple(dict.fromkeys([*earlier_networks, *networks]))
    return replace(first, key_samples=key_samples, fully_evaluated_networks=fully_evaluated_networks)


def write_samples(results: Path, samples: Samples) -> None:
    """Write the record of the samples atomically."""
    payload = samples.to_payload()
    write_text(results / SAMPLE_FILE, json.dumps(payload | {"digest": content_digest(payload)}))


def read_samples(results: Path) -> Samples | None:
    """Read the samples of a results folder; None if there are none.

    Raises:
        InputError: the file is damaged.
    """
    path = results / SAMPLE_FILE
    try:
        return _parse_samples(load_json(path))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"Reading the samples failed for {path}: the file is damaged ({describe_read_error(error)}). Restore it or "
            "remove it. If it is removed, robust201 run draws the samples again, which may give other samples if the "
            "budget was raised."
        ) from error


def _parse_samples(payload: dict[str, Any]) -> Samples:
    digest = payload.pop("digest")
    if payload["format"] != _SAMPLE_FORMAT or digest != content_digest(payload):
        raise ValueError("the content was changed")
    return Samples.from_payload(payload)


def check_samples(config: "SweepConfig", samples: Samples | None) -> None:
    """Check that a sweep has the design with which its samples were drawn.

    Raises:
        ConfigError: the design was changed, or the sweep lacks a pilot network.
    """
    if samples is None or config.sampling is None:
        return
    design, architectures = config.sampling.design(), set(config.selected_architectures)
    changed_fields = [field for field in design if design[field] != samples.design[field]]
    if changed_fields:
        field = changed_fields[0]
        raise ConfigError(
            f"Sampling failed for {config.results}: its samples were drawn with `sampling.{field}: "
            f"{samples.design[field]}`, but the sweep has {design[field]}. Restore the field, or choose another "
            "results folder."
        )
    missing_networks = [architecture for architecture in samples.pilot if architecture not in architectures]
    if missing_networks:
        raise ConfigError(
            f"Sampling failed for {config.results}: its samples were drawn with the pilot networks "
            f"{missing_networks[:5]}, which the sweep lacks. Add them to `architectures`, or choose another results "
            "folder."
        )
