"""Fixed blends of two datasets: pairs, labels, reproducible folders, rejected arguments."""

from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet
from robust201.images import load_images
from robust201.images.fusion import blend, pair, write_fusion
from robust201.images.specs import custom_dataset
from robust201.images.store import ArrayFolder
from tests.conftest import read_tree
from tests.training.test_data import numbered_images

FIRST_IMAGES, SECOND_IMAGES = numbered_images(40, "first"), numbered_images(25, "second", n_classes=5)


def read_folder(folder: Path, n_classes: int, size: int, split: str = "test") -> ImageSet:
    spec = custom_dataset("made", n_classes=n_classes, image_size=size)
    return load_images(spec, path=folder, split=split)  # type: ignore[arg-type]


def test_pair_uses_each_image_at_most_once() -> None:
    for n_first, n_second in ((40, 25), (25, 40), (30, 30)):
        first, second = pair(n_first, n_second, seed=3)
        assert (np.diff(first) > 0).all()
        assert len(first) == len(second) == len(set(second.tolist())) == min(n_first, n_second)
        assert first.max() < n_first
        assert second.max() < n_second
    assert not np.array_equal(pair(40, 25, 3)[1], pair(40, 25, 4)[1])


def test_write_fusion_writes_the_same_images_for_both_labels(tmp_path: Path) -> None:
    digests = [
        write_fusion(tmp_path / label, FIRST_IMAGES, SECOND_IMAGES, split="test", alpha=0.5, label=label, seed=0)  # type: ignore[arg-type]
        for label in ("first", "second")
    ]
    with_first_labels, with_second_labels = (
        read_folder(tmp_path / "first", 7, 4),
        read_folder(tmp_path / "second", 5, 4),
    )
    assert [with_first_labels.sha256, with_second_labels.sha256] == digests
    np.testing.assert_array_equal(with_first_labels.images, with_second_labels.images)
    made = ArrayFolder(tmp_path / "first/test")
    rows, second_rows = made.read("first_rows"), made.read("second_rows")
    np.testing.assert_array_equal(with_first_labels.labels, FIRST_IMAGES.labels[rows])
    np.testing.assert_array_equal(with_second_labels.labels, SECOND_IMAGES.labels[second_rows])
    np.testing.assert_array_equal(
        with_first_labels.images, blend(FIRST_IMAGES.images[rows], SECOND_IMAGES.images[second_rows], 0.5)
    )


def test_write_fusion_is_deterministic_and_does_not_overwrite_other_images(tmp_path: Path) -> None:
    def write(seed: int, folder: Path) -> dict[str, bytes]:
        write_fusion(folder, FIRST_IMAGES, SECOND_IMAGES, split="test", alpha=0.5, label="first", seed=seed)
        return read_tree(folder)

    content = write(0, tmp_path / "a")
    assert content == write(0, tmp_path / "a") == write(0, tmp_path / "b")
    with pytest.raises(DatasetError, match="`seed` 1, got images with 0"):
        write(1, tmp_path / "a")
    assert read_tree(tmp_path / "a") == content
    (tmp_path / "a/test/made.json").write_text("[]")
    with pytest.raises(DatasetError, match=r"made\.json"):
        write(0, tmp_path / "a")


def test_write_fusion_rejects_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a number from 0 to 1"):
        write_fusion(tmp_path, FIRST_IMAGES, SECOND_IMAGES, split="test", alpha=2, label="first", seed=0)
    with pytest.raises(DatasetError, match="expected images of equal size"):
        write_fusion(
            tmp_path, FIRST_IMAGES, numbered_images(5, "large", size=8), split="test", alpha=0.5, label="first", seed=0
        )
    assert not list(tmp_path.iterdir())
