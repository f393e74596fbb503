"""Files of custom datasets are read, and invalid files are rejected; see also `test_datasets`."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from robust201.core.errors import ConfigError, DatasetError
from robust201.images import load_images
from robust201.images.checks import LabelledImages
from robust201.images.specs import custom_dataset
from robust201.images.store import write_generated_split
from tests.support.dataset_files import WRITERS, encode, fabricate

SPEC = custom_dataset("birds", n_classes=4, image_size=8)
IMAGES, LABELS = fabricate(SPEC, 13)


def save_npz(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_load_images_reads_a_named_file(tmp_path, form):
    (file,) = WRITERS[form](tmp_path, SPEC, "test", IMAGES, LABELS)
    np.testing.assert_array_equal(load_images(SPEC, path=file).images, IMAGES)


@pytest.mark.parametrize("array", ["images", "labels"])
def test_folder_of_arrays_is_read_and_its_hashes_are_verified(tmp_path, array):
    images = LabelledImages(IMAGES, LABELS)
    write_generated_split(tmp_path, "test", images, recipe={}, n_classes=4)
    np.testing.assert_array_equal(load_images(SPEC, path=tmp_path).images, IMAGES)
    content = (tmp_path / f"test/{array}.npy").read_bytes()
    (tmp_path / f"test/{array}.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DatasetError, match=rf"{array}\.npy: expected sha256"):
        load_images(SPEC, path=tmp_path)
    (tmp_path / "test/made.json").unlink()
    with pytest.raises(DatasetError, match=r"a file that made\.json lists"):
        load_images(SPEC, path=tmp_path)


@pytest.mark.parametrize("labels", [LABELS.astype(np.uint8), LABELS.astype(np.int16), LABELS[:, None]])
def test_npz_accepts_channels_first_images_and_any_integer_labels(tmp_path, labels):
    file = save_npz(tmp_path / "mine.npz", images=IMAGES, labels=labels, other=np.zeros(3))
    loaded = load_images(SPEC, path=file)
    np.testing.assert_array_equal(loaded.images, IMAGES)
    np.testing.assert_array_equal(loaded.labels, LABELS)


INVALID_ARRAYS: dict[str, dict[str, object]] = {
    "no labels": {"images": IMAGES},
    "floats": {"images": IMAGES / 255, "labels": LABELS},
    "divided by 255": {"images": np.minimum(IMAGES, 1), "labels": LABELS},
    "another size": {"images": IMAGES[..., :7], "labels": LABELS},
    "an ambiguous shape": {"images": np.zeros((13, 3, 3, 3), np.uint8), "labels": LABELS},
    "grey": {"images": IMAGES[:, 0], "labels": LABELS},
    "no images": {"images": IMAGES[:0], "labels": LABELS[:0]},
    "labels of another length": {"images": IMAGES, "labels": LABELS[1:]},
    "one-hot labels": {"images": IMAGES, "labels": np.eye(4, dtype=int)[LABELS]},
    "labels that are not integers": {"images": IMAGES, "labels": LABELS / 1},
    "a label out of range": {"images": IMAGES, "labels": LABELS + 1},
    "a negative label": {"images": IMAGES, "labels": LABELS - 1},
    "pickled objects": {"images": IMAGES, "labels": np.array([{}] * 13)},
}
OTHER_FILES = {"empty": b"", "text": b"plain text", "a pickle": pickle.dumps([1])}


@pytest.mark.parametrize("fault", [*INVALID_ARRAYS, *OTHER_FILES, "truncated"])
def test_npz_rejects_invalid_files(tmp_path, fault):
    file = save_npz(tmp_path / "mine.npz", **INVALID_ARRAYS.get(fault, {"images": IMAGES, "labels": LABELS}))
    if fault not in INVALID_ARRAYS:
        file.write_bytes(OTHER_FILES.get(fault, file.read_bytes()[:-40]))
    with pytest.raises(DatasetError, match=str(file)):
        load_images(SPEC, path=file)


def test_load_images_lists_the_forms_if_there_are_no_images(tmp_path):
    with pytest.raises(
        DatasetError,
        match=r"test\.npz or train\.npz \(npz\); or test\.parquet.*per class \(folders\), got none of these",
    ):
        load_images(SPEC, path=tmp_path)
    with pytest.raises(ConfigError, match=r"birds: expected one of npz, parquet, folders, got 'binary'"):
        load_images(SPEC, path=tmp_path, form="binary")


@pytest.mark.parametrize("column", ["img", "image"])
def test_hugging_face_parquet_is_read_and_missing_bytes_are_rejected(tmp_path, column):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 8), dtype=np.uint8)
    encoded_images = [{"bytes": encode(image), "path": None} for image in pixels]
    file = tmp_path / "test.parquet"
    parquet.write_table(pa.table({column: encoded_images, "label": [2, 0, 1], "other": ["a", "b", "c"]}), file)
    images = load_images("mine", path=file)
    np.testing.assert_array_equal(images.images, pixels)
    assert images.labels.tolist() == [2, 0, 1]
    encoded_images[1] = {"bytes": None, "path": "elsewhere.png"}
    parquet.write_table(pa.table({column: encoded_images, "label": [2, 0, 1]}), file)
    with pytest.raises(DatasetError, match=r"no value in row 1 .*'elsewhere\.png'.* bytes of all images"):
        load_images("mine", path=file)
