"""Random numbers of fused attacks (dependence and distributions), and sides of Square's windows."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from robust201.attacks.random_numbers import RandomNumbers, _draw_window_move, _uniform_block, generator
from robust201.attacks.square import side_of
from tests.support.tiny_networks import SIZE

SHAPE = (3, SIZE, SIZE)


# --- random numbers ------------------------------------------------------------------------------------------------


def test_signs_of_window_moves_are_consecutive_bits_of_a_stream():
    dataset_indices = np.array([9999, 0, 7, 5000, 7])
    window_moves = RandomNumbers(3, "aa_square_l2").window_moves(1, 5, dataset_indices, [2, 3], SHAPE)
    for query, window_move in enumerate(window_moves, start=5):
        words = generator(3, "aa_square_l2", "swap", 1, query).bit_generator.random_raw(3 + 10_240 * 3 // 64)
        bits = [
            [int(words[3 + n // 64]) >> n % 64 & 1 for n in range(3 * image, 3 * image + 3)]
            for image in dataset_indices
        ]
        assert window_move.signs.flatten(1).tolist() == [[2.0 * bit - 1 for bit in image_bits] for image_bits in bits]
    *_, packed_signs = _draw_window_move(3, "aa_square_l2", 1, 5, 3, 10_240)
    assert packed_signs.nbytes == 10_240 * 3 // 8


def test_uniforms_and_stripes_have_uniform_distributions():
    uniforms = RandomNumbers(0, "pgd").uniforms(0, np.arange(100), (3, 16, 16))
    assert uniforms.min() >= 0
    assert uniforms.max() < 1
    bin_counts = torch.histc(uniforms, bins=64, min=0, max=1)
    assert ((bin_counts - bin_counts.mean()).abs() < 6 * bin_counts.mean().sqrt()).all()
    stripes = RandomNumbers(0, "aa_square").stripes(0, np.arange(100), (3, 16, 16))
    assert stripes.shape == (100, 3, 1, 16)
    assert set(stripes.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(stripes.mean())) < 0.1


DRAW_FUNCTIONS = {
    "uniforms": lambda numbers, restart, images: numbers.uniforms(restart, images, SHAPE),
    "stripes": lambda numbers, restart, images: numbers.stripes(restart, images, SHAPE),
    "normals": lambda numbers, restart, images: numbers.normals(restart, images, 50),
}


@pytest.mark.parametrize("draw", DRAW_FUNCTIONS.values(), ids=DRAW_FUNCTIONS)
def test_random_numbers_depend_on_seed_key_restart_and_image(draw):
    images = np.array([3, 700, 64, 3])
    drawn = draw(RandomNumbers(0, "pgd_l2"), 0, images)
    assert torch.equal(drawn[0], drawn[3])
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[1:2], draw(RandomNumbers(0, "pgd_l2"), 0, images[1:2]))
    for seed, key, restart in ((1, "pgd_l2", 0), (0, "jacobian", 0), (0, "pgd_l2", 1)):
        assert not torch.equal(draw(RandomNumbers(seed, key), restart, images), drawn)


def test_normals_have_normal_distribution():
    normals = RandomNumbers(0, "pgd_l2").normals(0, np.arange(100), 2000)
    assert torch.equal(normals[:, :20], RandomNumbers(0, "pgd_l2").normals(0, np.arange(100), 20))
    assert RandomNumbers(0, "pgd_l2").normals(0, np.arange(0), 50).shape == (0, 50)
    assert normals.dtype == torch.float32
    assert normals.isfinite().all()
    assert kstest(normals.flatten().double().numpy(), "norm").pvalue > 0.01
    # Neither images nor positions are correlated.
    for sample, n_values in ((normals, 2000), (normals.T[:200], 100)):
        assert (torch.corrcoef(sample) - torch.eye(len(sample))).abs().max() < 6 / n_values**0.5


def test_random_numbers_match_recorded_values():
    # Stored results depend on these numbers, so they must never change.
    random_numbers = RandomNumbers(7, "pgd")
    scaled_uniforms = (random_numbers.uniforms(0, np.array([5]), (1, 1, 3)) * 2**24).long().flatten().tolist()
    signs = random_numbers.stripes(0, np.array([5]), (1, 1, 8)).flatten().tolist()
    window = random_numbers.windows(0, 11, [2], (3, 32, 32))[0]
    normals = random_numbers.normals(0, np.array([5]), 3).flatten().tolist()
    assert normals == pytest.approx([-0.3184232, 1.6386790, -1.0087410], rel=1e-6)
    assert scaled_uniforms == [12551837, 3091260, 7270216]
    assert signs == [1, 1, -1, 1, 1, 1, 1, 1]
    assert (window.row, window.column, window.signs.flatten().tolist()) == (2, 15, [1, 1, -1])


def test_windows_do_not_depend_on_earlier_queries():
    random_numbers = RandomNumbers(0, "aa_square")
    sides = [5] * 40
    windows = random_numbers.windows(0, 0, sides, SHAPE)
    last_windows = random_numbers.windows(0, 30, sides[30:], SHAPE)
    for window, expected in zip(windows[30:], last_windows, strict=True):
        assert window[:3] == expected[:3]
        assert torch.equal(window.signs, expected.signs)
    # As in AutoAttack, a window's first row is less than H - side, so no window contains the last row and column.
    assert {window.row for window in windows} == {window.column for window in windows} == set(range(SIZE - 5))
    assert random_numbers.windows(0, 0, [SIZE], SHAPE)[0][:2] == (0, 0)
    assert len({tuple(window.signs.flatten().tolist()) for window in windows}) == 8


def test_side_of_follows_published_schedule():
    shape = (3, 32, 32)
    expected_sides = {
        0: 29,
        10: 29,
        11: 20,
        50: 20,
        51: 14,
        200: 14,
        201: 10,
        500: 10,
        501: 7,
        1000: 7,
        1001: 5,
        2001: 4,
    }
    assert {query: side_of(query, 0.8, shape, "Linf") for query in expected_sides} == expected_sides
    assert side_of(9999, 0.8, shape, "Linf") == 1
    assert side_of(0, 1.0, (3, 16, 8), "Linf") == 8
    assert [side_of(query, 0.8, shape, "L2") for query in (0, 11, 51, 9999)] == [29, 21, 15, 3]


@pytest.mark.parametrize("shape", [(3, 224, 224), (3, 260, 260)])
def test_uniforms_of_large_images_are_cached_per_image_or_not_at_all(shape):
    random_numbers = RandomNumbers(5, "large")
    n_cached_before = _uniform_block.cache_info().currsize
    uniforms = random_numbers.uniforms(0, np.array([3, 70]), shape)
    n_values = int(np.prod(shape))
    for position, image in enumerate((3, 70)):
        words = generator(5, "large", "start", 0, image).bit_generator.random_raw(-(-n_values // 2)).astype("<u8")
        expected = (words.view("<u4")[:n_values] >> np.uint32(8)) * np.float32(2**-24)
        np.testing.assert_array_equal(uniforms[position].flatten().numpy(), expected)
    # One block for each image of 224 pixels; a larger image exceeds the maximum of a block, and is not cached.
    assert _uniform_block.cache_info().currsize - n_cached_before == (2 if shape[1] == 224 else 0)
