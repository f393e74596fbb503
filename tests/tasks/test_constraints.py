"""Norm balls: strengths, distances and limits. The slack covers rounding errors, but hardly more."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.attacks.context import Perturbed, to_float
from robust201.attacks.contract import check_batches
from robust201.attacks.l1_projection import correction_to_l1
from robust201.attacks.pgd import project_to_l2_ball
from robust201.core.errors import PerturbationError
from robust201.tasks import TASKS
from robust201.tasks.constraints import CONSTRAINTS, L1, L2, LINF
from tests.support.tiny_networks import request_of, tiny_context, tiny_images

IMAGES = tiny_images()
all_constraints = pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=lambda constraint: constraint.name)


def test_radius_and_published_key_of_constraints():
    assert LINF.radius(8.0) == 8 / 255
    assert L2.radius(0.5) == 0.5
    assert L1.radius(12.0) == 12.0
    assert TASKS["aa_apgd-ce_l1"].published_key == "aa_apgd-ce_l1@L1"
    assert TASKS["pgd"].published_key == "pgd@Linf"
    assert TASKS["pgd_l2"].published_key == "pgd_l2@L2"


@all_constraints
def test_strengths_above_largest_distance_are_rejected(constraint):
    black, white = torch.zeros(1, 3, 4, 4), torch.ones(1, 3, 4, 4)
    largest = constraint.divisor * constraint.distances(white - black).item()
    assert constraint.excessive_strength_reason((0.1, round(largest, 4)), (3, 4, 4)) is None
    assert f"expected strengths up to {largest:.6g}" in constraint.excessive_strength_reason(
        (0.1, 1.001 * largest), (3, 4, 4)
    )


@all_constraints
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-12, 1e-3, 1.0]), n_images=st.integers(1, 4))
def test_distances_match_numpy(constraint, seed, scale, n_images):
    differences = np.random.default_rng(seed).uniform(-scale, scale, (n_images, 3, 4, 5)).astype(np.float32)
    order = np.inf if constraint.order == "inf" else constraint.order
    expected = np.linalg.norm(differences.astype(np.float64).reshape(n_images, -1), ord=order, axis=1)
    np.testing.assert_allclose(constraint.distances(torch.from_numpy(differences)).numpy(), expected, rtol=1e-12)


def check_images(images, constraint, strength):
    """Check that perturbed images are in a ball, and return the checked batches."""
    batches = iter([Perturbed(0, torch.arange(len(images)), images)])
    request = request_of(IMAGES, (strength,))
    return list(check_batches(batches, tiny_context(""), request, constraint, None, name="#0 tiny"))


def move_towards_grey(length, constraint, moved=slice(None)):
    """Return the images, with those at `moved` moved towards grey by a length in the norm, so no pixel is clipped."""
    clean = to_float(torch.from_numpy(IMAGES.images))
    direction = 0.5 - clean
    lengths = constraint.distances(direction).float().view(-1, 1, 1, 1)
    assert (lengths > length).all()
    clean[moved] += (direction * (length / lengths))[moved]
    return clean


@all_constraints
@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_check_batches_accepts_images_in_ball(constraint, fraction):
    images = move_towards_grey(fraction * constraint.radius(0.25), constraint)
    assert len(check_images(images, constraint, 0.25)) == 1


@all_constraints
@pytest.mark.parametrize("moved", [slice(None), 0, 20], ids=str)
def test_check_batches_rejects_images_outside_ball(constraint, moved):
    images = move_towards_grey(1.01 * constraint.reach(0.25), constraint, moved)
    with pytest.raises(PerturbationError, match=f"#0 tiny: expected {constraint.name} distances up to epsilon"):
        check_images(images, constraint, 0.25)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    epsilon=st.floats(1e-3, 20),
    size=st.sampled_from([8, 32, 64]),
    factor=st.sampled_from([1.0, 1.0001, 3.0]),
)
def test_l2_projection_exceeds_ball_by_at_most_half_the_slack(seed, epsilon, size, factor):
    generator = torch.Generator().manual_seed(seed)
    clean = to_float(torch.randint(0, 256, (4, 3, size, size), generator=generator, dtype=torch.uint8))
    difference = torch.randn(clean.shape, generator=generator) * torch.rand(clean.shape, generator=generator)
    difference *= factor * epsilon / difference.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    epsilons = torch.full((4, 1, 1, 1), epsilon)
    images = project_to_l2_ball(project_to_l2_ball(clean + difference, clean, epsilons).clamp(0, 1), clean, epsilons)
    assert (L2.distances(images - clean) <= L2.radius(epsilon) + L2.slack / 2).all()


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    epsilon=st.floats(1e-3, 500),
    size=st.sampled_from([4, 32]),
    factor=st.sampled_from([0.5, 1.0001, 3.0, 20.0]),
)
def test_l1_projection_is_in_ball_and_image_range(seed, epsilon, size, factor):
    generator = torch.Generator().manual_seed(seed)
    clean = to_float(torch.randint(0, 256, (3, 3, size, size), generator=generator, dtype=torch.uint8))
    difference = torch.randn(clean.shape, generator=generator)
    difference *= factor * epsilon / difference.flatten(1).abs().sum(dim=1).view(-1, 1, 1, 1)
    radii = torch.full((3, 1, 1, 1), epsilon)
    images = clean + difference + correction_to_l1(clean, difference, radii)
    assert (L1.distances(images - clean) <= (epsilon + L1.reach(epsilon)) / 2).all()
    assert images.min() > -1e-5
    assert images.max() < 1 + 1e-5
    # Images in the ball and in range are unchanged, and signs of differences are preserved.
    second_correction = correction_to_l1(clean, images - clean, radii)
    torch.testing.assert_close(
        second_correction, torch.zeros_like(second_correction), rtol=0, atol=2e-5 * max(1, epsilon)
    )
    assert (((images - clean) * difference) >= -1e-6).all()


@pytest.mark.parametrize("epsilon", [0.05, 0.4, 2.0])
def test_l1_projection_is_nearest_point(epsilon):
    """Compare the projection's distance with that of the nearest point of a fine three-dimensional grid in the ball."""
    clean = torch.tensor([0.1, 0.5, 0.95]).view(1, 3, 1, 1)
    difference = torch.tensor([0.7, -0.3, 0.4]).view(1, 3, 1, 1)
    projected = clean + difference + correction_to_l1(clean, difference, torch.full((1, 1, 1, 1), epsilon))
    axis = torch.linspace(0, 1, 101)
    points = torch.cartesian_prod(axis, axis, axis)
    is_inside = (points - clean.flatten()).abs().sum(dim=1) <= epsilon
    nearest = (points[is_inside] - (clean + difference).flatten()).norm(dim=1).min()
    distance = (projected - clean - difference).norm()
    assert distance <= nearest + 1e-5
    assert distance >= nearest - 0.02


def test_slack_is_above_rounding_and_below_smallest_epsilon():
    """The slack is more than three roundings in the worst case, in which one rounding changes each pixel by 2**-25."""
    n_values, rounding_error = 3 * 32 * 32, 2**-25
    assert 3 * math.sqrt(n_values) * rounding_error < L2.slack < 0.001 * min(TASKS["pgd_l2"].parameters().strengths)
    assert (
        3 * n_values * rounding_error
        < L1.slack
        < L1.reach(3.0) - 3.0
        < 0.0002 * min(TASKS["aa_apgd-ce_l1"].parameters().strengths)
    )
    assert 3 * rounding_error < LINF.slack < 0.01 * LINF.radius(0.1)
