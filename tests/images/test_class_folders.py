"""Class folders have torchvision's order and resize rule, an optional labels file, and clear errors if invalid."""

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from robust201.core.errors import ConfigError, DatasetError
from robust201.images import Resize, load_images, select
from robust201.images.specs import custom_dataset


def write_random_image(
    file: Path, height: int = 8, width: int = 8, seed: int = 0, mode: str = "RGB"
) -> NDArray[np.uint8]:
    """Write a random image; return its pixels (H, W, 3) or (H, W)."""
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels, mode).save(file)
    return pixels


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    file_names = ("owl/b.png", "owl/a.PNG", "Zebra/x.jpg", "finch/deeper/c.jpeg", "finch/d.png", "finch/notes.txt")
    for seed, file_name in enumerate(file_names):
        if file_name.endswith("txt"):
            (tmp_path / file_name).write_text("not an image")
        else:
            write_random_image(tmp_path / file_name, seed=seed)
    return tmp_path


ORDERED_FILES = ("Zebra/x.jpg", "finch/d.png", "finch/deeper/c.jpeg", "owl/a.PNG", "owl/b.png")
"""The images of the fixture `folder` in torchvision's order."""


def test_class_folders_have_the_order_of_torchvision(folder):
    images = load_images("birds", path=folder)
    assert images.class_names == ("Zebra", "finch", "owl")
    assert images.labels.tolist() == [0, 1, 1, 2, 2]
    with pytest.raises(DatasetError, match="expected 4 class folders, one per class, got 3"):
        load_images(custom_dataset("birds", n_classes=4, image_size=8), path=folder)
    for pixels, file in zip(images.images, ORDERED_FILES, strict=True):
        with Image.open(folder / file) as image:
            np.testing.assert_array_equal(pixels.transpose(1, 2, 0), np.asarray(image))
    assert (images.n_classes, images.n_split) == (3, 5)


