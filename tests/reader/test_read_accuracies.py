"""Accuracies as one array per dataset, against the tidy table of the same results."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.frames import read_accuracies
from robust201.reader.result_files import in_task_order, paper_key
from tests.support.fabricated import export_copy, make_plan
from tests.support.small_results import write_results


def accuracies_of_table(data: RobustnessDataset, dataset: str) -> pd.DataFrame:
    """Pivot the tidy table, without the clean accuracies that attacks start with."""
    table = data.to_frame(dataset)
    repeating = [key for key in table["key"].unique() if data.files.repeats_clean(dataset, str(key))]
    table = table[(table["strength"] != CLEAN_STRENGTH) | ~table["key"].isin(repeating)]
    wide = (
        table.astype({"key": str}).set_index(["architecture", "key", "strength"])["value"].unstack(["key", "strength"])
    )
    order = in_task_order(wide.columns.unique("key"))
    columns = sorted(wide.columns, key=lambda column: (order.index(column[0]), column[1]))
    names = pd.MultiIndex.from_tuples([(paper_key(key), at) for key, at in columns], names=["key", "strength"])
    return wide[columns].set_axis(names, axis=1).sort_index()


def check(data: RobustnessDataset, dataset: str = "cifar10") -> pd.DataFrame:
    wide_table = read_accuracies(data.files, dataset)
    pd.testing.assert_frame_equal(wide_table, accuracies_of_table(data, dataset))
    return wide_table


PUBLISHED = {
    "clean": {"10": 0.5, "2": 0.9, "0": None},
    "pgd@Linf": {"2": [0.3, None], "10": [0.4, 0.1]},
    "fog": {"10": [0.1, 0.2, 0.3, 0.4, 0.5], "21": [None, None, None, None, None]},
}


def test_read_accuracies_equals_frame_for_json(tmp_path: Path) -> None:
    wide_table = check(RobustnessDataset(write_results(tmp_path, PUBLISHED)))
    assert wide_table.index.tolist() == [0, 2, 10, 21]
    assert np.isnan(wide_table.loc[2, ("pgd", 8.0)])


def test_read_accuracies_equals_frame_for_overlay(tmp_path: Path) -> None:
    write_results(tmp_path / "first", PUBLISHED)
    write_results(tmp_path / "second", {"clean": {"0": 0.7, "2": 0.1}, "fgsm": {"0": [0.2, 0.1]}})
    wide_table = check(RobustnessDataset(tmp_path / "first", tmp_path / "second"))
    assert wide_table.index.tolist() == [0, 2, 10]  # no folder has an accuracy of #21
    assert wide_table["clean", 0.0].tolist() == [0.7, 0.9, 0.5]


@pytest.mark.parametrize("formats", [("json",), ("parquet",)])
def test_read_accuracies_equals_frame_for_export(tmp_path: Path, formats: tuple[str, ...]) -> None:
    plan = make_plan([0, 2, 10], ["clean", "pgd", "fog"])
    export_copy(tmp_path / "dataset", plan, formats=formats)
    assert len(check(RobustnessDataset(tmp_path / "dataset"))) == 3


def test_read_accuracies_is_empty_without_accuracies(tmp_path: Path) -> None:
    assert read_accuracies(RobustnessDataset(write_results(tmp_path, PUBLISHED)).files, "cifar100").empty
