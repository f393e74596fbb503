"""Folders of corrupted images (fog, frost, …) are generated, resumed after a kill, read and verified."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, StorageFullError
from robust201.core.records import ImageSet, image_hash
from robust201.corruptions import folder as generation
from robust201.corruptions.folder import generate_corruptions
from robust201.corruptions.generator import GENERATOR_VERSION, corrupt
from robust201.images import corrupted as corrupted_module
from robust201.images.corrupted import CorruptedStore, open_published
from robust201.images.downloads.registry import Checksum, Download
from robust201.images.downloads.registry import find_download as published_download
from tests.conftest import read_tree
from tests.support.natural_images import image_set, stripes

FROST = stripes()
KEYS = ("fog", "frost", "pixelate")
N_PUBLISHED = 40


def select_positions(images: ImageSet, positions: list[int]) -> ImageSet:
    arrays = (images.images[positions], images.labels[positions], images.indices[positions])
    return replace(images, images=arrays[0], labels=arrays[1], indices=arrays[2], sha256=image_hash(*arrays))


def generate(folder: Path, images: ImageSet, keys: tuple[str, ...] = KEYS) -> None:
    generate_corruptions(folder, images, keys=keys, seed=7, frost=FROST)


@pytest.fixture
def published_data(tmp_path: Path) -> tuple[Path, ImageSet]:
    """Return a folder in the published layout for a split of 40 images, and that split."""
    full_split = image_set(N_PUBLISHED)
    full_split = replace(full_split, indices=np.arange(N_PUBLISHED))
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(full_split.labels, 5).astype(np.uint8))
    pixels = full_split.images.transpose(0, 2, 3, 1)
    for offset, key in enumerate(("fog", "snow")):
        images_by_severity = [pixels + np.uint8(10 * offset + severity_index) for severity_index in range(5)]
        np.save(folder / f"{key}.npy", np.concatenate(images_by_severity))
    return folder, full_split


def open_folder(folder: Path, images: ImageSet, **options: Any) -> CorruptedStore:
    return open_published(folder, images, **({"n_images": N_PUBLISHED, "keys": ("fog", "snow")} | options))


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_generated_files_have_the_pixels_of_the_generator(tmp_path):
    images = image_set(6)
    generate(tmp_path, images)
    pixels = np.load(tmp_path / "fog.npy").reshape(5, 6, 32, 32, 3)
    clean_images = images.images.transpose(0, 2, 3, 1)
    for severity in (1, 5):
        expected = corrupt(clean_images, "fog", severity, seed=7, indices=images.indices, frost=FROST)
        assert (pixels[severity - 1] == expected).all()
    selection = select_positions(images, [1, 4])
    generate(tmp_path / "selection", selection, ("fog",))
    assert (np.load(tmp_path / "selection" / "fog.npy").reshape(5, 2, 32, 32, 3) == pixels[:, [1, 4]]).all()


def test_generated_folder_has_the_published_layout(tmp_path):
    images = image_set(6)
    generate(tmp_path, images)
    for key in KEYS:
        array = np.load(tmp_path / f"{key}.npy")
        assert array.shape == (30, 32, 32, 3)
        assert array.dtype == np.uint8
        np.save(tmp_path / "again.npy", array)
        assert (tmp_path / "again.npy").read_bytes() == (tmp_path / f"{key}.npy").read_bytes()
    assert (np.load(tmp_path / "labels.npy") == np.tile(images.labels, 5)).all()
    assert (np.load(tmp_path / "indices.npy") == images.indices).all()
    arrays = json.loads((tmp_path / "made.json").read_text())["arrays"]
    assert arrays["labels"]["recipe"] == {"dataset": "cifar10", "images_sha256": images.sha256}
    assert arrays["fog"]["recipe"] == {"generator_version": GENERATOR_VERSION, "seed": 7}
    assert arrays["frost"]["recipe"]["frost"] == {"name": "stripes", "sha256": FROST.sha256}
    assert set(arrays["fog"]["info"]["libraries"]) >= {"numpy", "scipy", "pillow", "libjpeg"}
    for name, record in arrays.items():
        assert record["sha256"] == hashlib.sha256((tmp_path / f"{name}.npy").read_bytes()).hexdigest()


def test_generated_files_do_not_depend_on_the_block_size(tmp_path, monkeypatch):
    images = image_set(5)
    progress_calls: list[tuple[int, int]] = []
    progress = lambda done, total: progress_calls.append((done, total))  # noqa: E731
    generate_corruptions(tmp_path / "one", images, keys=KEYS, seed=7, frost=FROST, progress=progress)
    assert progress_calls[-1] == (75, 75)
    monkeypatch.setattr(generation, "_BLOCK_IMAGES", 2)
    generate_corruptions(tmp_path / "blocks", images, keys=KEYS, seed=7, frost=FROST)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "blocks")


def test_generate_writes_only_missing_files(tmp_path):
    images = image_set(4)
    generate(tmp_path, images, ("fog",))
    modified_ns = (tmp_path / "fog.npy").stat().st_mtime_ns
    generate(tmp_path, images)
    assert (tmp_path / "fog.npy").stat().st_mtime_ns == modified_ns
    (tmp_path / "frost.npy").unlink()
    original_tree = read_tree(tmp_path)
    generate(tmp_path, images)
    assert set(read_tree(tmp_path)) == {*original_tree, "frost.npy"}


@pytest.mark.parametrize("n_images_until_kill", [0, 3, 4, 21, 33])
def test_generate_resumes_after_a_kill(tmp_path, monkeypatch, n_images_until_kill):
    images = image_set(4)
    generate(tmp_path / "whole", images, ("fog", "pixelate"))

    def corrupt_until_kill(*args: object, **options: object) -> NDArray[np.uint8]:
        if len(calls) >= n_images_until_kill:
            raise KeyboardInterrupt
        calls.append(0)
        return corrupt(*args, **options)  # type: ignore[arg-type]

    calls: list[int] = []
    folder = tmp_path / "killed"
    monkeypatch.setattr(generation, "_BLOCK_IMAGES", 1)
    monkeypatch.setattr(generation, "corrupt", corrupt_until_kill)
    with pytest.raises(KeyboardInterrupt):
        generate(folder, images, ("fog", "pixelate"))
    monkeypatch.undo()
    # A process killed with -9 also leaves the temporary file, and may leave a complete file outside the manifest.
    (folder / ".pixelate.npy.0123456789ab.tmp").write_bytes(b"part of a file")
    (folder / "pixelate.npy").write_bytes(b"complete, but not in the manifest")
    generate(folder, images, ("fog", "pixelate"))
    assert read_tree(folder) == read_tree(tmp_path / "whole")


@pytest.mark.parametrize(
    ("settings", "field"), [({"seed": 8}, "seed"), ({"frost": replace(FROST, name="photos")}, "frost")]
)
def test_generate_rejects_a_folder_with_another_recipe_or_other_images(tmp_path, settings, field):
    images = image_set(3)
    generate(tmp_path, images)
    original_tree = read_tree(tmp_path)
    with pytest.raises(DatasetError, match=rf"frost\.npy: expected images with `{field}`"):
        generate_corruptions(tmp_path, images, keys=("frost",), **({"seed": 7, "frost": FROST} | settings))
    with pytest.raises(DatasetError, match=r"labels\.npy: expected images with `images_sha256`"):
        generate(tmp_path, image_set(5), ("snow",))
    assert read_tree(tmp_path) == original_tree


@pytest.mark.parametrize("fault", ["truncated", "empty", "another shape", "a pickle"])
def test_store_rejects_damaged_files(published_data, fault):
    folder, full_split = published_data
    path = folder / "fog.npy"
    if fault in {"truncated", "empty"}:
        path.write_bytes(path.read_bytes()[: 5000 if fault == "truncated" else 0])
    else:
        array = np.zeros((200, 16, 16, 3), np.uint8) if fault == "another shape" else np.array([print], dtype=object)
        np.save(path, array, allow_pickle=True)
    with pytest.raises(DatasetError, match=r"fog\.npy: expected uint8 \(200, 32, 32, 3\), got"):
        open_folder(folder, full_split)


@pytest.mark.parametrize("change", [lambda text: text[:40], lambda _: "[]", lambda t: t.replace("recipe", "receipt")])
def test_generate_rejects_damaged_manifests(tmp_path, change):
    generate(tmp_path, image_set(3), ("fog",))
    path = tmp_path / "made.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(DatasetError, match=r"made\.json"):
        generate(tmp_path, image_set(3), ("fog",))


def test_generated_and_published_folders_are_not_interchangeable(tmp_path, published_data):
    folder, full_split = published_data
    original_tree = read_tree(folder)
    with pytest.raises(DatasetError, match="may be published"):
        generate(folder, full_split)
    assert read_tree(folder) == original_tree
    generated_path = tmp_path / "generated"
    generate(generated_path, full_split)
    for _ in range(2):
        with pytest.raises(DatasetError, match="got images that robust201 generated"):
            open_folder(generated_path, full_split)
        (generated_path / "made.json").unlink(missing_ok=True)


def test_open_published_reads_published_files(published_data):
    folder, full_split = published_data
    selection = select_positions(full_split, [3, 17, 39])
    for path in (folder, folder.parent):
        store = open_folder(path, selection)
        assert store.source == "published"
        for severity in range(1, 6):
            expected = selection.images[[2, 0]] + np.uint8(10 + severity - 1)
            assert (store("snow", severity, np.array([39, 3])) == expected).all()
    assert store.identity("snow") == {"source": "published", "sha256": store.digest("snow")}
    full_store = open_folder(folder, full_split)
    assert full_store.digest("snow") != store.digest("snow")


def test_open_published_with_verify_checks_md5(published_data, monkeypatch):
    folder, full_split = published_data
    with pytest.raises(DatasetError, match=r"fog\.npy: expected md5 7b397314b5670f825465fbcd1f6e9ccd, got "):
        open_folder(folder, full_split, verify=True)

    names = ("fog.npy", "snow.npy", "labels.npy")
    checksums = {name: Checksum("md5", hashlib.md5((folder / name).read_bytes()).hexdigest()) for name in names}

    def download_with_checksums(name: str) -> Download:
        return replace(published_download(name), members=checksums)

    with monkeypatch.context() as patch:
        patch.setattr(corrupted_module, "find_download", download_with_checksums)
        open_folder(folder, full_split, verify=True)
        flip_last_bit(folder / "snow.npy")
        open_folder(folder, full_split, keys=["fog"], verify=True)
        with pytest.raises(DatasetError, match=r"snow\.npy: expected md5 "):
            open_folder(folder, full_split, verify=True)


def test_open_published_rejects_invalid_files(published_data):
    folder, full_split = published_data
    sorted_by_class = replace(full_split, labels=np.sort(full_split.labels))
    for images, options, subject in (
        (full_split, {"keys": ["frost"]}, r"frost\.npy"),
        (full_split, {"n_images": 100}, r"labels\.npy"),
        (replace(full_split, dataset="digits"), {}, "digits"),
        (sorted_by_class, {}, "the same images in another order"),
    ):
        with pytest.raises(DatasetError, match=subject):
            open_folder(folder, images, **options)
    shutil.rmtree(folder)
    with pytest.raises(DatasetError, match=r"labels\.npy of CIFAR-10-C is neither .*robust201 fetch CIFAR-10-C"):
        open_folder(folder, full_split)


def test_generate_reports_a_full_disk(tmp_path, monkeypatch):
    images = image_set(3)
    generate(tmp_path, images, ("fog",))

    def raise_disk_full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    original_tree = read_tree(tmp_path)
    monkeypatch.setattr("robust201.core.files.os.fsync", raise_disk_full)
    with pytest.raises(StorageFullError, match="the disk is full"):
        generate(tmp_path, images)
    assert read_tree(tmp_path) == original_tree
