"""Training data: contents of batches. Each epoch has a new order and repeats no image."""

from decimal import Decimal
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet, Normalisation, canonical_json, image_hash
from robust201.images.fusion import blend
from robust201.training.data import Batch, Fusion, Mixture, OneSource, TrainingData

N_CLASSES = 7
TENTHS = [f"{tenth / 10:g}" for tenth in range(11)]


def numbered_images(count: int, name: str, *, size: int = 4, n_classes: int = N_CLASSES) -> ImageSet:
    """Return images whose first two pixels encode their index; labels are the index modulo `n_classes`."""
    indices = np.arange(count)
    images = np.full((count, 3, size, size), ord(name[0]), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = indices // 256, indices % 256
    labels = (indices % n_classes).astype(np.int64)
    normalisation = Normalisation((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    return ImageSet(name, images, labels, indices, n_classes, normalisation, image_hash(images, labels, indices))


NATURAL, ROBUST = numbered_images(300, "natural"), numbered_images(320, "robust")


def read_epoch(data: TrainingData, batch_size: int, seed: int = 0, epoch: int = 0) -> list[Batch]:
    return list(data.batches(batch_size, seed, epoch))


def concatenate(batches: list[Batch]) -> Batch:
    return Batch(*map(np.concatenate, zip(*batches, strict=True)))


def are_equal(batches: list[Batch], other_batches: list[Batch]) -> bool:
    return len(batches) == len(other_batches) and all(
        np.array_equal(array, other_array)
        for batch, other_batch in zip(batches, other_batches, strict=True)
        for array, other_array in zip(batch, other_batch, strict=True)
    )


all_data_classes = pytest.mark.parametrize(
    "data",
    [
        OneSource(NATURAL),
        Mixture(NATURAL, ROBUST, 0.3),
        Fusion(NATURAL, ROBUST),
        Fusion(ROBUST, NATURAL, 0.25, "second"),
    ],
    ids=["one-source", "mixture", "fusion", "fusion-second"],
)


@all_data_classes
@pytest.mark.parametrize("batch_size", [7, 100, 1000])
def test_epoch_has_the_expected_batches_images_and_ids(data, batch_size):
    batches = read_epoch(data, batch_size)
    assert len(batches) == data.n_batches(batch_size) == ceil(300 / batch_size)
    epoch_batch = concatenate(batches)
    assert all(len(batch.labels) == batch_size for batch in batches[:-1])
    assert len(epoch_batch.pixels) == len(epoch_batch.labels) == len(epoch_batch.ids) == 300
    assert epoch_batch.pixels.dtype == np.uint8
    assert epoch_batch.pixels.shape[1] == 3
    assert epoch_batch.pixels.shape[2] == epoch_batch.pixels.shape[3] > 1
    assert epoch_batch.labels.dtype == epoch_batch.ids.dtype == np.int64
    assert len(set(epoch_batch.ids.tolist())) == 300
    assert 0 <= epoch_batch.ids.min() <= epoch_batch.ids.max() < data.n_ids
    assert epoch_batch.labels.max() < data.n_classes


@all_data_classes
def test_batches_depend_only_on_seed_and_epoch(data):
    batches = read_epoch(data, 32, seed=5, epoch=9)
    assert are_equal(batches, read_epoch(data, 32, seed=5, epoch=9))
    assert not are_equal(batches, read_epoch(data, 32, seed=5, epoch=10))
    assert not are_equal(batches, read_epoch(data, 32, seed=6, epoch=9))


def test_one_source_yields_every_image_with_its_label():
    epoch_batch = concatenate(read_epoch(OneSource(NATURAL), 128))
    np.testing.assert_array_equal(np.sort(epoch_batch.ids), np.arange(300))
    np.testing.assert_array_equal(epoch_batch.pixels, NATURAL.images[epoch_batch.ids])
    np.testing.assert_array_equal(epoch_batch.labels, NATURAL.labels[epoch_batch.ids])


@given(
    alpha=st.sampled_from(TENTHS) | st.decimals(0, 1, places=3).map(str),
    batch_size=st.integers(1, 350),
    seed=st.integers(0, 99),
)
def test_mixture_has_the_exact_fraction_in_every_batch(alpha, batch_size, seed):
    data = Mixture(NATURAL, ROBUST, float(alpha))
    try:
        batches = read_epoch(data, batch_size, seed)
    except DatasetError:  # Rounding up in each batch may require more robust images than there are.
        assert ceil(Decimal(alpha) * batch_size) * ceil(300 / batch_size) > 320
        return
    for batch in batches:
        size = len(batch.ids)
        is_robust = batch.ids >= 300
        assert is_robust.sum() == ceil(Decimal(alpha) * size)
        assert (~is_robust).sum() == floor((1 - Decimal(alpha)) * size)
    epoch_batch = concatenate(batches)
    assert len(epoch_batch.ids) == len(set(epoch_batch.ids.tolist())) == 300
    is_robust = epoch_batch.ids >= 300
    np.testing.assert_array_equal(epoch_batch.pixels[is_robust], ROBUST.images[epoch_batch.ids[is_robust] - 300])
    np.testing.assert_array_equal(epoch_batch.labels[is_robust], ROBUST.labels[epoch_batch.ids[is_robust] - 300])
    np.testing.assert_array_equal(epoch_batch.pixels[~is_robust], NATURAL.images[epoch_batch.ids[~is_robust]])
    np.testing.assert_array_equal(epoch_batch.labels[~is_robust], NATURAL.labels[epoch_batch.ids[~is_robust]])


@pytest.mark.parametrize("batch_size", [1, 128, 300, 301])
def test_mixture_with_alpha_0_equals_one_source(batch_size):
    mixture, source = Mixture(NATURAL, ROBUST, 0), OneSource(NATURAL)
    assert are_equal(read_epoch(mixture, batch_size), read_epoch(source, batch_size))
    assert (mixture.n_ids, mixture.normalisation) == (source.n_ids, source.normalisation)


def test_mixture_orders_robust_and_natural_images_independently():
    epoch_batch = concatenate(read_epoch(Mixture(NATURAL, NATURAL, 0.5), 100))
    robust_order, natural_order = epoch_batch.ids[epoch_batch.ids >= 300] - 300, epoch_batch.ids[epoch_batch.ids < 300]
    assert not np.array_equal(robust_order, natural_order)
    next_epoch_ids = concatenate(read_epoch(Mixture(NATURAL, NATURAL, 0.5), 100, epoch=1)).ids
    assert not np.array_equal(robust_order, next_epoch_ids[next_epoch_ids >= 300] - 300)


def test_mixture_rejects_too_few_robust_images():
    few_images = numbered_images(31, "few")
    assert Mixture(NATURAL, few_images, 0.1).n_batches(300) == 1
    with pytest.raises(DatasetError, match="an epoch of 300 images needs 60 robust ones, and there are only 31"):
        Mixture(NATURAL, few_images, 0.1).n_batches(5)


@given(
    alpha=st.sampled_from([0.0, 0.1, 0.5, 1 / 3, 0.30000000000000004, 1.0]), label=st.sampled_from(["first", "second"])
)
def test_fusion_blends_each_image_once(alpha, label):
    data = Fusion(NATURAL, ROBUST, alpha, label)  # type: ignore[arg-type]
    epoch_batch = concatenate(read_epoch(data, 125))
    first_only = concatenate(read_epoch(Fusion(NATURAL, ROBUST, 1.0), 125))
    # The first two pixels of an image that is not blended encode its index.
    first_rows = first_only.pixels[:, 0, 0, 0].astype(int) * 256 + first_only.pixels[:, 0, 0, 1]
    second_rows = concatenate(read_epoch(Fusion(NATURAL, ROBUST, 0.0), 125)).pixels[:, 0, 0, :2].astype(int) @ [256, 1]
    np.testing.assert_array_equal(np.sort(first_rows), np.arange(300))
    assert len(set(second_rows.tolist())) == 300
    assert set(second_rows.tolist()) != set(range(300))  # The epoch omits some images of the larger set.
    np.testing.assert_array_equal(
        epoch_batch.pixels, blend(NATURAL.images[first_rows], ROBUST.images[second_rows], alpha)
    )
    expected_labels = NATURAL.labels[first_rows] if label == "first" else ROBUST.labels[second_rows]
    np.testing.assert_array_equal(epoch_batch.labels, expected_labels)
    np.testing.assert_array_equal(epoch_batch.ids, first_rows)


def test_fusion_pairs_images_differently_in_each_epoch():
    epochs = [
        concatenate(read_epoch(Fusion(NATURAL, ROBUST), 125, epoch=epoch)).pixels.reshape(300, -1) for epoch in range(2)
    ]
    assert not {blended.tobytes() for blended in epochs[0]} >= {blended.tobytes() for blended in epochs[1]}


@given(
    alpha=st.sampled_from(TENTHS) | st.decimals(0, 1, places=4).map(str),
    pixels=st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), min_size=1, max_size=20),
)
def test_blend_rounds_half_up(alpha, pixels):
    first, second = np.array(pixels, np.uint8).T
    weight = Decimal(alpha)
    expected = [floor(weight * a + (1 - weight) * b + Decimal("0.5")) for a, b in pixels]
    assert blend(first, second, float(alpha)).tolist() == expected


def test_identity_contains_everything_that_determines_the_batches():
    datasets = [
        OneSource(NATURAL),
        OneSource(ROBUST),
        Mixture(NATURAL, ROBUST, 0.1),
        Mixture(NATURAL, ROBUST, 0.2),
        Mixture(ROBUST, NATURAL, 0.1),
        Fusion(NATURAL, ROBUST),
        Fusion(ROBUST, NATURAL),
        Fusion(NATURAL, ROBUST, 0.4),
        Fusion(NATURAL, ROBUST, label="second"),
        Fusion(NATURAL, ROBUST, normalisation=NATURAL.normalisation),
    ]
    assert len({canonical_json(dict(data.identity())) for data in datasets}) == len(datasets)
    assert canonical_json(Mixture(NATURAL, ROBUST, 1).identity()) == canonical_json(
        Mixture(NATURAL, ROBUST, 1.0).identity()
    )


def test_fusion_has_the_classes_of_the_set_that_provides_the_labels():
    nine_classes = numbered_images(30, "many", n_classes=9)
    assert Fusion(NATURAL, nine_classes).n_classes == 7
    assert Fusion(NATURAL, nine_classes, label="second").n_classes == 9


def test_mixture_and_fusion_reject_incompatible_sets():
    with pytest.raises(DatasetError, match=r"Mixing many into natural failed: expected 7 classes .* got 9"):
        Mixture(NATURAL, numbered_images(300, "many", n_classes=9), 0.5)
    for data_class in (Mixture, Fusion):
        with pytest.raises(DatasetError, match=r"\(3, 4, 4\).* \(3, 8, 8\)"):
            data_class(NATURAL, numbered_images(300, "large", size=8), 0.5)
        for alpha in (-0.1, 1.1, float("nan")):
            with pytest.raises(ConfigError, match="expected a number from 0 to 1"):
                data_class(NATURAL, ROBUST, alpha)
