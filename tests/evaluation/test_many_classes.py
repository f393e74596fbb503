"""Results for more than 256 classes: predictions take two bytes, and there is no confusion matrix unless requested."""

import numpy as np
import pytest
import torch

from robust201.core.errors import EvaluationError
from robust201.evaluation.measurements import Accumulator, check_values, merge_values, summarise
from robust201.tasks.columns import columns_of
from tests.evaluation.test_measurements import assert_same_bytes
from tests.evaluation.test_measurements import measure as measure_logits

N_CLASSES, N_IMAGES = 1000, 40
GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, N_CLASSES, (N_IMAGES,), generator=GENERATOR)
LOGITS = torch.randn(N_IMAGES, N_CLASSES, generator=GENERATOR)
LOGITS[::3, :] += 9 * torch.nn.functional.one_hot(
    LABELS[::3], N_CLASSES
)  # at least a third of the images are classified correctly
COMPACT_MEASUREMENTS = ("accuracy", "confidence_prediction", "predictions")
"""Measurements that do not request a matrix with a row for each class."""


def measure(measurements, start=0, stop=N_IMAGES):  # type: ignore[no-untyped-def]
    return measure_logits(LOGITS[start:stop], LABELS[start:stop], measurements=measurements)


def test_columns_exclude_matrix_unless_requested():
    assert columns_of(COMPACT_MEASUREMENTS, 1000) == (
        "accuracy",
        "confidence_prediction",
        "predictions",
        "outcome_counts",
    )
    assert columns_of(COMPACT_MEASUREMENTS, 256) == ("accuracy", "cm", "confidence_prediction", "predictions")
    assert columns_of(("cm",), 1000) == ("accuracy", "cm")
    assert {"cm", "confidence_label", "confidence_argmax"} < {*columns_of(("confidence",), 1000)}


def test_compact_values_match_confusion_matrix():
    compact_values, full_values = measure(COMPACT_MEASUREMENTS), measure(("confidence", "cm", "predictions"))
    for values in (compact_values, full_values):
        check_values(values, N_IMAGES, np.bincount(LABELS, minlength=N_CLASSES))
    predicted = LOGITS.argmax(dim=1)
    n_correct = int((predicted == LABELS).sum())
    assert 0 < n_correct < N_IMAGES
    assert compact_values["outcome_counts"].tolist() == [n_correct, N_IMAGES - n_correct]
    assert compact_values["predictions"].dtype == np.uint16
    assert compact_values["predictions"].tolist() == predicted.tolist()
    assert compact_values["predictions"].max() > 255
    for name in ("accuracy", "confidence_prediction", "predictions"):
        np.testing.assert_array_equal(compact_values[name], full_values[name])
    assert summarise(compact_values) == summarise(full_values)


@pytest.mark.parametrize("measurements", [COMPACT_MEASUREMENTS, ("confidence", "cm", "predictions")])
def test_merged_parts_are_byte_identical_to_whole(measurements):
    parts = [measure(measurements, start, stop) for start, stop in ((0, 7), (7, 8), (8, 40))]
    assert_same_bytes(merge_values(parts), measure(measurements))


def test_check_values_rejects_damaged_results():
    values = measure(COMPACT_MEASUREMENTS)
    counts = values["outcome_counts"]
    for damaged_counts in (counts + np.array([1, 0], np.int32), counts[::-1].copy()):
        with pytest.raises(EvaluationError):
            check_values({**values, "outcome_counts": damaged_counts}, N_IMAGES)


def test_accumulator_rejects_too_many_classes():
    with pytest.raises(EvaluationError, match=r"expected up to 32,767 classes, got 70,000"):
        Accumulator(("accuracy",), 70_000, "cpu", 1)
