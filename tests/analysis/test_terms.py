"""Names of accuracies, such as `pgd:8/255`, and means over attacks in a norm ball."""

import json
from pathlib import Path

import pandas as pd
import pytest

from robust201.analysis.dataset_results import DatasetResults, read_results
from robust201.analysis.terms import find_evaluations, mean_accuracy, require_evaluations
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset
from tests.support.small_results import results_of, write_results

ACCURACIES = {"clean": {"0": 0.9, "21": 0.8}, "pgd": {"0": [0.5, 0.1], "21": [0.4, 0.3]}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> DatasetResults:
    """Return results with clean, PGD, and a custom key and a measure that have the same name, `my.pgd`."""
    folder = write_results(
        tmp_path_factory.mktemp("terms"), ACCURACIES | {"my.pgd": {"0": [0.2, 0.0], "21": [0.1, 0.0]}}
    )
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
        ("pgd:8/255", [0.1, 0.3]),
        ("pgd@Linf:8/255", [0.1, 0.3]),
        ("pgd", [0.3, 0.35]),
        ("my.pgd", [0.1, 0.05]),  # the key, not the measure of the key `my`
        ("my.pgd:1", [0.2, 0.1]),
    ],
)
def test_mean_accuracy_averages_all_evaluations_that_match_the_name(results, name, expected):
    assert mean_accuracy(results, name).tolist() == pytest.approx(expected)


def test_find_evaluations_reads_strengths_of_custom_attacks_in_units_of_their_norm(results):
    assert find_evaluations(results, "my.pgd:8/255") == []
    results.reader.folders[0]._custom_parameters["my.pgd"] = {"kind": "attack", "norm": "Linf"}
    assert find_evaluations(results, "my.pgd:8/255") == [("my.pgd", 8.0)]
    assert find_evaluations(results, "my.pgd:8") == []  # epsilon 8 is 2040/255


def test_find_evaluations_ignores_measures(results):
    assert find_evaluations(results, "jacobian.norm") == []
    with pytest.raises(ConfigError, match="no such name; expected a score, a key, or a key at a strength"):
        require_evaluations(results, "jacobian.norm")


BALL_ATTACKS = {"pgd": [0.5, 0.1], "pgd_l2": [0.3], "mine": [0.4, 0.2]}
OTHER_ATTACKS = {"grid775": [0.9], "turned": [0.6]}
CUSTOM_PARAMETERS = {
    "mine": {"kind": "attack", "norm": "Linf"},
    "turned": {"kind": "attack", "norm": None},
}
STRENGTHS = {"pgd": [1, 8], "pgd_l2": [0.5], "mine": [1, 8], "grid775": [0], "turned": [0]}


def write_dataset(folder: Path, *keys: str) -> Dataset:
    """Write results of two networks, where the second is 0.05 less accurate everywhere."""
    accuracies_by_key = {
        key: {
            str(index): [accuracy - index * 0.05 for accuracy in (BALL_ATTACKS | OTHER_ATTACKS)[key]]
            for index in (0, 1)
        }
        for key in keys
    }
    write_results(folder, accuracies_by_key | {"clean": {"0": 0.95, "1": 0.9}})
    protocols = [{"key": key, "parameters": CUSTOM_PARAMETERS[key]} for key in keys if key in CUSTOM_PARAMETERS]
    sweep = {
        "format": 1,
        "robust201": "0",
        "sweep": {"images": {"count": 100, "seed": 0}, "protocols": protocols},
        "measurements": ["accuracy"],
        "strengths": {"cifar10": {"clean": [0]} | {key: STRENGTHS[key] for key in keys}},
    }
    (folder / "sweep.json").write_text(json.dumps(sweep))
    return Dataset(folder)


def read_sole_results(dataset: Dataset) -> DatasetResults:
    (results,) = read_results(dataset)
    return results


def test_labels_of_custom_attacks_have_the_unit_of_their_norm(tmp_path):
    results = read_sole_results(write_dataset(tmp_path, "mine", "turned"))
    assert [results.term(*column) for column in results.columns] == ["clean", "mine:1/255", "mine:8/255", "turned"]
    assert results.column_label("mine", 8.0) == "mine, ε = 8/255"
    assert require_evaluations(results, "mine:8/255") == [("mine", 8.0)]


def test_means_leave_out_attacks_without_a_norm_ball(tmp_path):
    expected = (0.5 + 0.1 + 0.3 + 0.4 + 0.2) / 5
    results = read_sole_results(write_dataset(tmp_path, *BALL_ATTACKS, *OTHER_ATTACKS))
    assert set(results.keys("attack")) == {*BALL_ATTACKS, *OTHER_ATTACKS}
    assert {key for key, _ in require_evaluations(results, "adversarial")} == {*BALL_ATTACKS}
    assert results.scores["adversarial"].tolist() == pytest.approx([expected, expected - 0.05])
    assert mean_accuracy(results, "adversarial").tolist() == results.scores["adversarial"].tolist()
    results_without_balls = read_sole_results(write_dataset(tmp_path / "other", *OTHER_ATTACKS))
    assert "adversarial" not in results_without_balls.scores
    with pytest.raises(ConfigError, match=r"it has no results under an attack in a norm ball"):
        require_evaluations(results_without_balls, "adversarial")


@pytest.mark.parametrize(
    ("keys", "has_worst_case"), [(("pgd", "turned"), False), (("pgd", "pgd_l2"), False), (("pgd", "mine"), True)]
)
def test_worst_case_combines_attacks_in_the_same_ball(tmp_path, keys, has_worst_case):
    # Without per-image outcomes, `needs` lists the worst case if there are evaluations to combine.
    assert ("worst_case_accuracy" in write_dataset(tmp_path, *keys).metrics().needs) == has_worst_case
