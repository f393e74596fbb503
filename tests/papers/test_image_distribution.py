"""Robustness R by image distribution: significance markers, verdicts on claims, blended images."""

import numpy as np
import pandas as pd
import pytest

from jobs.papers.image_distribution import analyse, fuse, pictures
from jobs.papers.image_distribution.analyse import COMPARISONS
from jobs.papers.networks import read_trained
from jobs.papers.verdicts import FAILS, HOLDS, UNDECIDED
from robust201.images import load_images
from robust201.images.fusion import blend
from robust201.images.specs import custom_dataset
from robust201.statistics.robustness import robustness_r
from tests.support.trained_exports import make_weights, write_trained
from tests.training.test_data import numbered_images


@pytest.fixture(scope="module")
def comparisons():
    return analyse.published_comparisons()


def test_published_tables_are_18_with_six_epochs_each():
    tables = analyse.published_tables()
    assert tables.groupby("table").size().tolist() == [6] * 18
    assert tables.loc[~tables["certain"], ["table", "epoch"]].to_numpy().tolist() == [[5, e] for e in (10, 25, 50, 150)]
    assert int(tables["mean"].isna().sum()) == 1
    # With nine epsilons, R is between its floor, 1/48, and 1, unless accuracies rise.
    assert tables["mean"].dropna().between(1 / 48, 1).all()
    assert set("".join(tables["marks"])) == {comparison.marker for comparison in COMPARISONS}


def test_all_published_marks_but_one_follow_from_published_numbers(comparisons):
    certain = comparisons[comparisons["certain"]]
    assert (len(comparisons), len(certain), int(certain["agrees"].sum())) == (126, 118, 117)
    (exception,) = certain[~certain["agrees"]].itertuples()
    assert (exception.network, exception.epoch, exception.first, exception.second) == (
        *("ResNet50", 10),
        *("cifar10_to_mnist", "mnist"),
    )
    assert (exception.published_marker, exception.recomputed_marker, exception.higher_holm) == ("", "first", "first")


def test_intervals_exclude_zero_where_differences_are_significant(comparisons):
    known = comparisons.dropna(subset="p")
    excludes_zero = (known["low"] > 0) | (known["high"] < 0)
    assert (excludes_zero == (known["p"] < 0.05)).all()


def test_correction_for_126_tests_removes_four_marks(comparisons):
    significant = comparisons[(comparisons["published_marker"] != "") & comparisons["p"].notna()]
    lost = significant[significant["published_marker"] != significant["higher_holm"]]
    assert (len(significant), len(lost)) == (106, 4)
    assert [(row.comparison[:3], row.network, row.epoch) for row in lost.itertuples()] == [
        *(("E2b", "LeNet", 25), ("E2b", "ResNet50", 10)),
        *(("E3b", "LeNet", 50), ("E3b", "ResNet50", 125)),
    ]


@pytest.fixture(scope="module")
def decisions(comparisons):
    return comparisons.query("published_marker != '' and network == 'LeNet'")


def make_summaries(means, sd=0.02, n=5):
    rows = [("LeNet", group, 25, n, mean, sd) for group, mean in means.items()]
    return pd.DataFrame(rows, columns=["network", "group", "epoch", "n", "mean", "sd"])


@pytest.mark.parametrize(
    ("mnist", "cifar10", "sd", "verdict"),
    [(0.5, 0.1, 0.02, HOLDS), (0.1, 0.5, 0.02, FAILS), (0.30, 0.29, 0.02, UNDECIDED), (0.5, 0.1, 0.4, UNDECIDED)],
)
def test_claim_is_judged_by_the_interval_of_the_difference(decisions, mnist, cifar10, sd, verdict):
    (claim,) = analyse.claims_of_tables(make_summaries({"mnist": mnist, "cifar10": cifar10}, sd), decisions)
    assert claim.verdict == verdict
    assert claim.would_decide.endswith("seeds") == (verdict == UNDECIDED)


def test_claim_without_direction_is_judged_in_the_direction_of_the_published_mark(decisions):
    """For LeNet at epoch 25, the paper marks `mnist` as more robust than `cifar10_to_mnist`."""
    (claim,) = analyse.claims_of_tables(make_summaries({"cifar10_to_mnist": 0.3, "mnist": 0.5}), decisions)
    assert (claim.verdict, claim.published) == (HOLDS, "R of MNIST is higher: epochs 25")


@pytest.mark.parametrize(("original", "verdicts"), [(0.51, [UNDECIDED, HOLDS]), (0.6, [HOLDS, HOLDS])])
def test_claims_on_original_mnist_are_judged_by_the_difference_from_scaled_mnist(original, verdicts):
    summaries = make_summaries({"mnist": 0.5, "cifar10": 0.1, "mnist_28": original})
    assert [claim.verdict for claim in analyse.control_claims(summaries)] == verdicts


