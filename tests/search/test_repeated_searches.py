"""Repeated searches report optima and means, including on other datasets and for fronts."""

from pathlib import Path

import numpy as np
import pytest

from robust201 import RobustnessDataset
from robust201.core.errors import ConfigError
from robust201.search.benchmark import Benchmark
from robust201.search.repeated_searches import (
    VOLUME,
    RepeatedSearch,
    compare_with_paper,
    dominated_volume_fractions,
    repeat_searches,
)
from robust201.search.runs import run_methods
from robust201.statistics.intervals import mean_intervals
from robust201.statistics.pareto import hypervolume
from tests.support.planted import best_cell, planted_accuracy, write_planted


@pytest.fixture(scope="module")
def reader(planted_optimum_folder: Path) -> RobustnessDataset:
    return RobustnessDataset(planted_optimum_folder)


def search(reader: RobustnessDataset, objective: str = "clean", **options: object) -> RepeatedSearch:
    settings = {"methods": ["local"], "n_queries": 300, "n_runs": 4, "processes": 1} | options
    (search_result,) = repeat_searches(reader, "cifar10", [objective], **settings)  # type: ignore[arg-type]
    return search_result


def test_local_search_finds_the_planted_cell(reader: RobustnessDataset) -> None:
    search_result = search(reader)
    (result,) = search_result.results
    assert reader.get_uid(int(result.selected[0])) == str(best_cell())
    assert result.optimum_fraction == 1
    assert result.regret[-1] == 0
    assert (np.diff(result.regret) <= 0).all()
    assert search_result.n_members == 15_625
    assert search_result.optimum["clean"] == pytest.approx(planted_accuracy("clean", 0).max(), abs=1e-6)
    assert search_result.optimum["pgd:1"] == pytest.approx(planted_accuracy("pgd", 1).max(), abs=1e-6)
    assert search_result.absent == ("aa_apgd-ce:1", "aa_square:1", "corruption")
    assert result.reported["pgd:1"].mean == pytest.approx(planted_accuracy("pgd", 1)[best_cell()], abs=1e-6)


def test_reported_means_are_over_runs(reader: RobustnessDataset) -> None:
    search_result = search(reader, methods=["random"], n_queries=20, n_runs=8)
    (result,) = search_result.results
    accuracies = planted_accuracy("clean", 0)[result.selected]
    mean, low, high = mean_intervals(accuracies)
    assert result.reported["clean"][:3] == pytest.approx((mean, low, high), abs=1e-5)
    assert low < mean < high
    assert len(search_result.to_frame()) == len(search_result.columns)
    assert search_result.to_payload()["methods"][0]["found"] == result.selected.tolist()


def test_search_reports_on_another_dataset(reader: RobustnessDataset) -> None:
    search_result = search(reader, report_on="cifar100", report=["clean", "pgd"])
    (result,) = search_result.results
    assert (search_result.dataset, search_result.reported_on, search_result.columns) == (
        "cifar10",
        "cifar100",
        ("clean", "pgd"),
    )
    expected_accuracies = planted_accuracy("clean", 0, "cifar100")
    assert result.reported["clean"].mean == pytest.approx(expected_accuracies[best_cell()], abs=1e-6)


def test_search_accepts_distinct_cells_and_constraints(reader: RobustnessDataset) -> None:
    distinct_search = search(reader, distinct=True, methods=["evolution"])
    assert distinct_search.n_members == len(reader.non_isomorph_ids)
    constrained_search = search(reader, constraints=["parameters <= 300000"])
    assert 300 < constrained_search.n_members < 15_625
    assert constrained_search.optimum["clean"] < distinct_search.optimum["clean"]


def test_dominated_volume_fractions_match_hypervolumes(
    planted_front_benchmark: Benchmark, reader: RobustnessDataset
) -> None:
    search_result = search(reader, "clean, pgd:4", methods=["evolution", "random"], n_queries=60, n_runs=4)
    assert search_result.has_several_objectives
    assert search_result.columns == (VOLUME,)
    evolution_mean, random_mean = (result.reported[VOLUME].mean for result in search_result.results)
    assert 0 < random_mean < evolution_mean < 1
    (runs,) = run_methods([planted_front_benchmark], ["random"], n_queries=30, n_runs=2, processes=1)[0]
    dominated_fractions = dominated_volume_fractions(runs)
    low, high = planted_front_benchmark.values.min(axis=0), planted_front_benchmark.values.max(axis=0)
    scaled_values = (planted_front_benchmark.values - low) / (high - low)
    attainable_volume = hypervolume(scaled_values)
    for query in (1, 7, 30):
        expected = hypervolume(scaled_values[runs.queried[1, :query]]) / attainable_volume
        assert dominated_fractions[1, query - 1] == pytest.approx(expected)


def test_search_selects_applicable_methods(reader: RobustnessDataset) -> None:
    methods = [result.method for result in search(reader, "pgd", methods=None, n_queries=12, n_runs=1).results]
    assert methods == ["bananas", "local", "random", "evolution", "halving"]
    with pytest.raises(ConfigError, match="it needs one objective that is a mean over several"):
        search(reader, "clean", methods=["halving"])


def test_search_rejects_more_queries_than_architectures(tmp_path: Path) -> None:
    reader = RobustnessDataset(write_planted(tmp_path / "few", cells=range(3)))
    with pytest.raises(
        ConfigError,
        match=r"300 queries need at least that many architectures with all results, but there are \d+\. Lower",
    ):
        search(reader)


def test_compare_with_paper_recognises_published_accuracies(
    planted_optimum_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RobustnessDataset(planted_optimum_folder)
    search_result = search(reader, n_queries=20, n_runs=1)
    # The planted dataset has the layout and all cells of the published dataset, but other accuracies.
    comparison = compare_with_paper(reader, [search_result])
    assert comparison == (0.9468, search_result.optimum["clean"], False)
    monkeypatch.setattr("robust201.search.repeated_searches.PAPER_OPTIMUM", search_result.optimum["clean"] + 0.0004)
    assert compare_with_paper(reader, [search_result]).agrees
    constrained_search = search(reader, n_queries=20, n_runs=1, constraints=["parameters <= 300000"])
    (cifar100_search,) = repeat_searches(
        reader, "cifar100", ["clean"], methods=["random"], n_queries=20, n_runs=1, processes=1
    )
    assert compare_with_paper(reader, [constrained_search]) is None
    assert compare_with_paper(reader, [cifar100_search]) is None
