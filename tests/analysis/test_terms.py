"""Terms: names for values of architectures in `search`, `design` and `correlate`."""

import json
from pathlib import Path

import pandas as pd
import pytest

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.design import pareto_table
from robust201.analysis.terms import Terms, find_evaluations, measure_name, read_join_tables, require_evaluations
from robust201.core.errors import ConfigError
from tests.support.small_results import results_of, write_results

ACCURACIES = {"clean": {"0": 0.9, "21": 0.8}, "pgd": {"0": [0.5, 0.1], "21": [0.4, 0.3]}}


@pytest.fixture
def results(tmp_path: Path) -> DatasetResults:
    """Return results with clean, PGD, and a custom key and a measure that have the same name, `my.pgd`."""
    folder = write_results(tmp_path, ACCURACIES | {"my.pgd": {"0": [0.2, 0.0], "21": [0.1, 0.0]}})
    meta = json.loads((folder / "meta.json").read_text())
    meta["epsilons"]["my.pgd"] = [1.0, 8.0]
    (folder / "meta.json").write_text(json.dumps(meta))
    loaded = results_of(folder)
    measure_values = pd.Series([3.0, 4.0], index=[0, 21])
    measures = {
        ("my", "pgd", 0.0): measure_values,
        ("jacobian", "norm", 0.5): measure_values,
        ("jacobian", "norm", 2.0): 3 * measure_values,
    }
    vars(loaded)["measures"] = pd.DataFrame(measures)
    return loaded


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("clean", [0.9, 0.8]),
        ("pgd:8", [0.1, 0.3]),
        ("pgd@Linf:8.0", [0.1, 0.3]),
        ("pgd", [0.3, 0.35]),
        ("my.pgd", [0.1, 0.05]),  # the key, not the measure of the key `my`
        ("my.pgd:1", [0.2, 0.1]),
        ("jacobian.norm:0.50", [3.0, 4.0]),
        ("jacobian.norm", [6.0, 8.0]),
    ],
)
def test_terms_mean_averages_the_values_of_a_name(results: DatasetResults, name: str, expected: list[float]) -> None:
    assert Terms(results).mean(name).tolist() == pytest.approx(expected)
    assert Terms(results).is_accuracy(name) == (expected[0] < 1)


def test_term_of_a_score_equals_the_score(results: DatasetResults) -> None:
    for score in ("clean", "adversarial"):
        assert Terms(results).mean(score).tolist() == results.scores[score].tolist()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pgd:11", "it has no results under pgd at strength 11. Choose one of 1, 8"),
        ("pdg", "Did you mean 'pgd'"),
        ("corruption", "it has no results under a corruption"),
        ("jacobian", "Did you mean 'jacobian.norm:"),
        ("jacobian.norm:7", "Did you mean 'jacobian.norm:"),
    ],
)
def test_terms_reject_unknown_names(results: DatasetResults, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Terms(results).mean(name)


def test_find_evaluations_ignores_measures(results: DatasetResults) -> None:
    assert find_evaluations(results, "jacobian.norm") == []
    with pytest.raises(ConfigError, match="no such name; expected a score, a key, or a key at a strength"):
        require_evaluations(results, "jacobian.norm")


def test_terms_rename_joined_columns_with_existing_names(tmp_path: Path) -> None:
    results = results_of(write_results(tmp_path, ACCURACIES))
    frame = pd.DataFrame({"index": [0, 21], "clean": [0.7, 0.6], "pgd:8": [1.0, 2.0]})
    terms = Terms(results, [results.reader.read_table(frame)] * 3)
    names = [f"{name}{' (joined)' * times}" for times in (1, 2, 3) for name in ("clean", "pgd:8")]
    assert list(terms.measures) == ["parameters", "flops", *names]
    assert terms.mean("pgd:8").tolist() == [0.1, 0.3]
    assert terms.mean("pgd:8 (joined)").tolist() == [1.0, 2.0]
    columns = pd.DataFrame({name: terms.mean(name) for name in ("clean", "clean (joined)")})
    assert pareto_table(columns, maximise=list(columns)).index.tolist() == [0]


def test_read_join_tables_rejects_other_architectures(tmp_path: Path) -> None:
    results = results_of(write_results(tmp_path, ACCURACIES))
    for table in ({"index": [1], "x": [1.0]}, {"index": [0], "dataset": ["cifar100"], "x": [1.0]}):
        with pytest.raises(ConfigError, match="it has no architecture that was evaluated on cifar10"):
            read_join_tables(results.reader, [pd.DataFrame(table)], [results])


def test_measure_name_ends_with_strength() -> None:
    assert (measure_name("jacobian", "norm", 0.0), measure_name("own", "x", 0.5)) == ("jacobian.norm", "own.x:0.5")
