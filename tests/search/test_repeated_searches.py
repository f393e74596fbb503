"""Repeated searches report optima, and means over runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201 import Dataset
from robust201.analysis.dataset_results import choose_results, read_results
from robust201.core.errors import ConfigError
from robust201.search.repeated_searches import RepeatedSearches, repeat_searches
from robust201.statistics.intervals import mean_intervals
from tests.support.planted import best_cell, planted_accuracy, write_planted


@pytest.fixture(scope="module")
def reader(planted_optimum_folder: Path) -> Dataset:
    return Dataset(planted_optimum_folder)


def search(reader: Dataset, objective: str = "clean", **options: object) -> RepeatedSearches:
    settings = {"methods": ["local"], "n_queries": 300, "n_runs": 4} | options
    results = choose_results(read_results(reader), "cifar10", reader.path)
    return repeat_searches(results, [objective], **settings)  # type: ignore[arg-type]


def row_of(search_result: RepeatedSearches, column: str) -> pd.Series:
    return search_result.table.set_index("column").loc[column]


def test_local_search_finds_the_planted_cell(reader):
    search_result = search(reader)
    clean, pgd = (row_of(search_result, column) for column in ("clean", "pgd:1/255"))
    assert reader.get_uid(int(search_result.selected["clean"]["local"][0])) == str(best_cell())
    assert clean["optimum_fraction"] == 1
    assert search_result.n_members == 15_625
    assert clean["optimum"] == pytest.approx(planted_accuracy("clean", 0).max(), abs=1e-6)
    assert pgd["optimum"] == pytest.approx(planted_accuracy("pgd", 1).max(), abs=1e-6)
    assert search_result.absent == ("aa_apgd-ce:1/255", "aa_square:1/255", "corruption")
    assert pgd["mean"] == pytest.approx(planted_accuracy("pgd", 1)[best_cell()], abs=1e-6)


def test_reported_means_are_over_runs(reader):
    search_result = search(reader, methods=["random"], n_queries=20, n_runs=8)
    accuracies = planted_accuracy("clean", 0)[search_result.selected["clean"]["random"]]
    mean, low, high = mean_intervals(accuracies)
    clean = row_of(search_result, "clean")
    assert tuple(clean[["mean", "low", "high"]]) == pytest.approx((mean, low, high), abs=1e-5)
    assert clean["deviation"] == pytest.approx(np.std(accuracies, ddof=1), abs=1e-5)
    assert low < mean < high


def test_search_of_a_key_uses_its_mean_over_strengths(reader):
    search_result = search(reader, "pgd", n_queries=12, n_runs=1)
    means = np.mean([planted_accuracy("pgd", strength) for strength in (0.5, 1, 4)], axis=0)
    row = row_of(search_result, "pgd")
    assert row["optimum"] == pytest.approx(means.max(), abs=1e-5)
    assert row["mean"] == pytest.approx(means[search_result.selected["pgd"]["local"][0]], abs=1e-5)


def test_search_rejects_more_queries_than_architectures(tmp_path):
    reader = Dataset(write_planted(tmp_path / "few", cells=range(3)))
    with pytest.raises(
        ConfigError,
        match=r"300 queries need at least that many architectures with all results, but there are \d+\. Lower",
    ):
        search(reader)
