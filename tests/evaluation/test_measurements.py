"""Measurements are exact in any image order, and merged parts are byte-identical to the whole."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import EvaluationError
from robust201.evaluation.measurements import MAX_IMAGES, Accumulator, check_values, merge_values, row_sum_tolerance
from robust201.tasks.columns import COLUMNS, MEASUREMENTS, columns_of

ALL_MEASUREMENTS = tuple(MEASUREMENTS)


@st.composite
def draw_logits_and_labels(draw, max_images=40):
    """Draw logits and labels of a few images. Often some classes have no images or no predictions."""
    n_images = draw(st.integers(1, max_images))
    n_classes = draw(st.sampled_from([2, 3, 10]))
    seed = draw(st.integers(0, 2**32 - 1))
    scale = draw(st.sampled_from([0.0, 1.0, 8.0, 200.0]))
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((n_images, n_classes), generator=generator) * scale
    labels = torch.randint(0, draw(st.integers(1, n_classes)), (n_images,), generator=generator)
    return logits, labels


def measure(logits, labels, order=None, batch_size=1000, measurements=ALL_MEASUREMENTS):
    order = torch.arange(len(labels)) if order is None else order
    accumulator = Accumulator(measurements, logits.shape[1], "cpu", len(labels))
    for positions in order.split(batch_size):
        accumulator.update(positions, logits[positions], labels[positions])
    return accumulator.finalise()


def assert_same_bytes(values, expected):
    assert list(values) == list(expected)
    for name in values:
        assert (values[name].dtype, values[name].shape) == (expected[name].dtype, expected[name].shape)
        assert values[name].tobytes() == expected[name].tobytes()


@given(draw_logits_and_labels())
def test_values_match_definition(logits_with_labels):
    logits, labels = logits_with_labels
    n_classes = logits.shape[1]
    values = measure(logits, labels)
    softmax = logits.double().softmax(dim=1).numpy()
    predicted, labels = logits.argmax(dim=1).numpy(), labels.numpy()
    assert values["accuracy"] == np.mean(predicted == labels)
    assert values["predictions"].tolist() == predicted.tolist()
    confidence = softmax[np.arange(len(labels)), predicted]
    for i in range(n_classes):
        assert values["cm"][i].tolist() == [int(np.sum((labels == i) & (predicted == j))) for j in range(n_classes)]
        for name, selected in (("confidence_label", labels == i), ("confidence_argmax", predicted == i)):
            expected = softmax[selected].mean(axis=0) if selected.any() else np.full(n_classes, np.nan)
            np.testing.assert_allclose(values[name][i], expected, atol=1e-6)
    for i, selected in enumerate((predicted == labels, predicted != labels)):
        expected = confidence[selected].mean() if selected.any() else np.nan
        np.testing.assert_allclose(values["confidence_prediction"][i], expected, atol=1e-6)


@given(draw_logits_and_labels(), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_values_do_not_depend_on_order_and_batches(logits_with_labels, seed, batch_size):
    logits, labels = logits_with_labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    assert_same_bytes(measure(logits, labels, order, batch_size), measure(logits, labels))


@given(draw_logits_and_labels(), st.data())
def test_merged_parts_equal_whole(logits_with_labels, data):
    logits, labels = logits_with_labels
    boundaries = data.draw(st.lists(st.integers(1, len(labels)), unique=True, max_size=5).map(sorted))
    edges = [0, *boundaries, len(labels)]
    parts = [
        measure(logits[start:stop], labels[start:stop]) for start, stop in itertools.pairwise(edges) if start < stop
    ]
    expected = measure(logits, labels)
    assert_same_bytes(merge_values(parts), expected)
    middle = data.draw(st.integers(1, len(parts)))
    first_group = [merge_values(parts[:middle])]
    second_group = [merge_values(parts[middle:])] if parts[middle:] else []
    assert_same_bytes(merge_values(first_group + second_group), expected)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_maximum_number_of_images_merges_exactly(seed):
    # All images have one class, which is predicted with a confidence of .5 or more, so sums are close to their bound.
    generator = np.random.default_rng(seed)
    n_part_images = MAX_IMAGES // 2
    sums = generator.integers(n_part_images * 2**31, n_part_images * 2**32, size=2, endpoint=True)

    def part_values(total, count):
        mean = np.array([[total / (count * 2.0**32), 1 - total / (count * 2.0**32)], [np.nan, np.nan]])
        return {
            "cm": np.array([[count, 0], [0, 0]], dtype=np.int32),
            "accuracy": np.array(1.0),
            "confidence_label": mean,
        }

    merged = merge_values([part_values(int(total), n_part_images) for total in sums])
    assert merged["confidence_label"][0, 0] == int(sums.sum()) / (MAX_IMAGES * 2.0**32)


def test_confidences_are_rounded_to_multiples_of_2_to_minus_32():
    logits = torch.randn((200, 7), generator=torch.Generator().manual_seed(2)) * 3
    for image_logits in logits:
        values = measure(image_logits[None], torch.tensor([4]), measurements=("confidence",))
        expected = np.rint(image_logits.softmax(dim=0).double().numpy() * 2.0**32) / 2.0**32
        np.testing.assert_array_equal(values["confidence_label"][4], expected)


def test_accumulator_and_merge_reject_too_many_images():
    with pytest.raises(EvaluationError, match="262,144"):
        Accumulator(ALL_MEASUREMENTS, 10, "cpu", MAX_IMAGES + 1)
    cm = np.array([[MAX_IMAGES // 2 + 1]], dtype=np.int32)
    with pytest.raises(EvaluationError, match="262,144"):
        merge_values([{"accuracy": np.array(1.0), "cm": cm}] * 2)


@given(draw_logits_and_labels())
def test_measured_values_match_the_table_of_columns_and_pass_checks(logits_with_labels):
    logits, labels = logits_with_labels
    n_classes = logits.shape[1]
    for measurements in (ALL_MEASUREMENTS, ("accuracy",), ("confidence",), ("predictions", "cm")):
        values = measure(logits, labels, measurements=measurements)
        assert tuple(values) == columns_of(measurements, n_classes)
        assert {"accuracy", "cm"} <= set(values)
        for name, array in values.items():
            assert array.shape == COLUMNS[name].shape(n_classes, len(labels))
            assert array.dtype == COLUMNS[name].dtype
        check_values(values, len(labels), np.bincount(labels, minlength=n_classes))


@pytest.mark.parametrize("logit", [torch.nan, torch.inf, -torch.inf])
def test_finalise_rejects_non_finite_logits(logit):
    accumulator = Accumulator(ALL_MEASUREMENTS, 2, "cpu", 2, name="#3")
    accumulator.update(torch.arange(2), torch.tensor([[1.0, logit], [0.0, 1.0]]), torch.tensor([0, 1]))
    with pytest.raises(EvaluationError, match=r"#3: expected finite logits, got NaN or infinity for 1 of 2 images"):
        accumulator.finalise()


def test_finalise_rejects_missing_images():
    accumulator = Accumulator(ALL_MEASUREMENTS, 2, "cpu", 3)
    accumulator.update(torch.arange(2), torch.zeros(2, 2), torch.tensor([0, 1]))
    with pytest.raises(EvaluationError, match="expected 3 images, got 2"):
        accumulator.finalise()


def _example_values():
    generator = torch.Generator().manual_seed(5)
    return measure(torch.randn((30, 3), generator=generator), torch.arange(30) % 2)


def _damaged_values(name, index, change):
    values = {column: array.copy() for column, array in _example_values().items()}
    values[name][index] = change(values[name][index])
    return values


DAMAGED_VALUES = [
    ("accuracy", _damaged_values("accuracy", (), lambda x: x + 1e-12)),
    ("cm", _damaged_values("cm", (0, 0), lambda x: x + 1)),
    ("cm", _damaged_values("cm", ([0, 1], [0, 0]), lambda x: x + np.array([1, -1]))),
    ("cm", _damaged_values("cm", ([0, 0], [0, 1]), lambda x: x + np.array([-31, 31]))),
    ("confidence_label", _damaged_values("confidence_label", (0, 0), lambda x: x + 1e-4)),
    ("confidence_label", _damaged_values("confidence_label", (0, 0), lambda x: x + 1e-10)),
    ("confidence_label", _damaged_values("confidence_label", (0, [0, 1]), lambda x: x + np.array([-1.5, 1.5]))),
    ("confidence_label", _damaged_values("confidence_label", 2, lambda _: 1 / 3)),
    ("confidence_argmax", _damaged_values("confidence_argmax", (1, 1), lambda x: x - 1e-4)),
    ("confidence_prediction", _damaged_values("confidence_prediction", 0, lambda _: 1.5)),
    ("predictions", _damaged_values("predictions", 4, lambda x: (x + 1) % 3)),
    ("predictions", _damaged_values("predictions", 4, lambda _: 200)),
    ("loss", {**_example_values(), "loss": np.array(1.0)}),
    ("cm", {"accuracy": np.array(1.0)}),
]


@pytest.mark.parametrize(("column", "values"), DAMAGED_VALUES)
def test_check_values_rejects_damage(column, values):
    check_values(_example_values(), 30, np.array([15, 15, 0]), name="#0 tiny fgsm")
    with pytest.raises(EvaluationError, match=f"#0 tiny fgsm: .*{column}"):
        check_values(values, 30, np.array([15, 15, 0]), name="#0 tiny fgsm")


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [_example_values(), {name: _example_values()[name] for name in ("accuracy", "cm")}],
        [_example_values(), measure(torch.zeros((3, 2)), torch.arange(3) % 2)],
    ],
    ids=["no parts", "different columns", "different classes"],
)
def test_merge_values_rejects_mismatched_parts(parts):
    with pytest.raises(EvaluationError, match="Merging failed for #7: expected parts with equal columns"):
        merge_values(parts, name="#7")


@pytest.mark.parametrize(("n_classes", "tolerance"), [(10, 1e-5), (120, 1e-5), (1000, 5.9e-5), (4096, 2.4e-4)])
def test_row_sum_tolerance_grows_with_number_of_classes(n_classes, tolerance):
    assert row_sum_tolerance(n_classes) == pytest.approx(tolerance, rel=0.02)
    sums = (torch.randn(50, n_classes, generator=torch.Generator().manual_seed(0)) * 4).softmax(dim=1).double().sum(1)
    assert float((sums - 1).abs().max()) <= row_sum_tolerance(n_classes)
