"""Attacks over a grid of rotations and translations match Foolbox and do not depend on the batch size."""

import dataclasses

import pytest
import torch
from pydantic import ValidationError

from robust201.attacks.context import to_float
from robust201.attacks.spatial import source_coordinates, transform
from robust201.tasks import TASKS
from tests.support.tiny_networks import CountingNetwork, perturb_all, tiny_classifier, tiny_context, tiny_images

KEYS = ("grid775", "grid135", "grid775_10", "rot30", "rot10")
SMALL_GRIDS = {"grid775": {"rotations": 7}, "grid775_10": {"rotations": 4, "translations": 2}}
IMAGES = tiny_images()
CLEAN = to_float(torch.from_numpy(IMAGES.images))
LABELS = torch.from_numpy(IMAGES.labels)


def attack(key, engine, *, classifier=None, images=IMAGES, **changes):
    context = dataclasses.replace(tiny_context(key, classifier), engine=engine)
    (perturbed,) = perturb_all(TASKS[key], TASKS[key].parameters(**changes), images, context).values()
    return perturbed


@pytest.mark.parametrize("key", KEYS)
def test_fused_spatial_attack_matches_foolbox(key):
    perturbed = attack(key, "fused", **SMALL_GRIDS.get(key, {}))
    expected = attack(key, "reference", **SMALL_GRIDS.get(key, {}))
    assert torch.equal(perturbed, expected)
    changed = (perturbed != CLEAN).flatten(1).any(dim=1)
    assert 0 < int(changed.sum()) < len(CLEAN)


@pytest.mark.parametrize("n_samples", [1, 5, 1000])
def test_result_does_not_depend_on_the_batch_size(n_samples):
    classifier = tiny_classifier()
    parameters = TASKS["grid135"].parameters()
    transformed = transform(CLEAN, source_coordinates(parameters, 8, 8))
    assert len(transformed) == 135
    correct = torch.stack([classifier.logits(images).argmax(dim=1) == LABELS for images in transformed])
    expected = CLEAN.clone()
    for position in range(len(CLEAN)):
        fooling_points = (~correct[:, position]).nonzero().flatten()
        if len(fooling_points) and classifier.logits(CLEAN[position : position + 1]).argmax() == LABELS[position]:
            expected[position] = transformed[fooling_points[0], position]
    network = CountingNetwork(classifier.network)
    perturbed = attack("grid135", "fused", classifier=tiny_classifier(network, attack_samples=n_samples))
    assert torch.equal(perturbed, expected)
    # Fooled images are not evaluated again, so there are fewer passes.
    assert network.n_images < 0.8 * 136 * len(CLEAN)


def test_grid_has_expected_number_of_points_and_contains_identity():
    assert [TASKS[key].parameters().n_points for key in KEYS] == [775, 135, 775, 31, 31]
    # The middle of an odd grid is the identity.
    middle = transform(CLEAN, source_coordinates(TASKS["grid135"].parameters(), 8, 8)[135 // 2 : 135 // 2 + 1])[0]
    torch.testing.assert_close(middle, CLEAN, rtol=0, atol=1e-6)


def test_transform_matches_rot90_and_shifted_arrays():
    quarter_turns = TASKS["rot30"].parameters(rotations=2, max_rotation=90)
    clockwise, counterclockwise = transform(CLEAN, source_coordinates(quarter_turns, 8, 8))
    torch.testing.assert_close(clockwise, torch.rot90(CLEAN, -1, dims=(2, 3)), rtol=0, atol=1e-5)
    torch.testing.assert_close(counterclockwise, torch.rot90(CLEAN, 1, dims=(2, 3)), rtol=0, atol=1e-5)
    # A shift of 1 is 1/8 of the image, but the coordinates place the 8 pixel centres 1/7 of the image apart, so a shift
    # of 8/7 moves the image by one pixel. The second of three angles is 0.
    shifts = TASKS["grid775"].parameters(rotations=3, translations=2, max_translation=8 / 7)
    shifted = transform(CLEAN, source_coordinates(shifts, 8, 8)[4:8])
    for index, (column_shift, row_shift) in enumerate([(-1, -1), (-1, 1), (1, -1), (1, 1)]):
        expected = torch.zeros_like(CLEAN)
        rows, columns = (slice(max(0, -shift), 8 - max(0, shift)) for shift in (row_shift, column_shift))
        source_rows, source_columns = (slice(max(0, shift), 8 + min(0, shift)) for shift in (row_shift, column_shift))
        expected[:, :, rows, columns] = CLEAN[:, :, source_rows, source_columns]
        torch.testing.assert_close(shifted[index], expected, rtol=0, atol=1e-5)


def test_parameters_have_defaults_and_reject_bad_values():
    for key in KEYS:
        assert TASKS[key].parameters().strengths == (0.0,)
        assert TASKS[key].published_key == key
        # One more pass classifies the clean images, and one records the result.
        assert TASKS[key].parameters().n_passes(10) == TASKS[key].parameters().n_points + 2
    for invalid_fields in ({"rotations": 1}, {"translations": 1}, {"max_rotation": 0}, {"max_rotation": 181}):
        with pytest.raises(ValidationError):
            TASKS["grid775"].parameters(**invalid_fields)
