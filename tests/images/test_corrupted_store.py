"""Corrupted images on disk: written, taken up after a kill, opened, verified, and never mistaken for the other kind."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError, FormatVersionError, StorageError, StorageFullError
from robust201.core.files import sole_writer
from robust201.core.records import ImageSet, image_hash
from robust201.images import corrupted as corrupted_module
from robust201.images import generated_folder
from robust201.images.corrupted import CorruptedStore, open_generated, open_published
from robust201.images.downloads.registry import Checksum, Download
from robust201.images.downloads.registry import download as registered
from robust201.images.generated_folder import GeneratorRecipe
from robust201.images.specs import DATASETS
from robust201.tasks.corruptions import folder as corrupting
from robust201.tasks.corruptions.folder import check_deterministic, generate_corruptions
from robust201.tasks.corruptions.generator import GENERATOR_VERSION, corrupt
from tests.conftest import read_tree
from tests.support.natural_images import image_set, stripes

FROST = stripes()
KEYS = ("fog", "frost", "pixelate")
N_PUBLISHED = 40


def part_of(images: ImageSet, positions: list[int]) -> ImageSet:
    chosen = (images.images[positions], images.labels[positions], images.indices[positions])
    return replace(images, images=chosen[0], labels=chosen[1], indices=chosen[2], sha256=image_hash(*chosen))


def generate(folder: Path, images: ImageSet, keys: tuple[str, ...] = KEYS, **settings: int) -> CorruptedStore:
    return generate_corruptions(folder, images, keys=keys, frost=FROST, **({"seed": 7} | settings))


def reopen(folder: Path, images: ImageSet) -> CorruptedStore:
    return open_generated(folder, images, GeneratorRecipe(GENERATOR_VERSION, 7, FROST.identity()))


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, ImageSet]:
    """A folder in the published layout for a split of 40 images, and the full split."""
    full = image_set(N_PUBLISHED)
    full = replace(full, indices=np.arange(N_PUBLISHED))
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(full.labels, 5).astype(np.uint8))
    pixels = full.images.transpose(0, 2, 3, 1)
    for offset, key in enumerate(("fog", "snow")):
        np.save(folder / f"{key}.npy", np.concatenate([pixels + np.uint8(10 * offset + s) for s in range(5)]))
    return folder, full


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_generated_store_gives_the_generators_pixels(tmp_path: Path) -> None:
    images = image_set(6)
    store = generate(tmp_path, images)
    rows = images.indices[[4, 0, 4]]
    for severity in (1, 5):
        clean = images.images[[4, 0, 4]].transpose(0, 2, 3, 1)
        made = corrupt(clean, "fog", severity, seed=7, indices=rows, frost=FROST)
        read = store("fog", severity, rows)
        assert (read == made.transpose(0, 3, 1, 2)).all()
        assert read.flags.c_contiguous
    assert store.source == "generated"


def test_files_have_the_published_layout(tmp_path: Path) -> None:
    images = image_set(6)
    generate(tmp_path, images)
    for key in KEYS:
        array = np.load(tmp_path / f"{key}.npy")
        assert array.shape == (30, 32, 32, 3)
        assert array.dtype == np.uint8
        assert generated_folder.npy_bytes(array) == (tmp_path / f"{key}.npy").read_bytes()
    assert (np.load(tmp_path / "labels.npy") == np.tile(images.labels, 5)).all()
    assert (np.load(tmp_path / "indices.npy") == images.indices).all()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["source"] == "generated"
    assert manifest["images_sha256"] == images.sha256
    assert manifest["recipe"] == {
        "generator_version": GENERATOR_VERSION,
        "seed": 7,
        "frost": {"name": "stripes", "sha256": FROST.sha256},
    }
    for name, facts in manifest["files"].items():
        assert facts["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert set(manifest["files"]["fog.npy"]["libraries"]) >= {"numpy", "scipy", "pillow", "libjpeg"}


def test_only_corruptions_of_an_earlier_version_are_made_again(tmp_path: Path) -> None:
    """A folder from before motion_blur and snow got their second version has no versions by file."""
    images = image_set(3)
    keys = ("fog", "motion_blur", "snow")
    store = generate(tmp_path, images, keys)
    assert {key: store.identity(key)["generator_version"] for key in keys} == {"fog": 1, "motion_blur": 2, "snow": 2}
    new = {key: (tmp_path / f"{key}.npy").read_bytes() for key in keys}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    for key in keys:
        old = np.load(tmp_path / f"{key}.npy") // 2
        np.save(tmp_path / f"{key}.npy", old)
        facts = manifest["files"][f"{key}.npy"]
        facts.pop("generator_version", None)
        facts["sha256"] = hashlib.sha256((tmp_path / f"{key}.npy").read_bytes()).hexdigest()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    old_fog = (tmp_path / "fog.npy").read_bytes()
    assert reopen(tmp_path, images).identity("snow")["generator_version"] == 1
    generate(tmp_path, images, keys)
    assert (tmp_path / "fog.npy").read_bytes() == old_fog
    assert all((tmp_path / f"{key}.npy").read_bytes() == new[key] for key in ("motion_blur", "snow"))


def test_workers_and_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_set(5)
    seen: list[tuple[int, int]] = []
    progress = lambda done, total: seen.append((done, total))  # noqa: E731
    generate_corruptions(tmp_path / "one", images, keys=KEYS, seed=7, frost=FROST, progress=progress)
    assert seen[-1] == (75, 75)
    monkeypatch.setattr(corrupting, "_BLOCK_IMAGES", 2)
    generate_corruptions(tmp_path / "blocks", images, keys=KEYS, seed=7, frost=FROST)
    monkeypatch.undo()
    generate_corruptions(tmp_path / "two", images, keys=KEYS, seed=7, frost=FROST, workers=2)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "blocks") == read_tree(tmp_path / "two")


def test_only_missing_files_are_made(tmp_path: Path) -> None:
    images = image_set(4)
    generate(tmp_path, images, ("fog",))
    before = (tmp_path / "fog.npy").stat().st_mtime_ns
    generate(tmp_path, images)
    assert (tmp_path / "fog.npy").stat().st_mtime_ns == before
    (tmp_path / "frost.npy").unlink()
    content = read_tree(tmp_path)
    generate(tmp_path, images)
    assert set(read_tree(tmp_path)) == {*content, "frost.npy"}


@pytest.mark.parametrize("images_until_kill", [0, 3, 4, 21, 33])
def test_a_killed_run_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images_until_kill: int) -> None:
    images = image_set(4)
    generate(tmp_path / "whole", images, ("fog", "pixelate"))

    def killed(*args: object, **options: object) -> NDArray[np.uint8]:
        if len(made) >= images_until_kill:
            raise KeyboardInterrupt
        made.append(0)
        return corrupt(*args, **options)  # type: ignore[arg-type]

    made: list[int] = []
    folder = tmp_path / "killed"
    monkeypatch.setattr(corrupting, "_BLOCK_IMAGES", 1)
    monkeypatch.setattr(corrupting, "corrupt", killed)
    with pytest.raises(KeyboardInterrupt):
        generate(folder, images, ("fog", "pixelate"))
    monkeypatch.undo()
    # A kill -9 leaves more behind: the temporary file, and a whole file that the manifest does not know yet.
    (folder / ".pixelate.npy.0123456789ab.tmp").write_bytes(b"half a file")
    (folder / "pixelate.npy").write_bytes(b"whole, but not vouched for")
    generate(folder, images, ("fog", "pixelate"))
    assert read_tree(folder) == read_tree(tmp_path / "whole")


def test_a_selection_finds_its_images(tmp_path: Path) -> None:
    images = image_set(8)
    whole = generate(tmp_path, images)
    part = part_of(images, [1, 5, 6])
    store = reopen(tmp_path, part)
    assert (store("fog", 3, part.indices) == whole("fog", 3, part.indices)).all()
    assert store.digest("fog") != whole.digest("fog")
    assert generate(tmp_path, part).identity("fog") == store.identity("fog")
    alone = generate(tmp_path / "alone", part)
    assert alone.identity("fog") == store.identity("fog")
    with pytest.raises(DatasetError, match="expected rows of the selection of 3 images, got row 0"):
        store("fog", 3, images.indices[:1])


def test_identity_says_what_decides_the_pixels(tmp_path: Path) -> None:
    images = image_set(3)
    store = generate(tmp_path, images)
    assert store.identity("fog") == {
        "source": "generated",
        "generator_version": GENERATOR_VERSION,
        "seed": 7,
        "sha256": store.digest("fog"),
    }
    assert store.identity("frost")["frost"] == {"name": "stripes", "sha256": FROST.sha256}
    assert json.loads(json.dumps(store.identity("frost"))) == store.identity("frost")
    other = generate(tmp_path / "other", images, seed=8)
    assert other.digest("fog") != store.digest("fog")
    assert other.digest("pixelate") == store.digest("pixelate")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    images = image_set(3)
    planned = generate(tmp_path, images).identity("fog")
    reopen(tmp_path, images).verify("fog", expected=planned)
    flip_last_bit(tmp_path / "fog.npy")
    with pytest.raises(DatasetError, match=r"fog\.npy: expected sha256 .* The file is damaged"):
        reopen(tmp_path, images).verify("fog", expected=planned)
    (tmp_path / "fog.npy").unlink()
    generate(tmp_path, images).verify("fog", expected=planned)


def test_other_settings_than_planned_are_found(tmp_path: Path) -> None:
    images = image_set(3)
    planned = generate(tmp_path / "seed 8", images, seed=8).identity("fog")
    with pytest.raises(DatasetError, match=r"expected seed 8, got 7.*since planning"):
        generate(tmp_path / "seed 7", images).verify("fog", expected=planned)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 8}, "expected seed 8, got 7"),
        ({"generator_version": 99}, f"expected generator_version 99, got {GENERATOR_VERSION}"),
        ({"frost": {"name": "photos", "sha256": FROST.sha256}}, "expected frost 'photos'"),
    ],
)
def test_other_settings_than_asked_for_are_refused(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    images = image_set(3)
    generate(tmp_path, images)
    wanted = replace(GeneratorRecipe(GENERATOR_VERSION, 7, FROST.identity()), **settings)
    with pytest.raises(DatasetError, match=message):
        open_generated(tmp_path, images, wanted)
    if "generator_version" not in settings:
        before = read_tree(tmp_path)
        frost = replace(FROST, name=wanted.frost["name"])
        with pytest.raises(DatasetError, match=message):
            generate_corruptions(tmp_path, images, keys=("snow",), seed=wanted.seed, frost=frost)
        assert read_tree(tmp_path) == before


def test_other_images_are_refused(tmp_path: Path) -> None:
    images = image_set(4)
    generate(tmp_path, images)
    changed = images.images.copy()
    changed[2, 0, 0, 0] ^= 1
    with pytest.raises(DatasetError, match=r"got none of row 6 as it is now \(1 such rows\)"):
        reopen(tmp_path, replace(images, images=changed))
    with pytest.raises(DatasetError, match="of all 4 selected images of cifar10, got none of row 1"):
        reopen(tmp_path, image_set(4, first=1))
    with pytest.raises(DatasetError, match="expected images of cifar100, got images of cifar10"):
        reopen(tmp_path, replace(images, dataset="cifar100"))
    with pytest.raises(DatasetError, match=r"expected the test labels five times over, got label \d instead of"):
        reopen(tmp_path, replace(images, labels=images.labels[::-1].copy()))
    with pytest.raises(DatasetError, match="expected an empty folder or the same images"):
        generate(tmp_path, image_set(5), ("snow",))


def test_missing_and_half_files_are_named(tmp_path: Path) -> None:
    images = image_set(3)
    store = generate(tmp_path, images, ("fog", "snow", "pixelate"))
    with pytest.raises(DatasetError, match=r"jpeg_compression\.npy: expected an array .*no such file"):
        store("jpeg_compression", 1, images.indices)
    with pytest.raises(DatasetError, match="expected a severity from 1 to 5, got 6"):
        store("fog", 6, images.indices)
    for name, content in (("fog", (tmp_path / "fog.npy").read_bytes()[:5000]), ("snow", b"")):
        (tmp_path / f"{name}.npy").write_bytes(content)
        with pytest.raises(
            DatasetError, match=rf"{name}\.npy: expected an array .* no whole \.npy array .*Delete \S+ and"
        ):
            reopen(tmp_path, images).check(name)
    np.save(tmp_path / "pixelate.npy", np.zeros((15, 16, 16, 3), np.uint8))
    with pytest.raises(DatasetError, match=r"expected uint8 \(15, 32, 32, 3\), got uint8 \(15, 16, 16, 3\)"):
        reopen(tmp_path, images).check("pixelate")


def test_pickles_are_not_read(tmp_path: Path) -> None:
    images = image_set(3)
    generate(tmp_path, images, ("fog",))
    np.save(tmp_path / "fog.npy", np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(DatasetError, match=r"no whole \.npy array"):
        reopen(tmp_path, images).check("fog")


def test_damaged_and_foreign_manifests_are_named(tmp_path: Path) -> None:
    images = image_set(3)
    generate(tmp_path, images, ("fog",))
    path = tmp_path / "manifest.json"
    text = path.read_text()
    for damaged in (text[:40], "[]", text.replace('"recipe"', '"receipt"')):
        path.write_text(damaged)
        with pytest.raises(DatasetError, match=r"manifest\.json: expected a manifest, got .*; delete \S+ and generate"):
            reopen(tmp_path, images)
    path.write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatVersionError, match="expected format 1, got 2"):
        reopen(tmp_path, images)


def test_neither_kind_stands_in_for_the_other(tmp_path: Path, published: tuple[Path, ImageSet]) -> None:
    folder, full = published
    with pytest.raises(DatasetError, match=r"expected the manifest of generated images.*set `source: published`"):
        reopen(folder, full)
    before = read_tree(folder)
    with pytest.raises(DatasetError, match=r"got \.npy files without a manifest, as published ones are"):
        generate(folder, full)
    assert read_tree(folder) == before
    made = tmp_path / "generated"
    generate(made, full)
    for forgotten in ("", "manifest.json", "indices.npy"):
        if forgotten:
            (made / forgotten).unlink()
        with pytest.raises(DatasetError, match="got images that robust201 generated"):
            open_published(made, full, n_images=N_PUBLISHED)


def test_published_files_are_read(published: tuple[Path, ImageSet]) -> None:
    folder, full = published
    part = part_of(full, [3, 17, 39])
    for place in (folder, folder.parent):
        store = open_published(place, part, n_images=N_PUBLISHED)
        assert store.source == "published"
        for severity in range(1, 6):
            expected = part.images[[2, 0]] + np.uint8(10 + severity - 1)
            assert (store("snow", severity, np.array([39, 3])) == expected).all()
    assert store.identity("snow") == {"source": "published", "sha256": store.digest("snow")}
    whole = open_published(folder, full, n_images=N_PUBLISHED)
    assert whole.digest("snow") != store.digest("snow")
    store.verify("snow", expected=store.identity("snow"))


def test_a_changed_published_file_is_found(published: tuple[Path, ImageSet]) -> None:
    folder, full = published
    planned = open_published(folder, full, n_images=N_PUBLISHED).identity("fog")
    flip_last_bit(folder / "fog.npy")
    with pytest.raises(DatasetError, match=r"fog\.npy: expected sha256 .* since planning"):
        open_published(folder, full, n_images=N_PUBLISHED).verify("fog", expected=planned)


def test_full_verification_compares_md5(published: tuple[Path, ImageSet], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, full = published
    with pytest.raises(DatasetError, match=r"fog\.npy: expected md5 7b397314b5670f825465fbcd1f6e9ccd, got "):
        open_published(folder, full, n_images=N_PUBLISHED, verify="full")

    names = ("fog.npy", "snow.npy", "labels.npy")
    made = {name: Checksum("md5", hashlib.md5((folder / name).read_bytes()).hexdigest()) for name in names}

    def as_made(name: str) -> Download:
        return replace(registered(name), members=made)

    with monkeypatch.context() as patch:
        patch.setattr(corrupted_module, "download", as_made)
        open_published(folder, full, n_images=N_PUBLISHED, verify="full")
        flip_last_bit(folder / "snow.npy")
        open_published(folder, full, n_images=N_PUBLISHED, verify="full", keys=["fog"])
        with pytest.raises(DatasetError, match=r"snow\.npy: expected md5 "):
            open_published(folder, full, n_images=N_PUBLISHED, verify="full")


def test_wrong_published_files_are_named(published: tuple[Path, ImageSet]) -> None:
    folder, full = published
    with pytest.raises(DatasetError, match=r"frost\.npy: expected an array .* no such file"):
        open_published(folder, full, n_images=N_PUBLISHED, keys=["frost"])
    with pytest.raises(DatasetError, match=r"labels\.npy: expected uint8 \(500,\), got uint8 \(200,\)"):
        open_published(folder, full, n_images=100)
    with pytest.raises(DatasetError, match="expected a dataset that has them"):
        open_published(folder, replace(full, dataset="digits"), n_images=N_PUBLISHED)
    np.save(folder / "fog.npy", np.zeros((200, 32, 32), np.uint8))
    with pytest.raises(DatasetError, match=r"fog\.npy: expected uint8 \(200, 32, 32, 3\), got uint8 \(200, 32, 32\)"):
        open_published(folder, full, n_images=N_PUBLISHED)
    sorted_by_class = replace(full, labels=np.sort(full.labels))
    with pytest.raises(DatasetError, match="the same images in another order"):
        open_published(folder, sorted_by_class, n_images=N_PUBLISHED)
    shutil.rmtree(folder)
    with pytest.raises(
        DatasetError, match=r"has the labels\.npy of CIFAR-10-C\. Fetch the files with `robust201 fetch CIFAR-10-C`"
    ):
        open_published(folder, full, n_images=N_PUBLISHED)


def test_one_process_generates_in_a_folder(tmp_path: Path) -> None:
    with (
        sole_writer(tmp_path, "Testing"),
        pytest.raises(StorageError, match=r"Generating corruptions failed .* got another process"),
    ):
        generate(tmp_path, image_set(2))
    generate(tmp_path, image_set(2), ("fog",))


def test_a_full_device_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_set(3)
    generate(tmp_path, images, ("fog",))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    before = read_tree(tmp_path)
    monkeypatch.setattr("robust201.core.files.os.fsync", full)
    with pytest.raises(StorageFullError, match="got none"):
        generate(tmp_path, images)
    assert read_tree(tmp_path) == before


def test_unknown_keys_start_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'zoom_blur'"):
        generate(tmp_path / "none", image_set(2), ("fog", "zoom_blurr"))
    assert not (tmp_path / "none").exists()


def test_the_md5_check_compares_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_set(6)
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], n_test=6))
    found = check_deterministic(images, keys=["pixelate", "brightness"])
    assert [one.key for one in found] == ["pixelate", "brightness"]
    assert found[0].expected == "0f14f7e2db14288304e1de10df16832f"
    generate(tmp_path, images, ("pixelate",))
    assert found[0].got == hashlib.md5((tmp_path / "pixelate.npy").read_bytes()).hexdigest()
    with pytest.raises(ConfigError, match="'snow': expected a corruption without a random part"):
        check_deterministic(images, keys=["snow"])
    with pytest.raises(DatasetError, match=r"expected all 6 test images .* got 5 images"):
        check_deterministic(part_of(images, [0, 1, 2, 3, 4]))
