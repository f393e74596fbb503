"""The printed marks of the study of image distributions follow from its printed means and deviations, but for one."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from robust201.studies.comparisons import (
    FAMILIES,
    GROUPS,
    LEVEL,
    check_printed_marks,
    compare_groups,
    printed_tables,
)


@pytest.fixture(scope="module")
def check():
    return check_printed_marks()


def test_the_tables_are_eighteen_of_six_epochs():
    tables = printed_tables()
    assert tables.groupby("table").size().tolist() == [6] * 18
    assert tables.groupby(["network", "group"]).ngroups == 3 * len(GROUPS)
    assert tables.loc[~tables["certain"], ["table", "epoch"]].to_numpy().tolist() == [[5, e] for e in (10, 25, 50, 150)]
    assert int(tables["mean"].isna().sum()) == 1
    # What R can be of nine epsilons: from the floor of 1/48, to 1 where accuracies do not rise.
    assert tables["mean"].dropna().between(1 / 48, 1).all()
    assert set("".join(tables["marks"])) == {family.mark for family in FAMILIES}


def test_117_of_118_printed_decisions_follow_from_the_printed_numbers(check):
    assert (len(check.comparisons), len(check.certain), int(check.certain["agrees"].sum())) == (126, 118, 117)
    (exception,) = check.exceptions.itertuples()
    assert (exception.network, exception.epoch, exception.first, exception.second) == (
        *("ResNet50", 10),
        *("cifar10_to_mnist", "mnist"),
    )
    assert (exception.printed, exception.marked) == ("", "first")
    assert exception.t == pytest.approx(4.50, abs=0.005)
    assert exception.higher_holm == "first"  # no correction makes it agree


def test_each_p_value_is_that_of_scipy(check):
    tables = printed_tables().set_index(["network", "group", "epoch"])
    for row in check.comparisons.itertuples():
        first, second = (tables.loc[row.network, group, row.epoch] for group in (row.first, row.second))
        wanted = stats.ttest_ind_from_stats(
            *(first["mean"], first["sd"], 20, second["mean"], second["sd"], 20), equal_var=False
        )
        assert row.p == pytest.approx(wanted.pvalue, rel=1e-9, nan_ok=True)


def test_four_marks_do_not_survive_the_correction_for_126_tests(check):
    assert (len(check.marks), len(check.left)) == (106, 102)
    lost = check.claims.query("lost != ''")
    assert [(row.experiment, row.network, row.lost) for row in lost.itertuples()] == [
        ("E2b", "LeNet", "25"),
        ("E2b", "ResNet50", "10"),
        ("E3b", "LeNet", "50"),
        ("E3b", "ResNet50", "125"),
    ]
    assert (check.comparisons["p_holm"].dropna() >= check.comparisons["p"].dropna()).all()


def test_the_json_value_is_json_and_keeps_small_p_values(check):
    value = json.loads(json.dumps(check.to_payload(), allow_nan=False))
    assert len(value["comparisons"]) == 126
    assert sum(row["p"] is None for row in value["comparisons"]) == 2
    assert 0 < min(row["p"] for row in value["comparisons"] if row["p"] is not None) < 1e-50


def test_groups_are_paired_by_seed():
    seeds = pd.RangeIndex(8)
    start = np.random.default_rng(1).normal(0.5, 0.1, 8)
    values = {
        ("LeNet", "mnist", 1): pd.Series(start + 0.01 + 0.001 * np.arange(8), seeds),
        ("LeNet", "cifar10", 1): pd.Series(start[::-1], seeds[::-1]),  # the same seeds, listed backwards
    }
    summaries = pd.DataFrame(
        [(*key, held.mean(), held.std(), len(held)) for key, held in values.items()],
        columns=["network", "group", "epoch", "mean", "sd", "n"],
    )
    (row,) = compare_groups(summaries, values).itertuples()
    assert row.n_pairs == 8
    assert row.p_paired < 0.001 < LEVEL < row.p
