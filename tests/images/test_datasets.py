"""Datasets and file formats (forms) are consistent, and loaders read small fabricated files in official layouts."""

import dataclasses
import gzip
import hashlib
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from robust201.core.errors import DatasetError
from robust201.core.records import Normalisation, image_hash
from robust201.images import DATASETS, dataset, load_images, select
from robust201.images.downloads import registry
from robust201.images.loading import FORMS
from robust201.images.specs import custom_dataset
from robust201.images.upscaling import upscale
from tests.support.dataset_files import (
    FILE_FORMS,
    REQUIRED_FORMS,
    WRITERS,
    encode,
    fabricate,
    idx_bytes,
    write_binary,
    write_idx,
    write_parquet,
    write_table,
)

# --- tables of datasets and forms


@pytest.mark.parametrize("name", DATASETS)
def test_dataset_spec_is_consistent(name):
    spec = dataset(name)
    assert spec.name == name
    assert len(set(spec.class_names)) == spec.n_classes
    assert all(form in FORMS for form in spec.forms)
    has_no_normalisation = spec.normalisation == Normalisation((0, 0, 0), (1, 1, 1)).of_channels(spec.channels)
    assert has_no_normalisation == (spec.folder_name == "mnist")
    assert has_no_normalisation or all(0 < value < 1 for value in (*spec.normalisation.mean, *spec.normalisation.std))
    assert spec.corruptions is None or spec.corruptions in registry.downloads()


def test_every_form_has_a_test_writer_and_a_dataset():
    assert set(FORMS) == {*WRITERS, "digits"}
    specs = (*DATASETS.values(), custom_dataset("custom", n_classes=2, image_size=8))
    assert {form for spec in specs for form in spec.forms} == set(FORMS)


def test_load_images_does_not_import_heavy_libraries_for_digits():
    code = (
        "import sys; from robust201.images import load_images; load_images('digits'); "
        "print([m for m in ('torch', 'pyarrow', 'sklearn', 'PIL') if m in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


# --- file forms


BIRDS = custom_dataset("birds", n_classes=4, image_size=8)
WRITTEN_FORMS = [*((dataset(name), form) for name, form in FILE_FORMS), *((BIRDS, form) for form in BIRDS.forms)]


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize(("spec", "form"), WRITTEN_FORMS, ids=lambda value: getattr(value, "name", value))
def test_load_images_preserves_pixels_labels_and_order(tmp_path, spec, form, split):
    images, labels = fabricate(spec, 23)
    files = WRITERS[form](tmp_path / "data", spec, split, images, labels)
    # The path may be the folder of the files, its parent, or a folder with a subfolder named after the dataset.
    (tmp_path / "above").mkdir()
    (tmp_path / "above" / spec.name).symlink_to(tmp_path / "data")
    paths = [tmp_path / "data"] if form == "folders" else [files[0].parent, tmp_path / "data", tmp_path / "above"]
    for path in paths:
        loaded = load_images(spec, form=REQUIRED_FORMS.get(spec.name), path=path, split=split, verify=False)
        assert loaded.images.dtype == np.uint8
        assert loaded.images.flags.c_contiguous
        assert loaded.labels.dtype == np.int64
        np.testing.assert_array_equal(loaded.images, images)
        np.testing.assert_array_equal(loaded.labels, labels)
        np.testing.assert_array_equal(loaded.indices, np.arange(23))
        assert loaded.sha256 == image_hash(images, labels, np.arange(23))
        assert (loaded.dataset, loaded.n_classes) == (spec.name, spec.n_classes)
        assert loaded.normalisation == spec.normalisation


@pytest.mark.parametrize(("name", "form"), FILE_FORMS)
def test_load_images_reports_a_missing_split_or_form(tmp_path, name, form):
    spec = dataset(name)
    WRITERS[form](tmp_path, spec, "test", *fabricate(spec, 5))
    with pytest.raises(DatasetError, match=r"expected|No such file"):
        load_images(name, path=tmp_path, form=form, split="train", verify=False)
    for other_form in set(spec.forms) - {form, "digits"}:
        with pytest.raises(DatasetError, match=rf"Loading the test images of {name} failed for .*\({other_form}\)"):
            load_images(name, path=tmp_path, form=other_form, verify=False)


def test_load_images_searches_the_data_folder_by_default(tmp_path, monkeypatch):
    spec = dataset("cifar10")
    images, labels = fabricate(spec, 4)
    write_parquet(tmp_path / "cifar10", spec, "test", images, labels)
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    np.testing.assert_array_equal(load_images("cifar10").images, images)


@pytest.mark.parametrize(("name", "form"), FILE_FORMS)
@pytest.mark.parametrize("label", [-1, "n_classes", 1001])
def test_load_images_reports_the_row_of_an_invalid_label(tmp_path, name, form, label):
    spec = dataset(name)
    images, labels = fabricate(spec, 6)
    labels[3] = spec.n_classes if label == "n_classes" else label
    if form in {"binary", "idx"} and not 0 <= labels[3] <= 255:
        labels[3] = 255  # these forms store labels as bytes
    if form == "imagenet16" and label == "n_classes":
        labels[3] = 1000  # the file then contains 1001, which is invalid; 121 to 1000 are other classes of ImageNet
    files = WRITERS[form](tmp_path, spec, "test", images, labels)
    # In the files of imagenet16, each image is followed by one of another class, so row 3 becomes row 6.
    with pytest.raises(DatasetError, match=rf"Reading labels failed for {files[0]}.* in row [36]"):
        load_images(name, form=REQUIRED_FORMS.get(name), path=tmp_path, verify=False)


# --- verification


def replace_published(
    monkeypatch: pytest.MonkeyPatch, name: str, entry: str, members: dict[str, registry.Checksum], count: int
) -> None:
    """Replace the checksums of a registry entry and the size of the test split with the values of fabricated files."""
    changed_entries = dict(registry.downloads())
    changed_entries[entry] = dataclasses.replace(changed_entries[entry], members=members)
    monkeypatch.setattr(registry, "downloads", lambda: changed_entries)
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], n_test=count))


