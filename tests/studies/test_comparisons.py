"""Significance markers of the study of image distributions: all but one follow from the published numbers."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from robust201.studies.comparisons import (
    COMPARISONS,
    GROUPS,
    LEVEL,
    check_published_marks,
    compare_groups,
    published_tables,
)


@pytest.fixture(scope="module")
def marker_check():
    return check_published_marks()


def test_there_are_18_published_tables_of_six_epochs():
    tables = published_tables()
    assert tables.groupby("table").size().tolist() == [6] * 18
    assert tables.groupby(["network", "group"]).ngroups == 3 * len(GROUPS)
    assert tables.loc[~tables["certain"], ["table", "epoch"]].to_numpy().tolist() == [[5, e] for e in (10, 25, 50, 150)]
    assert int(tables["mean"].isna().sum()) == 1
    # With nine epsilons, R is between its floor, 1/48, and 1, unless accuracies rise.
    assert tables["mean"].dropna().between(1 / 48, 1).all()
    assert set("".join(tables["marks"])) == {comparison.marker for comparison in COMPARISONS}


def test_all_published_markers_but_one_follow_from_published_numbers(marker_check):
    # There are 7 pairs of groups, 3 networks and 6 epochs; the epochs of 8 comparisons are uncertain.
    assert (
        len(marker_check.comparisons),
        len(marker_check.certain_comparisons),
        int(marker_check.certain_comparisons["agrees"].sum()),
    ) == (126, 118, 117)
    (exception,) = marker_check.exceptions.itertuples()
    assert (exception.network, exception.epoch) == ("ResNet50", 10)
    assert (exception.first, exception.second) == ("cifar10_to_mnist", "mnist")
    assert (exception.printed, exception.marked) == ("", "first")
    assert exception.t == pytest.approx(4.50, abs=0.005)
    assert exception.higher_holm == "first"  # the comparison is also significant after correction


def test_p_values_match_scipy(marker_check):
    tables = published_tables().set_index(["network", "group", "epoch"])
    for row in marker_check.comparisons.itertuples():
        first, second = (tables.loc[row.network, group, row.epoch] for group in (row.first, row.second))
        expected = stats.ttest_ind_from_stats(
            *(first["mean"], first["sd"], 20, second["mean"], second["sd"], 20), equal_var=False
        )
        assert row.p == pytest.approx(expected.pvalue, rel=1e-9, nan_ok=True)


def test_four_markers_are_lost_by_correction_for_126_tests(marker_check):
    assert (len(marker_check.marked_comparisons), len(marker_check.significant_after_holm)) == (106, 102)
    claims_with_lost_markers = marker_check.claims.query("lost != ''")
    assert [(row.experiment, row.network, row.lost) for row in claims_with_lost_markers.itertuples()] == [
        ("E2b", "LeNet", "25"),
        ("E2b", "ResNet50", "10"),
        ("E3b", "LeNet", "50"),
        ("E3b", "ResNet50", "125"),
    ]
    assert (marker_check.comparisons["p_holm"].dropna() >= marker_check.comparisons["p"].dropna()).all()


def test_payload_can_be_written_as_json_and_keeps_small_p_values(marker_check):
    payload = json.loads(json.dumps(marker_check.to_payload(), allow_nan=False))
    assert len(payload["comparisons"]) == 126
    assert sum(row["p"] is None for row in payload["comparisons"]) == 2
    assert 0 < min(row["p"] for row in payload["comparisons"] if row["p"] is not None) < 1e-50


def test_compare_groups_pairs_networks_by_seed():
    seeds = pd.RangeIndex(8)
    r_of_cifar10 = np.random.default_rng(1).normal(0.5, 0.1, 8)
    r_by_group = {
        ("LeNet", "mnist", 1): pd.Series(r_of_cifar10 + 0.01 + 0.001 * np.arange(8), seeds),
        ("LeNet", "cifar10", 1): pd.Series(r_of_cifar10[::-1], seeds[::-1]),  # the same seeds in reverse order
    }
    summaries = pd.DataFrame(
        [(*key, series.mean(), series.std(), len(series)) for key, series in r_by_group.items()],
        columns=["network", "group", "epoch", "mean", "sd", "n"],
    )
    (row,) = compare_groups(summaries, r_by_group).itertuples()
    assert row.n_pairs == 8
    assert row.p_paired < 0.001 < LEVEL < row.p
