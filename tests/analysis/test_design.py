"""Effects of operations on planted accuracies."""

import numpy as np
import pytest

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.design import operation_effects
from robust201.core.errors import ResultsError
from robust201.networks.nb201 import cells
from tests.support.small_results import results_of, write_results


def planted_accuracy(index: int) -> float:
    """Return a synthetic accuracy: 3x3 convolutions on two edges help, more so together, and pooling hurts."""
    operations = cells.parse(cells.specs()[index])
    is_first, is_last = operations[0] == "nor_conv_3x3", operations[5] == "nor_conv_3x3"
    return 0.3 + 0.1 * is_first + 0.2 * is_last + 0.1 * (is_first and is_last) - 0.02 * operations.count("avg_pool_3x3")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> DatasetResults:
    rows = {str(index): round(planted_accuracy(index), 4) for index in cells.evaluated_indices()}
    return results_of(write_results(tmp_path_factory.mktemp("planted"), {"clean": rows}))


def test_operation_effects_are_means_over_all_cells(results):
    effects = operation_effects(results, results.scores["clean"])
    all_accuracies = np.array([planted_accuracy(isomorph) for isomorph in cells.isomorphs()])
    has_convolution = np.array([cells.parse(spec)[5] == "nor_conv_3x3" for spec in cells.specs()])
    row = effects.set_index(["edge", "operation"]).loc["2→out", "conv 3×3"]
    assert row["mean"] == pytest.approx(all_accuracies[has_convolution].mean())
    assert row["effect"] == pytest.approx(all_accuracies[has_convolution].mean() - all_accuracies.mean())
    assert row["low"] < row["effect"] < row["high"]


def test_operation_effects_reject_missing_isomorphism_classes(tmp_path):
    results = results_of(write_results(tmp_path, {"clean": {"0": 0.5, "21": 0.6}}))
    with pytest.raises(
        ResultsError, match="6,464 of the 6,466 isomorphism classes, such as the class of cell 1, have no accuracy"
    ):
        operation_effects(results, results.scores["clean"])