def test_fusion_is_compared_with_plain_images_also_at_equal_clean_accuracy(decisions):
    summaries = make_summaries({"mnist": 0.5, "cifar10": 0.3, "fusion_digit": 0.2, "fusion_object": 0.4})
    summaries["clean"] = [0.92, 0.61, 0.9, 0.3]
    (both,) = analyse.claim_about_fusion(summaries, decisions)
    (equal,) = analyse.claim_at_equal_accuracy(summaries, decisions)
    assert [both.verdict, equal.verdict] == [FAILS, HOLDS]  # only digits have equal clean accuracies
    summaries["clean"] = [0.92, 0.61, 0.8, 0.3]
    assert [*analyse.claim_at_equal_accuracy(summaries, decisions)] == []


@pytest.mark.parametrize(("first", "later", "verdict"), [(0.3, 0.01, HOLDS), (0.01, 0.3, FAILS), (0.1, 0.1, UNDECIDED)])
def test_spread_at_the_first_epoch_is_compared_with_later_spreads(first, later, verdict):
    rows = [
        ("LeNet", "fusion_object", epoch, seed, 0.5 + spread * deviation)
        for epoch, spread in ((1, first), (10, later), (25, later))
        for seed, deviation in enumerate((-1, -0.9, -0.8, 0.8, 0.9, 1))
    ]
    (claim,) = analyse.claim_about_spread(pd.DataFrame(rows, columns=["network", "group", "epoch", "seed", "r"]))
    assert claim.verdict == verdict


@pytest.mark.parametrize(("last", "verdict"), [(0.1, HOLDS), (0.011, UNDECIDED)])
def test_rebound_is_the_accuracy_at_the_largest_epsilon_above_the_minimum(last, verdict):
    rows = [("LeNet", "cifar10", 50, s, 5, accuracy, 0.01) for s, accuracy in enumerate((0.6, 0.1, 0.01, last))]
    columns = ["network", "group", "epoch", "strength", "n", "accuracy", "accuracy_sd"]
    (claim,) = analyse.claim_about_rebound(pd.DataFrame(rows, columns=columns))
    assert claim.verdict == verdict


def test_r_is_measured_for_each_network(tmp_path):
    strengths = tuple(255 * epsilon for epsilon in pictures.EPSILONS)

    def accuracy(architecture, dataset, weights, key, strength):
        return (0.9 if dataset == "mnist" else 0.1) * np.exp(-strength / (50 + 10 * weights.seed))

    networks = {dataset: {"lenet5": make_weights("plain", (1, 4), (0, 1))} for dataset in ("mnist", "cifar10")}
    export = write_trained(tmp_path / "e", networks, {"clean": (), "fgsm": strengths}, accuracy)
    table, curves = analyse.measure(read_trained([export]))
    assert table.groupby(["group", "epoch"]).size().to_dict() == {
        (group, epoch): 2 for group in ("mnist", "cifar10") for epoch in (1, 4)
    }
    mnist = table[table["group"] == "mnist"]
    accuracies = [
        round(400 * accuracy("", "mnist", make_weights("plain", (1,), (1,))[0], "", s)) / 400 for s in (0, *strengths)
    ]
    expected = robustness_r((0, *strengths), accuracies).value
    assert mnist.set_index(["epoch", "seed"]).loc[(1, 1), "r"] == pytest.approx(float(expected))
    np.testing.assert_allclose(mnist["c"], mnist["r"] - 1)
    assert (mnist["r_fitted"] - mnist["r"]).abs().max() < 0.05
    # R is undefined at chance accuracy.
    assert table.loc[table["group"] == "cifar10", "r"].isna().all()
    assert table.loc[table["group"] == "cifar10", "at_chance"].all()
    assert len(curves) == 2 * 2 * 9


def test_blends_use_each_image_at_most_once_and_differ_only_in_labels(tmp_path):
    first_images, second_images = numbered_images(40, "first"), numbered_images(25, "second", n_classes=5)
    rows, second_rows = fuse.pair(40, 25)
    assert (np.diff(rows) > 0).all()
    assert len(rows) == len(set(second_rows.tolist())) == 25
    for label, labels in (("first", first_images.labels[rows]), ("second", second_images.labels[second_rows])):
        fuse.write_fusion(tmp_path / label, first_images, second_images, label)
        n_classes = {"first": 7, "second": 5}[label]
        loaded = load_images(custom_dataset("made", n_classes=n_classes, image_size=4), path=tmp_path / label)
        np.testing.assert_array_equal(loaded.labels, labels)
        np.testing.assert_array_equal(
            loaded.images, blend(first_images.images[rows], second_images.images[second_rows], 0.5)
        )
