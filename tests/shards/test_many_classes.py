"""Shards with more than 256 classes have no confusion matrix. Their parts are merged correctly, even if compacted."""

from pathlib import Path

import numpy as np
import pytest

from robust201.core.records import EvaluationResult, Part
from robust201.shards import ShardStore
from tests.support.shard_support import make_unit
from tests.tasks.test_many_classes import COMPACT_MEASUREMENTS, N_IMAGES, measure

IMAGE_RANGES = ((0, 7), (7, 8), (8, N_IMAGES))
MEASUREMENTS = ("accuracy", "predictions")


@pytest.mark.parametrize("is_compacted", [False, True])
def test_store_merges_parts_without_confusion_matrices(tmp_path: Path, is_compacted: bool) -> None:
    unit = make_unit(0, key="clean", strengths=(0.0,), n_images=N_IMAGES)
    store = ShardStore.create(tmp_path)
    for start, stop in IMAGE_RANGES:
        part = Part(unit, (0.0,), start, stop)
        store.commit([EvaluationResult(part, 0.0, measure(COMPACT_MEASUREMENTS, start, stop), 1.0, {"host": "here"})])
    if is_compacted:
        assert store.compact().outputs == 1
    assert not list(store.verify())
    inventory = store.inventory()
    assert inventory.is_complete(unit, 0.0, MEASUREMENTS)
    expected = measure(COMPACT_MEASUREMENTS)
    values = store.values(unit, 0.0, inventory, MEASUREMENTS)
    (batch,) = store.select([unit], inventory, MEASUREMENTS).iter_batches()
    for name in MEASUREMENTS:
        np.testing.assert_array_equal(values[name], expected[name])
        np.testing.assert_array_equal(batch.columns[name][0], expected[name])
    assert batch.columns["predictions"].dtype == np.uint16