VERIFIED_FORMS = [
    ("cifar10", "python", "cifar10-python"),
    ("cifar100", "python", "cifar100-python"),
    ("ImageNet16-120", "imagenet16", "ImageNet16-120"),
    ("cifar10", "binary", "cifar10"),
    ("cifar100", "binary", "cifar100"),
    ("mnist", "idx", "mnist"),
]


@pytest.mark.parametrize(("name", "form", "entry"), VERIFIED_FORMS)
def test_load_images_verifies_published_checksums(tmp_path, monkeypatch, name, form, entry):
    spec = dataset(name)
    images, labels = fabricate(spec, 7)
    *_, file = WRITERS[form](tmp_path, spec, "test", images, labels)
    with pytest.raises(DatasetError, match=f"Verifying failed for {file}: expected"):
        load_images(name, path=tmp_path, form=form)
    published_checksums = {file.name: registry.Checksum("md5", hashlib.md5(file.read_bytes()).hexdigest())}
    replace_published(monkeypatch, name, entry, published_checksums, 7)
    np.testing.assert_array_equal(load_images(name, path=tmp_path, form=form).images, images)
    replace_published(monkeypatch, name, entry, published_checksums, 8)
    with pytest.raises(DatasetError, match=f"expected the 8 test images of {name}, got 7"):
        load_images(name, path=tmp_path, form=form)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"Verifying failed for {file}: expected md5 \w{{32}}, got \w{{32}}"):
        load_images(name, path=tmp_path, form=form)


@pytest.mark.parametrize("size", [None, -1, 0])
def test_load_images_rejects_binary_files_of_wrong_size(tmp_path: Path, size: int | None) -> None:
    spec = dataset("cifar10")
    (file,) = write_binary(tmp_path, spec, "test", *fabricate(spec, 3))
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(DatasetError, match=rf"{file}: expected .* bytes, got"):
        load_images("cifar10", path=tmp_path, verify=size is None)


# --- damaged pickles


