"""Repeated searches: optimum and means against the table itself, reporting elsewhere, fronts, the published table."""

from pathlib import Path

import numpy as np
import pytest

from robust201 import RobustnessDataset
from robust201.core.errors import ConfigError
from robust201.search.benchmark import Benchmark
from robust201.search.repeated_searches import VOLUME, RepeatedSearch, compare_with_paper, front_shares, repeat_searches
from robust201.search.runs import run_methods
from robust201.statistics.intervals import mean_intervals
from robust201.statistics.pareto import hypervolume
from tests.support.planted import best_cell, planted_accuracy, write_planted


@pytest.fixture(scope="module")
def reader(planted_folder: Path) -> RobustnessDataset:
    return RobustnessDataset(planted_folder)


def search(reader: RobustnessDataset, objective: str = "clean", **options: object) -> RepeatedSearch:
    settings = {"methods": ["local"], "n_queries": 300, "n_runs": 4, "processes": 1} | options
    (found,) = repeat_searches(reader, "cifar10", [objective], **settings)  # type: ignore[arg-type]
    return found


def test_local_search_finds_the_planted_cell(reader: RobustnessDataset) -> None:
    found = search(reader)
    (result,) = found.results
    assert reader.get_uid(int(result.selected[0])) == str(best_cell())
    assert result.hits == 1
    assert result.regret[-1] == 0
    assert (np.diff(result.regret) <= 0).all()
    assert found.n_members == 15_625
    assert found.optimum["clean"] == pytest.approx(planted_accuracy("clean", 0).max(), abs=1e-6)
    assert found.optimum["pgd:1"] == pytest.approx(planted_accuracy("pgd", 1).max(), abs=1e-6)
    assert found.absent == ("aa_apgd-ce:1", "aa_square:1", "corruption")
    assert result.reported["pgd:1"].mean == pytest.approx(planted_accuracy("pgd", 1)[best_cell()], abs=1e-6)


def test_means_are_over_runs(reader: RobustnessDataset) -> None:
    found = search(reader, methods=["random"], n_queries=20, n_runs=8)
    (result,) = found.results
    values = planted_accuracy("clean", 0)[result.selected]
    mean, low, high = mean_intervals(values)
    assert result.reported["clean"][:3] == pytest.approx((mean, low, high), abs=1e-5)
    assert low < mean < high
    assert len(found.to_frame()) == len(found.columns)
    assert found.to_payload()["methods"][0]["found"] == result.selected.tolist()


def test_searching_on_one_dataset_and_reporting_on_another(reader: RobustnessDataset) -> None:
    found = search(reader, report_on="cifar100", report=["clean", "pgd"])
    (result,) = found.results
    assert (found.dataset, found.reported_on, found.columns) == ("cifar10", "cifar100", ("clean", "pgd"))
    other = planted_accuracy("clean", 0, "cifar100")
    assert result.reported["clean"].mean == pytest.approx(other[best_cell()], abs=1e-6)


def test_distinct_cells_and_constraints(reader: RobustnessDataset) -> None:
    whole = search(reader, distinct=True, methods=["evolution"])
    assert whole.n_members == len(reader.non_isomorph_ids)
    narrow = search(reader, constraints=["parameters <= 300000"])
    assert 300 < narrow.n_members < 15_625
    assert narrow.optimum["clean"] < whole.optimum["clean"]


def test_a_front(planted_front: Benchmark, reader: RobustnessDataset) -> None:
    found = search(reader, "clean, pgd:4", methods=["evolution", "random"], n_queries=60, n_runs=4)
    assert found.is_front
    assert found.columns == (VOLUME,)
    evolution, random = (result.reported[VOLUME].mean for result in found.results)
    assert 0 < random < evolution < 1
    (runs,) = run_methods([planted_front], ["random"], n_queries=30, n_runs=2, processes=1)[0]
    shares = front_shares(runs)
    low, high = planted_front.values.min(axis=0), planted_front.values.max(axis=0)
    scaled = (planted_front.values - low) / (high - low)
    attainable = hypervolume(scaled)
    for query in (1, 7, 30):
        expected = hypervolume(scaled[runs.queried[1, :query]]) / attainable
        assert shares[1, query - 1] == pytest.approx(expected)


def test_methods_that_do_not_apply(reader: RobustnessDataset) -> None:
    names = [result.method for result in search(reader, "pgd", methods=None, n_queries=12, n_runs=1).results]
    assert names == ["bananas", "local", "random", "evolution", "halving"]
    with pytest.raises(ConfigError, match="expected one objective that is a mean over several strengths"):
        search(reader, "clean", methods=["halving"])


def test_too_few_architectures(tmp_path: Path) -> None:
    reader = RobustnessDataset(write_planted(tmp_path / "few", cells=range(3)))
    with pytest.raises(ConfigError, match=r"as queries \(300\), got \d+\. Lower --queries"):
        search(reader)


def test_published_accuracies_are_recognised_and_compared(
    planted_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RobustnessDataset(planted_folder)
    found = search(reader, n_queries=20, n_runs=1)
    compared = compare_with_paper(reader, [found])  # its layout and extent are those of the published results
    assert compared == (0.9468, found.optimum["clean"], False)
    monkeypatch.setattr("robust201.search.repeated_searches.PAPER_OPTIMUM", found.optimum["clean"] + 0.0004)
    assert compare_with_paper(reader, [found]).agrees
    narrow = search(reader, n_queries=20, n_runs=1, constraints=["parameters <= 300000"])
    (other,) = repeat_searches(reader, "cifar100", ["clean"], methods=["random"], n_queries=20, n_runs=1, processes=1)
    assert compare_with_paper(reader, [narrow]) is None
    assert compare_with_paper(reader, [other]) is None
