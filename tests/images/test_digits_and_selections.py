"""The digits of scikit-learn have a fixed split, and selections are class-stratified."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.errors import DatasetError
from robust201.core.records import ImageSet, Normalisation, image_hash
from robust201.images import digits, load_images, select
from robust201.images.upscaling import upscale

# --- digits


def test_digits_have_a_fixed_split():
    train, test = load_images("digits", split="train"), load_images("digits")
    assert (len(train), len(test)) == (1347, 450)
    assert train.images.shape[1:] == test.images.shape[1:] == (3, 32, 32)
    assert test.sha256 == "3ec90e0b4eecbf53bde12b42b163077179a5c1021b91bbca0eda51d4d892dfc3"
    test_fractions = np.bincount(test.labels) / (np.bincount(train.labels) + np.bincount(test.labels))
    assert np.abs(test_fractions - 0.25).max() < 0.01
    assert not {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    channel = train.images[:, 0] / 255
    np.testing.assert_allclose(train.normalisation.mean[0], channel.mean(), atol=1e-4)
    np.testing.assert_allclose(train.normalisation.std[0], channel.std(), atol=1e-4)


def test_load_images_rejects_digits_of_a_changed_source(monkeypatch):
    pixels, labels = digits._read_source.__wrapped__()
    pixels[0, 0, 0] += 1
    monkeypatch.setattr(digits, "_read_source", lambda: (pixels, labels))
    with pytest.raises(DatasetError, match="digits of scikit-learn: expected SHA-256"):
        load_images("digits")
    assert len(load_images("digits", verify=False)) == 450


@pytest.mark.parametrize(("size", "max_pixel"), [(8, 16), (28, 255)])
@given(rng=st.randoms(use_true_random=False))
def test_upscale_matches_bilinear_interpolation(size, max_pixel, rng):
    image = (np.frombuffer(rng.randbytes(size**2), np.uint8).astype(int) % (max_pixel + 1)).reshape(1, size, size)
    target_positions = (np.arange(32) + 0.5) * size / 32 - 0.5
    source_positions = np.arange(size)
    columns_upscaled = np.stack(
        [np.interp(target_positions, source_positions, pixels) for pixels in image[0].astype(float)]
    )
    expected = (
        np.stack([np.interp(target_positions, source_positions, pixels) for pixels in columns_upscaled.T]).T
        * 255
        / max_pixel
    )
    upscaled = upscale(image.astype(np.uint8), 32, max_pixel)
    assert upscaled.shape == (1, 3, 32, 32)
    assert (upscaled[0, 0] == upscaled[0, 1]).all()
    assert (upscaled[0, 0] == upscaled[0, 2]).all()
    assert np.abs(upscaled[0, 0] - expected).max() <= 0.5 + 1e-9


# --- selections


def make_image_set(labels: list[int]) -> ImageSet:
    images = np.arange(len(labels) * 3, dtype=np.uint8).reshape(-1, 3, 1, 1)
    label_array, indices = np.array(labels, np.int64), np.arange(len(labels), dtype=np.int64) * 2
    normalisation = Normalisation((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    return ImageSet("toy", images, label_array, indices, 4, normalisation, image_hash(images, label_array, indices))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 2**31 - 1))
def test_select_is_stratified_ascending_and_nested(labels, count, seed):
    all_images = make_image_set(labels)
    count = min(count, len(all_images))
    selected = select(all_images, count=count, seed=seed)
    assert len(selected) == count
    assert (np.diff(selected.indices) > 0).all()
    rows = selected.indices // 2
    np.testing.assert_array_equal(selected.images, all_images.images[rows])
    np.testing.assert_array_equal(selected.labels, all_images.labels[rows])
    assert selected.sha256 == image_hash(selected.images, selected.labels, selected.indices)
    n_selected, n_available = np.bincount(selected.labels, minlength=4), np.bincount(all_images.labels, minlength=4)
    # A class that still has unselected images has at most one selected image fewer than any other class.
    assert all(
        n_selected[label] >= n_selected.max() - 1 for label in range(4) if n_selected[label] < n_available[label]
    )
    assert select(all_images, count=count, seed=seed).sha256 == selected.sha256
    assert set(selected.indices) <= set(select(all_images, count=min(count + 3, len(all_images)), seed=seed).indices)


def test_select_depends_on_the_seed():
    all_images = load_images("digits")
    class_counts = {
        tuple(np.bincount(select(all_images, count=25, seed=seed).labels, minlength=10)) for seed in range(8)
    }
    assert len(class_counts) > 1
    assert all(set(class_sizes) == {2, 3} for class_sizes in class_counts)
    assert len({select(all_images, count=20, seed=seed).sha256 for seed in range(8)}) == 8


def test_select_returns_the_same_images_on_every_platform():
    selected = select(load_images("digits"), count=10, seed=0)
    assert selected.indices.tolist() == [13, 22, 27, 111, 192, 199, 264, 284, 288, 289]


@pytest.mark.parametrize("count", [0, -1, 451])
def test_select_rejects_a_count_out_of_range(count):
    with pytest.raises(DatasetError, match=f"digits: expected a count from 1 to 450, got {count}") as error:
        select(load_images("digits"), count=count, seed=0)
    assert "--" not in str(error.value), "the Python API has no command-line options"