INVALID_BATCHES: dict[str, object] = {
    "no pixels": {"labels": [0]},
    "a list": [1, 2],
    "fewer labels": {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
    "floats": {"data": np.zeros((1, 3072), np.float32), "labels": [0]},
    "another size": {"data": np.zeros((1, 768), np.uint8), "labels": [0]},
    "float labels": {"data": np.zeros((1, 3072), np.uint8), "labels": [0.5]},
}


@pytest.mark.parametrize("fault", INVALID_BATCHES)
def test_load_images_rejects_invalid_pickles(tmp_path, fault):
    (tmp_path / "test_batch").write_bytes(pickle.dumps(INVALID_BATCHES[fault], protocol=2))
    with pytest.raises(DatasetError, match="test_batch"):
        load_images("cifar10", path=tmp_path, form="python", verify=False)


# --- parquet


def make_encoded_images(count: int = 3, size: int = 32) -> list[bytes | None]:
    return [encode(np.full((3, size, size), pixel_value, np.uint8)) for pixel_value in range(count)]


def test_load_images_decodes_jpeg_and_grey_images_to_rgb(tmp_path):
    uniform_image = np.stack([np.full((32, 32), channel_value, np.uint8) for channel_value in (200, 40, 90)])
    grey_png = io.BytesIO()
    Image.new("L", (32, 32), 77).save(grey_png, "PNG")
    file = write_table(tmp_path / "mine.parquet", [encode(uniform_image, "JPEG"), grey_png.getvalue()], [1, 2])
    images = load_images("cifar10", path=file).images
    assert np.abs(images[0].astype(int) - uniform_image).max() <= 3
    assert (images[1] == 77).all()


@pytest.mark.parametrize(
    ("images", "labels", "subject"),
    [
        ([*make_encoded_images(2), b"no image"], [0, 1, 2], "row 2"),
        ([*make_encoded_images(1), make_encoded_images(1)[0][:60]], [0, 1], "row 1"),  # type: ignore[index]
        ([*make_encoded_images(2), *make_encoded_images(1, 16)], [0, 1, 2], "row 2"),
        ([*make_encoded_images(2), None], [0, 1, 2], "'image' has no value in row 2"),
        (make_encoded_images(3), [0, None, 2], "'label' has no value in row 1"),
        ([], [], "no rows"),
    ],
)
def test_load_images_reports_the_row_of_an_invalid_parquet_value(tmp_path, images, labels, subject):
    file = write_table(tmp_path / "test.parquet", images, labels)
    with pytest.raises(DatasetError, match=f"{file}.*{subject}"):
        load_images("cifar10", path=tmp_path)


INVALID_COLUMNS = (
    {"image": pa.array(["text"]), "label": [1]},
    {"image": pa.array([b""], pa.binary()), "target": [1]},
    {"image": pa.array([b""], pa.binary()), "label": pa.array([1], pa.float32())},
    {"img": pa.array([b""], pa.binary()), "fine_label": [1]},
)


@pytest.mark.parametrize("table_or_n_bytes", [*INVALID_COLUMNS, 0, 10, 200, -4])
def test_load_images_rejects_truncated_parquet_files_and_invalid_columns(tmp_path, table_or_n_bytes):
    file = write_table(tmp_path / "test.parquet", make_encoded_images(3), [0, 1, 2])
    if isinstance(table_or_n_bytes, int):
        file.write_bytes(file.read_bytes()[:table_or_n_bytes])
    else:
        parquet.write_table(pa.table(table_or_n_bytes), file)
    with pytest.raises(DatasetError, match=r"test\.parquet"):
        load_images("cifar10", path=tmp_path)


# --- real data


@pytest.mark.shared
def test_load_images_reads_real_cifar10(shared_data):
    images = load_images("cifar10", path=shared_data)
    assert images.images.shape == (10_000, 3, 32, 32)
    assert np.bincount(images.labels).tolist() == [1000] * 10
    spec = dataset("cifar10")
    means = images.images.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, spec.normalisation.mean, atol=0.02)
    assert np.bincount(select(images, count=200, seed=0).labels).tolist() == [20] * 10


# --- MNIST


def write_mnist(root: Path, count: int = 5) -> tuple[Path, Path]:
    """Write the test split, and return the paths of the labels (not compressed) and the images (gzip)."""
    spec = dataset("mnist")
    labels, images = write_idx(root, spec, "test", *fabricate(spec, count))
    return labels, images


def test_load_images_upscales_mnist(tmp_path):
    _, file = write_mnist(tmp_path, 1)
    pixels = np.arange(784, dtype=np.uint8).reshape(1, 28, 28)
    file.with_suffix("").write_bytes(idx_bytes(pixels))
    file.unlink()
    loaded = load_images("mnist", path=tmp_path, verify=False)
    np.testing.assert_array_equal(loaded.images, upscale(pixels, 32, 255))


IDX_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "three bytes": lambda content: content[:3],
    "floats": lambda content: content[:2] + b"\x0d" + content[3:],
    "truncated": lambda content: content[:-1],
    "no images": lambda content: idx_bytes(np.zeros((0, 28, 28), np.uint8)),
    "another size": lambda content: idx_bytes(np.zeros((5, 14, 56), np.uint8)),
    "fewer images than labels": lambda content: idx_bytes(np.zeros((4, 28, 28), np.uint8)),
}
GZIP_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _content: b"",
    "no gzip": lambda _content: b"no gzip",
    "truncated gzip": lambda content: content[:-3],
}


@pytest.mark.parametrize("damage", [*IDX_DAMAGES, *GZIP_DAMAGES])
def test_load_images_rejects_damaged_idx_files(tmp_path, damage):
    _, file = write_mnist(tmp_path)
    content = gzip.compress(IDX_DAMAGES.get(damage, bytes)(gzip.decompress(file.read_bytes())))
    file.write_bytes(GZIP_DAMAGES.get(damage, bytes)(content))
    with pytest.raises(DatasetError, match=r"10k-(images|labels)"):
        load_images("mnist", path=tmp_path, verify=False)
