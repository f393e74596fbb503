"""robust201 writes folders of images: blends of two datasets, and converted datasets of robust features."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet
from robust201.images import load_images
from robust201.images.fusion import blend, pair, write_fusion
from robust201.images.specs import custom_dataset
from robust201.images.torch_images import Rounding, import_torch_images
from robust201.training.data import Fusion
from tests.training.test_data import numbered_images

# --- fixed blends

FIRST_IMAGES, SECOND_IMAGES = numbered_images(40, "first"), numbered_images(25, "second", n_classes=5)


def read_folder(folder: Path, n_classes: int, size: int, split: str = "test") -> ImageSet:
    spec = custom_dataset("made", n_classes=n_classes, image_size=size)
    return load_images(spec, path=folder, split=split)  # type: ignore[arg-type]


def test_pair_uses_each_image_at_most_once() -> None:
    for n_first, n_second in ((40, 25), (25, 40), (30, 30)):
        pairs = pair(n_first, n_second, seed=3)
        count = min(n_first, n_second)
        assert (np.diff(pairs.first) > 0).all()
        assert len(pairs.first) == len(pairs.second) == len(set(pairs.second.tolist())) == count
        assert pairs.first.max() < n_first
        assert pairs.second.max() < n_second
    assert not np.array_equal(pair(40, 25, 3).second, pair(40, 25, 4).second)


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
    with np.load(tmp_path / "first/test.npz") as arrays:
        rows, second_rows = arrays["first_rows"], arrays["second_rows"]
    np.testing.assert_array_equal(with_first_labels.labels, FIRST_IMAGES.labels[rows])
    np.testing.assert_array_equal(with_second_labels.labels, SECOND_IMAGES.labels[second_rows])
    np.testing.assert_array_equal(
        with_first_labels.images, blend(FIRST_IMAGES.images[rows], SECOND_IMAGES.images[second_rows], 0.5)
    )


def test_write_fusion_is_deterministic_and_does_not_overwrite_other_images(tmp_path: Path) -> None:
    def write(seed: int, folder: Path) -> list[bytes]:
        write_fusion(folder, FIRST_IMAGES, SECOND_IMAGES, split="test", alpha=0.5, label="first", seed=seed)
        return [(folder / name).read_bytes() for name in ("test.npz", "test.json")]

    content = write(0, tmp_path / "a")
    assert content == write(0, tmp_path / "a") == write(0, tmp_path / "b")
    with pytest.raises(DatasetError, match=r"expected images with `seed` 1, got images with 0"):
        write(1, tmp_path / "a")
    (tmp_path / "a/test.json").write_text("[]")
    with pytest.raises(DatasetError, match="the file is not a manifest of images"):
        write(0, tmp_path / "a")
    (tmp_path / "a/test.json").unlink()
    with pytest.raises(DatasetError, match=r"the file exists without its manifest test\.json"):
        write(0, tmp_path / "a")
    assert (tmp_path / "a/test.npz").read_bytes() == content[0]


def test_write_fusion_rejects_invalid_arguments(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a number from 0 to 1"):
        write_fusion(tmp_path, FIRST_IMAGES, SECOND_IMAGES, split="test", alpha=2, label="first", seed=0)
    with pytest.raises(DatasetError, match="expected images of equal size"):
        write_fusion(
            tmp_path, FIRST_IMAGES, numbered_images(5, "large", size=8), split="test", alpha=0.5, label="first", seed=0
        )
    assert not list(tmp_path.iterdir())


def test_write_fusion_records_the_blended_rows(tmp_path: Path) -> None:
    write_fusion(tmp_path, FIRST_IMAGES, FIRST_IMAGES, split="test", alpha=0.3, label="first", seed=0)
    with np.load(tmp_path / "test.npz") as arrays:
        blends = {tuple(pixels.ravel()) for pixels in arrays["images"]}
        rows = list(zip(arrays["first_rows"], arrays["second_rows"], strict=True))
    assert {tuple(blend(FIRST_IMAGES.images[a], FIRST_IMAGES.images[b], 0.3).ravel()) for a, b in rows} == blends
    # Blends for training have the same shape.
    (batch,) = Fusion(FIRST_IMAGES, FIRST_IMAGES, 0.3).batches(40, 0, 0)
    assert batch.pixels.shape == (40, 3, 4, 4)


# --- published robust features

SAVE_OPTIONS = {
    "zip": {"_use_new_zipfile_serialization": True},
    "legacy": {"_use_new_zipfile_serialization": False},
}


def write_torch_files(folder: Path, images: object, labels: object, file_format: str = "zip") -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    files = folder / "CIFAR_ims", folder / "CIFAR_lab"
    for file, content in zip(files, (images, labels), strict=True):
        torch.save(content, file, **SAVE_OPTIONS[file_format])  # type: ignore[arg-type]
    return files


def make_tensors(count: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.rand((count, 3, 8, 8), generator=rng), torch.randint(0, 10, (count,), generator=rng)


@pytest.mark.parametrize("file_format", SAVE_OPTIONS)
@pytest.mark.parametrize("has_batches", [False, True])
@pytest.mark.parametrize("rounding", ["half-up", "down"])
def test_import_torch_images_converts_published_images(
    tmp_path: Path, file_format: str, has_batches: bool, rounding: Rounding
) -> None:
    images, labels = make_tensors()
    images.flatten()[:3] = torch.tensor([0.0, 1.0, 0.5])
    images.requires_grad_()  # like images computed by gradient descent
    saved = (list(images.split(5)), list(labels.split(5))) if has_batches else (images, labels)
    write_torch_files(tmp_path / "source", *saved, file_format)
    assert import_torch_images(tmp_path / "source", tmp_path / "out", n_classes=10, rounding=rounding) == 8
    loaded = read_folder(tmp_path / "out", 10, 8, "train")
    exact = images.detach().double().numpy() * 255
    difference = exact - loaded.images
    min_difference, max_difference = (-0.5, 0.5) if rounding == "half-up" else (0, 1)
    assert difference.min() >= min_difference
    assert difference.max() < max_difference
    assert loaded.images.flatten()[:3].tolist() == [0, 255, 128 if rounding == "half-up" else 127]
    np.testing.assert_array_equal(loaded.labels, labels.numpy())
    recipe = json.loads((tmp_path / "out/train.json").read_text())["made"]
    assert recipe["checksums"] == "unknown: not compared"
    assert recipe["rounding"] == f"{rounding} to 8 bits"


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.zeros(4, 3, 8, 8),
            torch.zeros(3, dtype=torch.int64),
            r"expected 3 float images .*, one per label, got 4 images",
        ),
        (torch.zeros(3, 3, 8, 9), torch.zeros(3, dtype=torch.int64), r"got float32 \(3, 3, 8, 9\)"),
        (torch.zeros(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64), r"got float32 \(3, 1, 8, 8\)"),
        (torch.zeros(3, 3, 8, 8, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "got uint8"),
        (
            [torch.zeros(2, 3, 8, 8), torch.zeros(1, 3, 4, 4)],
            torch.zeros(3, dtype=torch.int64),
            r"got float32 \(1, 3, 4, 4\)",
        ),
        (torch.tensor(1.0), torch.zeros(3, dtype=torch.int64), r"got float32 \(\)"),
        (torch.full((3, 3, 8, 8), 1.01), torch.zeros(3, dtype=torch.int64), r"in \[0, 1\], got 1\.01"),
        (torch.full((3, 3, 8, 8), float("nan")), torch.zeros(3, dtype=torch.int64), "got nan"),
        (torch.zeros(3, 3, 8, 8), torch.zeros(3), r"expected integers \(N,\), got float32 \(3,\)"),
        (torch.zeros(3, 3, 8, 8), torch.zeros((3, 1), dtype=torch.int64), r"got int64 \(3, 1\)"),
        (torch.zeros(3, 3, 8, 8), torch.tensor([0, 10, 1]), "expected labels 0 to 9, got 10 in row 1"),
        (torch.zeros(3, 3, 8, 8), [], "got an empty list"),
        (torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.int64), "the file has no labels"),
        (
            torch.zeros(3, 3, 8, 8).to_sparse(),
            torch.zeros(3, dtype=torch.int64),
            "expected dense tensors on the CPU, .* Save dense CPU tensors",
        ),
        (
            torch.zeros(3, 3, 8, 8, device="meta"),
            torch.zeros(3, dtype=torch.int64),
            "got a tensor with layout .* on device meta",
        ),
        (
            torch.zeros(3, 3, 8, 8),
            torch.zeros(3, dtype=torch.int64).to_sparse(),
            "labels.* with layout torch.sparse_coo",
        ),
        ({"ims": torch.zeros(3, 3, 8, 8)}, torch.zeros(3, dtype=torch.int64), "images.*got an object of type dict"),
    ],
)
def test_import_torch_images_rejects_invalid_files(
    tmp_path: Path, images: object, labels: object, message: str
) -> None:
    write_torch_files(tmp_path / "source", images, labels)
    with pytest.raises(DatasetError, match=message) as error:
        import_torch_images(tmp_path / "source", tmp_path / "out", n_classes=10)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_import_torch_images_accepts_empty_batches(tmp_path: Path) -> None:
    images, labels = make_tensors()
    write_torch_files(tmp_path / "source", [images[:0], images], [labels[:0], labels])
    import_torch_images(tmp_path / "source", tmp_path / "out", n_classes=10)
    np.testing.assert_array_equal(read_folder(tmp_path / "out", 10, 8, "train").labels, labels)


class Malicious:
    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, (f"touch {self._marker}",)


@pytest.mark.parametrize("file_format", SAVE_OPTIONS)
@pytest.mark.parametrize("malicious_file", [0, 1])
def test_import_torch_images_does_not_execute_pickles(tmp_path: Path, file_format: str, malicious_file: int) -> None:
    contents: list[object] = [*make_tensors()]
    contents[malicious_file] = Malicious(tmp_path / "executed")
    write_torch_files(tmp_path / "source", *contents, file_format)
    with pytest.raises(DatasetError, match=r"got a file that names (posix|os|nt)\.system"):
        import_torch_images(tmp_path / "source", tmp_path / "out", n_classes=10)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("file_format", SAVE_OPTIONS)
@pytest.mark.parametrize("end", [0, 2, 100, -50])
def test_import_torch_images_rejects_truncated_files(tmp_path: Path, file_format: str, end: int) -> None:
    images_path, _ = write_torch_files(tmp_path / "source", *make_tensors(), file_format)
    images_path.write_bytes(images_path.read_bytes()[:end])
    with pytest.raises(DatasetError, match=r"expected a torch\.save file") as error:
        import_torch_images(tmp_path / "source", tmp_path / "out", n_classes=10)
    assert "\n" not in str(error.value)
