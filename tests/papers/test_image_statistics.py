"""Singular values match known spectra; psychometric curves match integrals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from jobs.papers.image_distribution.psychometrics import fit_logistic, logistic, logistic_robustness
from jobs.papers.image_distribution.singular_values import singular_spectra


def images_from_matrices(*matrices: list[list[int]]) -> np.ndarray:
    """Return images with one channel, one per matrix."""
    return np.array(matrices, np.uint8)[:, None]


def test_effective_rank_is_full_for_identity_and_one_for_constant_images():
    identity, constant = np.eye(4, dtype=np.uint8) * 200, np.full((4, 4), 7)
    spectra = singular_spectra(images_from_matrices(identity.tolist(), constant.tolist()))
    np.testing.assert_allclose(spectra.energy, [[0.25] * 4, [1, 0, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(spectra.effective_rank, [4, 1])
    assert spectra.rank_of_energy(0.5).tolist() == [2, 1]
    assert spectra.rank_of_energy(1).tolist() == [4, 1]


def test_spectrum_of_diagonal_image_matches_hand_calculation():
    (energy,), (effective_rank,) = singular_spectra(images_from_matrices([[30, 0], [0, 10]]))
    np.testing.assert_allclose(energy, [0.9, 0.1])
    assert effective_rank == pytest.approx(0.75**-0.75 * 0.25**-0.25)


def test_centred_spectrum_excludes_the_mean():
    image = images_from_matrices([[200, 210], [200, 210]])
    assert singular_spectra(image).energy[0, 0] > 0.99
    spectra = singular_spectra(images_from_matrices([[210, 200], [200, 210]]), centred=True)
    # The centred image is 5 * [[1, -1], [-1, 1]], which has rank 1.
    np.testing.assert_allclose(spectra.energy, [[1, 0]], atol=1e-12)
    assert spectra.effective_rank.tolist() == pytest.approx([1])


def test_spectra_are_means_over_nonzero_channels():
    identity, zeros = np.eye(2, dtype=np.uint8), np.zeros((2, 2), np.uint8)
    images = np.stack([np.stack([identity, np.ones_like(zeros)]), np.stack([identity, zeros]), np.stack([zeros] * 2)])
    spectra = singular_spectra(images)
    np.testing.assert_allclose(spectra.energy, [[0.75, 0.25], [0.5, 0.5], [np.nan] * 2], atol=1e-12)
    np.testing.assert_allclose(spectra.effective_rank, [1.5, 2, np.nan])
    assert np.isnan(spectra.rank_of_energy(0.9)[2])


def test_spectra_do_not_depend_on_the_division_into_blocks():
    images = np.random.default_rng(0).integers(0, 256, (1003, 1, 3, 4), np.uint8)
    all_spectra, last_spectra = singular_spectra(images), singular_spectra(images[1000:])
    assert all_spectra.energy.shape == (1003, 3)
    np.testing.assert_array_equal(all_spectra.energy[1000:], last_spectra.energy)


PAPER_STRENGTHS = np.array([0, 0.0125, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])


@given(st.floats(0.5, 1.0), st.floats(0.0, 0.3), st.floats(-0.1, 0.3), st.floats(0.01, 0.2))
def test_robustness_of_logistic_curve_matches_the_integral(upper, lower, midpoint, scale):
    parameters = upper, lower, midpoint, scale
    area, _ = quad(lambda strength: float(logistic(strength, *parameters)), 0, 0.3, points=[min(max(midpoint, 0), 0.3)])
    expected = area / (float(logistic(0, *parameters)) * 0.3)
    assert logistic_robustness(parameters, 0, 0.3) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("parameters", [(0.98, 0.02, 0.12, 0.03), (0.9, 0.0, 0.02, 0.01), (0.7, 0.2, 0.2, 0.05)])
def test_fit_recovers_a_known_curve(parameters):
    accuracies = logistic(PAPER_STRENGTHS, *parameters)
    fitted = fit_logistic(PAPER_STRENGTHS, accuracies)
    np.testing.assert_allclose(logistic(PAPER_STRENGTHS, *fitted), accuracies, atol=1e-3)
    assert logistic_robustness(fitted, 0, 0.3) == pytest.approx(logistic_robustness(parameters, 0, 0.3), abs=1e-3)