@pytest.mark.parametrize("resampling", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("size", [(37, 61), (61, 37), (40, 40), (24, 24), (25, 24), (12, 31)])
def test_resize_rule_matches_torchvision(tmp_path, size, resampling):
    """The expected pixels follow torchvision's documented rounding in Resize(24) and CenterCrop(17)."""
    height, width = size
    pixels = write_random_image(tmp_path / "a" / "image.png", height, width)
    spec = custom_dataset("photos", n_classes=1, image_size=17, resize=Resize(24, resampling))
    loaded = load_images(spec, path=tmp_path)
    shape = (24, int(24 * width / height)) if height <= width else (int(24 * height / width), 24)
    image = Image.fromarray(pixels)
    if shape != size:
        image = image.resize(shape[::-1], Image.Resampling[resampling.upper()])
    top, left = (round((length - 17) / 2.0) for length in shape)
    expected = np.asarray(image)[top : top + 17, left : left + 17]
    np.testing.assert_array_equal(loaded.images[0].transpose(1, 2, 0), expected)


@pytest.mark.parametrize(("colour_type", "n_channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
def test_decoder_rejects_16_bit_images(tmp_path, colour_type, n_channels):
    def chunk(name: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    scan_line = b"\0" + bytes(range(1, 9)) * 2 * n_channels  # no filter, 8 pixels of 2 bytes per channel
    header = struct.pack(">IIBBBBB", 8, 8, 16, colour_type, 0, 0, 0)
    png = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(scan_line * 8)) + chunk(b"IEND", b"")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "sixteen_bits.png").write_bytes(b"\x89PNG\r\n\x1a\n" + png)
    with pytest.raises(DatasetError, match=r"sixteen_bits\.png.*expected 8 bits per channel"):
        load_images("photos", path=tmp_path)


def test_labels_file_determines_class_numbers(folder):
    labels = json.dumps({"owl": 7, "finch": 900, "Zebra": 3, "unused": 1})
    (folder / "labels.json").write_text(labels, encoding="utf-8-sig")  # with a byte order mark
    images = load_images("birds", path=folder)
    assert images.labels.tolist() == [3, 900, 900, 7, 7]
    assert (images.class_names, images.n_classes) == ((), 901)
    assert load_images(custom_dataset("birds", n_classes=1000, image_size=8), path=folder).n_classes == 1000


def test_selection_decodes_only_the_selected_images(folder):
    all_images = load_images("birds", path=folder)
    selected = select(all_images, count=3, seed=1)
    for row in set(range(5)) - set(selected.indices.tolist()):
        (folder / ORDERED_FILES[row]).write_bytes(b"not an image")
    loaded = load_images("birds", path=folder, count=3, seed=1)
    np.testing.assert_array_equal(loaded.images, selected.images)
    assert (loaded.sha256, loaded.indices.tolist(), loaded.n_split) == (selected.sha256, selected.indices.tolist(), 5)
    with pytest.raises(DatasetError, match=r"Selecting images failed for birds: expected a count from 1 to 5, got 6"):
        load_images("birds", path=folder, count=6)


@pytest.mark.parametrize(("split_folder_name", "split"), [("val", "test"), ("test", "test"), ("train", "train")])
def test_class_folders_are_found_in_split_folders(folder, tmp_path, split_folder_name, split):
    split_folder = tmp_path / split_folder_name
    split_folder.mkdir()
    (folder / "owl").rename(split_folder / "owl")
    images = load_images("birds", path=tmp_path, split=split)  # type: ignore[arg-type]
    assert images.class_names == ("owl",)


def test_training_folder_is_not_a_class_of_test_images(tmp_path):
    write_random_image(tmp_path / "train" / "owl" / "image.png")
    with pytest.raises(DatasetError, match="test images"):
        load_images("birds", path=tmp_path)


def test_decoder_reads_grey_images_as_one_channel(tmp_path):
    pixels = write_random_image(tmp_path / "a" / "image.png", mode="L")
    loaded = load_images(custom_dataset("grey", n_classes=1, channels=1, image_size=8), path=tmp_path)
    np.testing.assert_array_equal(loaded.images, pixels[None, None])
    assert loaded.normalisation.mean == (0.0,)
    rgb = load_images(custom_dataset("grey", n_classes=1, image_size=8), path=tmp_path)
    np.testing.assert_array_equal(rgb.images, np.repeat(pixels[None, None], 3, axis=1))  # as torchvision's loader does


def write_labels(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "labels.json").write_text(text)


INVALID_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "mixed sizes": (lambda folder: write_random_image(folder / "owl" / "c.png", 8, 9), r"c\.png"),
    "not square": (lambda folder: write_random_image(folder / "Zebra" / "a.png", 8, 9), r"a\.png: .*a square image"),
    "unreadable": (lambda folder: (folder / "finch" / "d.png").write_bytes(b"\x89PNG of another kind"), r"d\.png"),
    "empty class": (lambda folder: (folder / "wren").mkdir(), "wren"),
    "another format": (lambda folder: write_random_image(folder / "owl" / "c.bmp"), r"c\.bmp"),
    "labels without a class": (write_labels('{"owl": 1, "finch": 2}'), r"labels\.json: .*'Zebra'"),
    "a class named twice": (write_labels('{"owl": 0, "finch": 1, "Zebra": 2, "owl": 3}'), r"labels\.json"),
    "a label that is text": (
        write_labels('{"owl": "zero", "finch": 2, "Zebra": 3}'),
        r"labels\.json: .*\{\"n01440764\": 0\}, got other content \(owl: 'zero'\)\. Correct or remove the file\.$",
    ),
    "a label above the maximum": (write_labels('{"owl": 70000, "finch": 2, "Zebra": 3}'), r"labels\.json"),
}


@pytest.mark.parametrize("fault", INVALID_FOLDERS)
def test_load_images_rejects_invalid_class_folders(folder, fault):
    damage, subject = INVALID_FOLDERS[fault]
    damage(folder)
    with pytest.raises(DatasetError, match=subject):
        load_images("birds", path=folder)


@pytest.mark.parametrize(
    "options",
    [
        {"resize": Resize(256)},
        {"image_size": 300, "resize": Resize(256)},
        {"image_size": 224, "resize": Resize(256, "bilinar")},
    ],
)
def test_load_images_rejects_invalid_resize_rules(folder, options):
    with pytest.raises(ConfigError, match="Resizing images failed"):
        load_images("birds", path=folder, **options)


@pytest.mark.parametrize("options", [{"image_size": 8}, {"resize": Resize(256)}])
def test_load_images_rejects_sizes_in_addition_to_a_specification(folder, options):
    with pytest.raises(ConfigError, match="birds"):
        load_images(custom_dataset("birds", n_classes=3, image_size=8), path=folder, **options)


def test_hidden_files_and_folders_are_ignored(folder):
    expected = load_images("birds", path=folder)
    for name in ("owl/.ipynb_checkpoints/a.png", "owl/._b.png", ".cache/x.png", "finch/deeper/.thumbnails/c.jpeg"):
        write_random_image(folder / name)
    assert load_images("birds", path=folder).sha256 == expected.sha256


def test_links_are_followed_unless_they_lead_to_a_containing_folder(folder, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    write_random_image(outside / "new.png", seed=9)
    (folder / "owl" / "linked").symlink_to(outside)
    (folder / "Zebra" / "y.png").symlink_to(outside / "new.png")
    (folder / "owl" / "self").symlink_to(".")
    (folder / "owl" / "inner").mkdir()
    (folder / "owl" / "inner" / "back").symlink_to("..")
    assert load_images("birds", path=folder).labels.tolist() == [0, 0, 1, 1, 2, 2, 2]
