"""Custom datasets give the same images from .npz, Parquet and class folders, and invalid files are rejected."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from robust201.core.errors import ConfigError, DatasetError
from robust201.images import load_images, select
from robust201.images.checks import LabelledImages
from robust201.images.specs import custom_dataset
from robust201.images.store import write_made_split
from tests.support.dataset_files import WRITERS, encode, fabricate

SPEC = custom_dataset("birds", n_classes=4, image_size=8)
IMAGES, LABELS = fabricate(SPEC, 13)


def save_npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("form", SPEC.forms)
def test_load_images_reads_a_custom_dataset(tmp_path: Path, form: str, split: str) -> None:
    WRITERS[form](tmp_path, SPEC, split, IMAGES, LABELS)
    loaded = load_images(SPEC, path=tmp_path, split=split)
    np.testing.assert_array_equal(loaded.images, IMAGES)
    np.testing.assert_array_equal(loaded.labels, LABELS)
    assert (loaded.dataset, loaded.n_classes, loaded.labels.dtype) == ("birds", 4, np.int64)
    assert len(select(loaded, count=5, seed=0)) == 5


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_load_images_reads_a_named_file(tmp_path: Path, form: str) -> None:
    (file,) = WRITERS[form](tmp_path, SPEC, "test", IMAGES, LABELS)
    np.testing.assert_array_equal(load_images(SPEC, path=file).images, IMAGES)


@pytest.mark.parametrize("array", ["images", "labels"])
def test_folder_of_arrays_is_read_with_its_hashes(tmp_path: Path, array: str) -> None:
    images = LabelledImages(IMAGES, LABELS)
    write_made_split(tmp_path, "test", images, recipe={}, n_classes=4)
    np.testing.assert_array_equal(load_images(SPEC, path=tmp_path).images, IMAGES)
    content = (tmp_path / f"test/{array}.npy").read_bytes()
    (tmp_path / f"test/{array}.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DatasetError, match=rf"{array}\.npy: expected sha256"):
        load_images(SPEC, path=tmp_path)
    (tmp_path / "test/made.json").unlink()
    with pytest.raises(DatasetError, match=r"made\.json does not list"):
        load_images(SPEC, path=tmp_path)


def test_npz_rejects_an_ambiguous_shape(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "mine.npz", images=np.zeros((2, 3, 3, 3), np.uint8), labels=np.zeros(2, np.int64))
    with pytest.raises(DatasetError, match=r"mine\.npz: shape \(2, 3, 3, 3\) is ambiguous"):
        load_images(custom_dataset("tiny", n_classes=4, image_size=3), path=file)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_npz_accepts_channels_first_and_any_integers(tmp_path: Path, dtype: type) -> None:
    file = save_npz(tmp_path / "mine.npz", images=IMAGES, labels=LABELS.astype(dtype), other=np.zeros(3))
    loaded = load_images(SPEC, path=file)
    np.testing.assert_array_equal(loaded.images, IMAGES)
    np.testing.assert_array_equal(loaded.labels, LABELS)


def test_npz_accepts_a_column_of_labels(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "mine.npz", images=IMAGES, labels=LABELS[:, None])
    np.testing.assert_array_equal(load_images(SPEC, path=file).labels, LABELS)


INVALID_ARRAYS = {
    "no labels": ({"images": IMAGES}, r"no array 'labels', only images"),
    "floats": (
        {"images": IMAGES / 255, "labels": LABELS},
        r"got float64 \(13, 3, 8, 8\)\. Convert pixels in \[0, 1\] with",
    ),
    "divided by 255": ({"images": np.minimum(IMAGES, 1), "labels": LABELS}, r"no pixel is above 1"),
    "another size": ({"images": IMAGES[..., :7], "labels": LABELS}, r"\(N, 8, 8, 3\).*got uint8 \(13, 3, 8, 7\)"),
    "grey": ({"images": IMAGES[:, 0], "labels": LABELS}, r"got uint8 \(13, 8, 8\)"),
    "no images": ({"images": IMAGES[:0], "labels": LABELS[:0]}, r"got uint8 \(0, 3, 8, 8\)"),
    "labels of another length": (
        {"images": IMAGES, "labels": LABELS[1:]},
        r"expected 13 integers, one per image, got int64 .*12,",
    ),
    "one-hot labels": ({"images": IMAGES, "labels": np.eye(4, dtype=int)[LABELS]}, r"got int64 of shape \(13, 4\)"),
    "labels that are not integers": ({"images": IMAGES, "labels": LABELS / 1}, r"expected 13 integers.*got float64"),
    "a label out of range": ({"images": IMAGES, "labels": LABELS + 1}, r"expected labels 0 to 3, got 4"),
    "a negative label": ({"images": IMAGES, "labels": LABELS - 1}, r"expected labels 0 to 3, got -1"),
    "pickled objects": ({"images": IMAGES, "labels": np.array([{}] * 13)}, "Object arrays"),
}


@pytest.mark.parametrize("fault", INVALID_ARRAYS)
def test_npz_rejects_invalid_arrays(tmp_path: Path, fault: str) -> None:
    arrays, message = INVALID_ARRAYS[fault]
    file = save_npz(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DatasetError, match=message) as error:
        load_images(SPEC, path=file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", pickle.dumps([1])], ids=["empty", "text", "a pickle"])
def test_npz_rejects_other_files(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.npz"
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=r"mine\.npz"):
        load_images(SPEC, path=file)


def test_npz_rejects_truncated_files(tmp_path: Path) -> None:
    file = save_npz(tmp_path / "mine.npz", images=IMAGES, labels=LABELS)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DatasetError, match=r"mine\.npz"):
        load_images(SPEC, path=file)


def test_load_images_lists_the_forms_if_there_are_no_images(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError,
        match=r"test\.npz or train\.npz \(npz\); or test\.parquet.*per class \(folders\), got none of these",
    ):
        load_images(SPEC, path=tmp_path)
    with pytest.raises(ConfigError, match=r"birds: expected one of npz, parquet, folders, got 'binary'"):
        load_images(SPEC, path=tmp_path, form="binary")


@pytest.mark.parametrize("column", ["img", "image"])
def test_parquet_of_hugging_face_is_read(tmp_path: Path, column: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8), dtype=np.uint8)
    cells = [{"bytes": encode(image), "path": None} for image in pixels]
    file = tmp_path / "test.parquet"
    parquet.write_table(pa.table({column: cells, "label": [2, 0, 1], "other": ["a", "b", "c"]}), file)
    images = load_images("mine", path=file)
    np.testing.assert_array_equal(images.images, pixels)
    assert images.labels.tolist() == [2, 0, 1]
    cells[1] = {"bytes": None, "path": "elsewhere.png"}
    parquet.write_table(pa.table({column: cells, "label": [2, 0, 1]}), file)
    with pytest.raises(DatasetError, match=r"no value in row 1 .*'elsewhere\.png'.* bytes of all images"):
        load_images("mine", path=file)
