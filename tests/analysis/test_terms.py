"""Names of accuracies in `search` and `analyse`."""

import json

import pandas as pd
import pytest

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.terms import find_evaluations, mean_accuracy, require_evaluations
from robust201.core.errors import ConfigError
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
def test_mean_accuracy_averages_the_evaluations_of_a_name(results, name, expected):
    assert mean_accuracy(results, name).tolist() == pytest.approx(expected)


def test_strengths_of_own_attacks_have_the_unit_of_their_norm(results):
    assert find_evaluations(results, "my.pgd:8/255") == []
    results.reader.folders[0]._custom_parameters["my.pgd"] = {"kind": "attack", "norm": "Linf"}
    assert find_evaluations(results, "my.pgd:8/255") == [("my.pgd", 8.0)]
    assert find_evaluations(results, "my.pgd:8") == []  # 2040/255


def test_find_evaluations_ignores_measures(results):
    assert find_evaluations(results, "jacobian.norm") == []
    with pytest.raises(ConfigError, match="no such name; expected a score, a key, or a key at a strength"):
        require_evaluations(results, "jacobian.norm")
