"""Properties of every column, from logits through stores and exports to readers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from robust201.core.errors import EvaluationError
from robust201.core.records import EvaluationResult, Part, Unit, Weights
from robust201.dataset.key_files import iter_unit_texts
from robust201.dataset.published_layout import layout_of, parquet_columns
from robust201.dataset.reader import Dataset
from robust201.dataset.shard_rows import make_batch
from robust201.dataset.values import to_array
from robust201.dataset.verify_dataset import verify_dataset
from robust201.evaluation.measurements import Accumulator, check_values, merge_values
from robust201.store.shards import decode, encode
from robust201.tasks.columns import (
    COLUMNS,
    DESCRIPTIVE_COLUMNS,
    MEASUREMENTS,
    PUBLISHED_MEASUREMENTS,
    RESERVED_NAMES,
    Column,
    column_sources,
    distances_of,
    fields_of,
    to_fixed_point,
)
from tests.support.fabricated import ChangedStore, FabricatedPlan, export

N_CLASSES, N_IMAGES = 3, 12
UNIT = Unit("u", 0, "digits", "clean", (0.0,), N_IMAGES, "p" * 32, "c" * 64)
GENERATOR = torch.Generator().manual_seed(3)
LOGITS = torch.randn((N_IMAGES, N_CLASSES), generator=GENERATOR) * 3
LABELS = torch.arange(N_IMAGES) % 2  # no image has the last label

all_columns = pytest.mark.parametrize("name", COLUMNS)
all_measurements = pytest.mark.parametrize("measurement", MEASUREMENTS)


def measure(measurement, start=0, stop=N_IMAGES, logits=LOGITS):
    accumulator = Accumulator([measurement], N_CLASSES, "cpu", stop - start)
    for batch in torch.arange(stop - start).split(5):
        accumulator.update(batch, logits[start + batch], LABELS[start + batch])
    return accumulator.finalise()


def columns_of(measurement, values):
    """Return the columns of a measurement as float64, the type of all numbers that are read from JSON."""
    return {name: values[name].astype(np.float64) for name in fields_of(measurement).values()}


def columns_of_json(measurement, value):
    return {
        name: to_array(name, [value[field] if field else value])[0].astype(np.float64)
        for field, name in fields_of(measurement).items()
    }


def measure_column(name):
    return measure(COLUMNS[name].measurement)


def batch_of(values):
    """Return the columns of an evaluation as a batch."""
    return make_batch([(UNIT, {name: array[np.newaxis] for name, array in values.items()})])


@all_columns
def test_column_has_declared_type_and_shape(name):
    column, array = COLUMNS[name], measure_column(name)[name]
    assert column.name == name
    assert (array.dtype, array.shape) == (column.dtype, column.shape(N_CLASSES, N_IMAGES))
    assert MEASUREMENTS[column.measurement][column.field] is column
    assert {name, column.measurement, *column.parquet_sources} <= RESERVED_NAMES
    assert (column.contribute is None) != (column.value_from_counts is None)
    assert all(source.meaning.endswith(".") for source in column.parquet_sources.values())


@all_measurements
def test_json_round_trip_preserves_bytes(measurement):
    values = measure(measurement)
    json_value = json.loads(next(iter_unit_texts(measurement, batch_of(values))))
    assert_equal_values(columns_of_json(measurement, json_value), columns_of(measurement, values))


@all_columns
@pytest.mark.parametrize("damage", ["value", "NaN", "shape", "type"])
def test_check_values_rejects_damaged_value(name, damage):
    values = measure_column(name)
    check_values(values, N_IMAGES)
    array = values[name].copy()
    if damage == "value":
        array.flat[0] = 1.5 * COLUMNS[name].largest if array.dtype.kind == "f" else np.iinfo(array.dtype).max
    elif damage == "NaN":
        if COLUMNS[name].is_integer:
            pytest.skip("whole numbers are never NaN")
        array.flat[0] = np.nan
    else:
        array = array[None] if damage == "shape" else array.astype(np.float32)
    with pytest.raises(EvaluationError, match=name):
        check_values({**values, name: array}, N_IMAGES)


@all_columns
@pytest.mark.parametrize("wrong_number", [-1, 0.5, 1.5, "1"])
def test_reader_rejects_wrong_number(name, wrong_number):
    column = COLUMNS[name]
    if wrong_number == 0.5 and not column.is_integer:
        pytest.skip("0.5 is a valid fraction")
    if wrong_number == 1.5 and column.is_integer:
        pytest.skip("the case 0.5 already tests a number that is not whole")
    json_value = json.loads(next(iter_unit_texts(column.measurement, batch_of(measure_column(name)))))
    values_by_strength = [json_value]
    parent, key = (json_value, column.field) if column.field else (values_by_strength, 0)
    for _ in column.dimensions:
        parent, key = parent[key], 0
    parent[key] = wrong_number * column.largest if wrong_number == 1.5 else wrong_number
    with pytest.raises(ValueError, match=r"\w"):
        to_array(name, [json_value[column.field] if column.field else values_by_strength[0]])


def assert_equal_values(values, expected):
    assert values.keys() == expected.keys()
    for name, array in expected.items():
        assert (values[name].dtype, values[name].shape) == (array.dtype, array.shape)
        assert values[name].tobytes() == array.tobytes(), name


def store_and_merge(unit, measurement):
    """Store a unit's results in two shards, and return the columns read and merged, by strength.

    The logits differ between units and between strengths.
    """
    rows = []
    for start, stop in ((0, 5), (5, N_IMAGES)):
        part, results = Part(unit, unit.strengths, start, stop), []
        for strength in unit.strengths:
            generator = torch.Generator().manual_seed(unit.architecture + int(strength))
            logits = torch.randn((N_IMAGES, N_CLASSES), generator=generator)
            values = measure(measurement, start, stop, logits)
            results.append(EvaluationResult(part, strength, values, 0.5, {"host": "here"}))
        rows.append(decode(encode(results)).rows)
    return {strength: merge_values([part[strength] for part in rows]) for strength in unit.strengths}


@all_measurements
def test_readers_of_exports_return_stored_values(measurement, tmp_path):
    units = [
        replace(UNIT, id=str(architecture), architecture=architecture, key="pgd", strengths=(1.0, 4.0))
        for architecture in (0, 10)
    ]
    stored = {unit: store_and_merge(unit, measurement) for unit in units}
    plan = FabricatedPlan(tuple(units), (measurement,))
    store = ChangedStore(change=lambda unit, strength, _values: stored[unit][strength])
    export(tmp_path / "json", plan, store, formats=("json",))
    export(tmp_path / "parquet", plan, store, formats=("parquet",))
    for folder in ("json", "parquet"):
        dataset = Dataset(tmp_path / folder)
        values = dataset.query("digits", "pgd", measurement)["digits"]["pgd"][measurement]
        assert dataset.read_table("digits", "pgd", measurement)["value"].tolist() == [*values["0"], *values["10"]]
        for unit, stored_by_strength in stored.items():
            values_by_strength = dataset.value(unit.architecture, "digits", "pgd", measurement)
            assert values_by_strength == values[str(unit.architecture)]
            for strength, value in zip(unit.strengths, values_by_strength, strict=True):
                expected = columns_of(measurement, stored_by_strength[strength])
                assert_equal_values(columns_of_json(measurement, value), expected)
    assert verify_dataset(tmp_path / "json").is_valid
    assert verify_dataset(tmp_path / "parquet").is_valid


def test_new_column_needs_only_an_entry_in_columns(monkeypatch):
    def contribute(outputs):
        losses = torch.nn.functional.cross_entropy(outputs.logits, outputs.labels, reduction="none")
        return outputs.labels, to_fixed_point(losses, 16.0)

    options = {"contribute": contribute, "count_images_per_mean": lambda cm: cm.sum(-1), "largest": 16.0}
    monkeypatch.setitem(COLUMNS, "loss", Column("loss", "loss", dimensions=("classes",), **options))
    whole, parts = measure("loss"), [measure("loss", 0, 5), measure("loss", 5, N_IMAGES)]
    check_values(whole, N_IMAGES)
    assert_equal_values(merge_values(parts), whole)
    losses = torch.nn.functional.cross_entropy(LOGITS, LABELS, reduction="none")
    expected = [float(losses[label == LABELS].mean()) for label in range(N_CLASSES)]
    np.testing.assert_allclose(whole["loss"], expected, atol=1e-6)
    with pytest.raises(EvaluationError, match=r"loss in \[0, 16\]"):
        check_values({**whole, "loss": whole["loss"] + 16}, N_IMAGES)


def test_to_fixed_point_clips_numbers_above_the_largest():
    assert to_fixed_point(torch.tensor([0.25, 16.0, 17.0, 1e30]), 16.0).tolist() == [2**26, 2**32, 2**32, 2**32]


@pytest.mark.parametrize("space", ["nasbench201", "zoo"])
def test_columns_of_exported_files_are_reserved(space):
    weights = [Weights("0" * 64, recipe="std", epochs=1, seed=0, steps=10)]
    columns = parquet_columns(list(MEASUREMENTS), layout_of(space).columns, "", weights=weights)
    measurement_columns = {name for measurement in MEASUREMENTS for name in column_sources(measurement)}
    assert measurement_columns <= set(columns) <= measurement_columns | set(DESCRIPTIVE_COLUMNS) <= RESERVED_NAMES


def test_published_measurements_exclude_per_image_columns():
    assert set(PUBLISHED_MEASUREMENTS) <= set(MEASUREMENTS)
    assert not any(column.is_per_image for name in PUBLISHED_MEASUREMENTS for column in MEASUREMENTS[name].values())


def round_trip_distances(distances):
    """Store distances of misclassified images in a result, and return them as read back."""
    n_images = len(distances)
    accumulator = Accumulator(["distances"], 2, "cpu", n_images)
    logits = torch.tensor([[0.0, 1.0]]).repeat(n_images, 1)
    labels = torch.zeros(n_images, dtype=torch.long)
    accumulator.update(torch.arange(n_images), logits, labels, measure_distances=lambda: distances)
    return distances_of(accumulator.finalise()["distances"])


def test_stored_distance_is_rounded_down_but_not_to_zero():
    radii = torch.arange(256, dtype=torch.float64) / 255
    distances = round_trip_distances(radii)
    assert (distances <= radii.numpy()).all()
    np.testing.assert_allclose(distances, radii, atol=1e-9)
    assert round_trip_distances(torch.tensor([0.0, 1e-12])).tolist() == [0.0, 1e-9]
