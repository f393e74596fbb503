"""Worst-case accuracy over evaluations of one network, checked against manual calculations."""

import numpy as np
import pytest

from robust201.analysis.evaluation import Evaluation, KeyResults
from robust201.core.errors import ConfigError
from robust201.statistics.intervals import accuracy_intervals

OUTCOMES = {
    ("clean", 0.0): [1, 1, 1, 1, 1, 0, 1, 1, 1, 1],
    ("pgd", 1.0): [1, 1, 1, 1, 0, 0, 1, 1, 1, 1],
    ("pgd", 8.0): [0, 1, 1, 0, 0, 0, 1, 0, 1, 1],
    ("fog", 3.0): [1, 0, 1, 1, 1, 0, 1, 1, 1, 0],
}
EVALUATION = Evaluation(
    "network",
    "",
    "",
    (3, 8, 8),
    np.arange(10) * 2,
    {
        key: KeyResults(
            (),
            {},
            {strength: np.array(outcomes, bool) for (name, strength), outcomes in OUTCOMES.items() if name == key},
        )
        for key in ("clean", "pgd", "fog")
    },
)


@pytest.mark.parametrize(
    ("evaluations", "correct_images"),
    [
        (None, [4, 12, 16]),
        (["pgd"], [2, 4, 12, 16, 18]),
        ("pgd", [2, 4, 12, 16, 18]),
        (["pgd:1/255", "fog:3"], [0, 4, 6, 12, 14, 16]),
        (["clean", "clean"], [0, 2, 4, 6, 8, 12, 14, 16, 18]),
    ],
)
def test_worst_case_counts_images_that_are_correct_in_all_evaluations(evaluations, correct_images):
    worst_case = EVALUATION.worst_case(evaluations)
    assert worst_case.outcomes[worst_case.outcomes].index.tolist() == correct_images
    assert worst_case.accuracy == len(correct_images) / 10
    assert (worst_case.low, worst_case.high) == tuple(map(float, accuracy_intervals(worst_case.accuracy, 10)))


@pytest.mark.parametrize(
    ("evaluations", "message"),
    [
        (["pgdd"], "'pgdd'"),
        (["pgd:2/255"], "'pgd:2/255'"),
        ([], "`evaluations` is empty"),
    ],
)
def test_worst_case_rejects_missing_evaluations(evaluations, message):
    with pytest.raises(ConfigError, match=message):
        EVALUATION.worst_case(evaluations)
