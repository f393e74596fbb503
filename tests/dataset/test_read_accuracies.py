"""`accuracies` returns the same accuracies as the tidy table, in one array per dataset."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201.core.records import CLEAN_STRENGTH
from robust201.dataset.layout import paper_key, sort_by_task_order
from robust201.dataset.reader import Dataset
from tests.support.fabricated import export_copy, make_plan
from tests.support.small_results import write_results


def pivot_accuracies(dataset: Dataset, dataset_name: str) -> pd.DataFrame:
    """Return the tidy table in wide form, without the clean accuracies at the beginning of attacks."""
    table = dataset.to_frame(dataset_name)
    keys_with_clean = [key for key in table["key"].unique() if dataset.uses_clean_at_zero(dataset_name, str(key))]
    table = table[(table["strength"] != CLEAN_STRENGTH) | ~table["key"].isin(keys_with_clean)]
    wide_table = (
        table.astype({"key": str}).set_index(["architecture", "key", "strength"])["value"].unstack(["key", "strength"])
    )
    key_order = sort_by_task_order(wide_table.columns.unique("key"))
    ordered_columns = sorted(wide_table.columns, key=lambda column: (key_order.index(column[0]), column[1]))
    column_names = pd.MultiIndex.from_tuples(
        [(paper_key(key), strength) for key, strength in ordered_columns], names=["key", "strength"]
    )
    return wide_table[ordered_columns].set_axis(column_names, axis=1).sort_index()


def check_read_accuracies(dataset: Dataset, dataset_name: str = "cifar10") -> pd.DataFrame:
    wide_table = dataset.accuracies(dataset_name)
    pd.testing.assert_frame_equal(wide_table, pivot_accuracies(dataset, dataset_name))
    return wide_table


PUBLISHED_ACCURACIES = {
    "clean": {"10": 0.5, "2": 0.9, "0": None},
    "pgd@Linf": {"2": [0.3, None], "10": [0.4, 0.1]},
    "fog": {"10": [0.1, 0.2, 0.3, 0.4, 0.5], "21": [None, None, None, None, None]},
}


def test_read_accuracies_equals_frame_for_json(tmp_path: Path) -> None:
    wide_table = check_read_accuracies(Dataset(write_results(tmp_path, PUBLISHED_ACCURACIES)))
    assert wide_table.index.tolist() == [2, 10]
    assert np.isnan(wide_table.loc[2, ("pgd", 8.0)])


def test_read_accuracies_equals_frame_for_overlay(tmp_path: Path) -> None:
    write_results(tmp_path / "first", PUBLISHED_ACCURACIES)
    write_results(tmp_path / "second", {"clean": {"0": 0.7, "2": 0.1}, "fgsm": {"0": [0.2, 0.1]}})
    wide_table = check_read_accuracies(Dataset(tmp_path / "second", tmp_path / "first"))
    assert wide_table.index.tolist() == [0, 2, 10]  # no folder has an accuracy of #21
    assert wide_table["clean", 0.0].tolist() == [0.7, 0.9, 0.5]


@pytest.mark.parametrize("formats", [("json",), ("parquet",)])
def test_read_accuracies_equals_frame_for_export(tmp_path: Path, formats: tuple[str, ...]) -> None:
    plan = make_plan([0, 2, 10], ["clean", "pgd", "fog"])
    export_copy(tmp_path / "dataset", plan, formats=formats)
    assert len(check_read_accuracies(Dataset(tmp_path / "dataset"))) == 3
