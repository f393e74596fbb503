"""The three questions of the study of robust features, for synthetic networks with planted accuracies."""

import math

import numpy as np
import pandas as pd
import pytest

from robust201.core.errors import ResultsError
from robust201.core.records import CLEAN_STRENGTH
from robust201.studies.networks import Exports
from robust201.studies.robust_features import (
    count_directions,
    measure_dynamics,
    measure_equivariance,
    measure_mixing,
    published_equivariance,
    published_numbers,
)
from tests.support.planted_studies import (
    N_IMAGES,
    SEEDS,
    correct_images,
    make_weights,
    plant_dynamics,
    plant_equivariance,
    plant_mixing,
    spatial_accuracy,
    write_study,
)


def test_published_numbers_are_complete_and_in_percent():
    published = published_numbers()
    assert len(published["dynamics"]["iterations"]) == 29
    curves = [curve for run in published["dynamics"]["runs"].values() for curve in run.values()]
    assert {len(curve) for curve in curves} == {29}
    mixing = [curve for network in published["mixing"]["networks"].values() for curve in network.values()]
    assert {len(curve) for curve in mixing} == {11} == {len(published["mixing"]["alphas"])}
    table_accuracies = [
        accuracies
        for name in ("best", "by_depth")
        for by_attack in published["equivariance"][name].values()
        for accuracies in by_attack.values()
    ]
    assert {len(accuracies) for accuracies in table_accuracies} == {4}
    percentages = np.concatenate([np.ravel(rows) for rows in (curves, mixing, table_accuracies)])
    assert ((percentages >= 0) & (percentages <= 100)).all()
    assert np.median(percentages) > 1


# --- Dynamics


@pytest.fixture(scope="module")
def dynamics(tmp_path_factory):
    return measure_dynamics(*plant_dynamics(tmp_path_factory.mktemp("dynamics")))


def test_attack_success_is_relative_to_correctly_classified_images(dynamics):
    indexed_rows = dynamics.curves.set_index(["run", "curve", "iteration"]).sort_index()
    assert indexed_rows.loc[("std", "clean"), "mean"].to_dict() == {100: 0.8, 625: 0.8, 1250: 0.8}
    assert indexed_rows.loc[("std", "asr rot30"), "mean"].tolist() == [0.5] * 3
    assert indexed_rows.loc[("std", "asr pgd_linf7:1"), "mean"].tolist() == pytest.approx(
        [0.04, 0.25, 0.5], abs=2 / N_IMAGES
    )
    assert indexed_rows.loc["std", "n"].unique().tolist() == [2]
    assert np.isnan(indexed_rows.loc[("tiny", "clean", 625), "low"])  # one seed has no interval
    assert indexed_rows.loc[("tiny", "clean", 625), "min"] == indexed_rows.loc[("tiny", "clean", 625), "max"] == 0.8


def test_networks_in_two_exports_are_counted_once_and_must_agree(dynamics, tmp_path):
    study, exports = plant_dynamics(tmp_path / "first")
    (folder,) = (reader.path for reader in exports.readers)
    repeated_exports = Exports([folder, folder], iterations_per_epoch=625)
    pd.testing.assert_frame_equal(measure_dynamics(study, repeated_exports).curves, dynamics.curves)

    planned = {"cifar10": {"resnet32-narrow": make_weights("plain", (1,), (0,))}}
    other_folder = write_study(tmp_path / "second", planned, {"clean": ()}, lambda *_: 0.5, with_outcomes=True)
    contradictory_exports = Exports([folder, other_folder])
    message = "different results for resnet32-narrow, trained with the recipe plain and seed 0 up to epoch 1: "
    for read_results in (
        lambda: contradictory_exports.accuracies("cifar10", "clean", ["plain"], ["resnet32-narrow"]),
        lambda: contradictory_exports.outcomes("cifar10", "clean", CLEAN_STRENGTH, ["plain"], "resnet32-narrow"),
    ):
        with pytest.raises(ResultsError, match=message) as error:
            read_results()
        assert "\n" not in str(error.value)


def test_published_curves_are_compared_at_equal_iterations(dynamics):
    indexed_rows = dynamics.curves.set_index(["run", "curve", "iteration"]).sort_index()
    assert indexed_rows.loc[("std", "clean", 625), "printed"] == pytest.approx(0.5616)
    assert indexed_rows.loc[("std", "clean", 625), "difference"] == pytest.approx(0.8 - 0.5616)
    # There is no published number after 100 iterations.
    assert np.isnan(indexed_rows.loc[("std", "clean", 100), "printed"])
    assert indexed_rows.loc["tiny", "printed"].isna().all()
    trends = dynamics.trends.set_index(["run", "curve"]).sort_index()
    assert trends.loc[("std", "asr pgd_linf7:1"), "tau"] == 1
    assert trends.loc[("std", "asr rot30"), "printed_lowest"] == pytest.approx(0.6530)
    assert np.isnan(trends.loc[("std", "asr rot30"), "tau"])  # the curve is constant


def test_shorter_runs_are_compared_at_the_same_fraction_of_training(tmp_path):
    study, exports = plant_dynamics(tmp_path)
    shorter_study = study.model_copy(update={"iterations_per_printed": 0.2})
    indexed_rows = measure_dynamics(shorter_study, exports).curves.set_index(["run", "curve", "iteration"]).sort_index()
    assert indexed_rows.loc[("std", "clean", 625), "printed"] == pytest.approx(0.706)
    assert indexed_rows.loc[("std", "clean"), "printed_iteration"].fillna(0).tolist() == [0, 3125, 6250]
    # The 100 iterations correspond to 500 published iterations, for which there is no published number.
    assert np.isnan(indexed_rows.loc[("std", "clean", 100), "printed"])


# --- Mixing


@pytest.fixture(scope="module")
def mixing(tmp_path_factory):
    return measure_mixing(*plant_mixing(tmp_path_factory.mktemp("mixing")))


def test_accuracy_over_alpha_is_compared_with_published_numbers(mixing):
    indexed_rows = mixing.curves.set_index(["network", "curve", "alpha"])
    assert len(indexed_rows) == 2 * 2 * 3
    row = indexed_rows.loc[("ResNet-50", "pgd_l2:0.25", 0.5)]
    assert row["mean"] == pytest.approx(0.405)
    assert row["printed"] == pytest.approx(0.2664)
    assert row["low"] < row["mean"] < row["high"]
    assert indexed_rows.loc[("VGG-16", "clean", 1.0), "printed"] == pytest.approx(0.8399)


def test_mixing_trends_have_slopes_and_numbers_of_decreases(mixing):
    indexed_rows = mixing.trends.set_index(["network", "curve"])
    rising, dipping = indexed_rows.loc[("ResNet-50", "pgd_l2:0.25")], indexed_rows.loc[("VGG-16", "pgd_l2:0.25")]
    assert rising["slope"] == pytest.approx(0.41)
    assert rising["low"] < 0.41 < rising["high"]
    # The planted accuracies of VGG-16 are lower by 0.1 at alpha 0.5, but they still rise from each alpha to the next.
    assert (rising["steps"], rising["fall"], dipping["fall"]) == (2, 0, 0)
    assert indexed_rows.loc[("ResNet-50", "clean"), "fall"] == 2
    # The published accuracy decreases once, from alpha 0.1 to 0.2.
    assert (rising["printed_steps"], rising["printed_fall"]) == (10, 1)


# --- Equivariance


@pytest.fixture(scope="module")
def equivariance(tmp_path_factory):
    return measure_equivariance(*plant_equivariance(tmp_path_factory.mktemp("equivariance")))


def test_candidate_is_selected_and_evaluated_on_different_images(equivariance):
    assert (equivariance.n_validation, equivariance.n_images) == (N_IMAGES // 2, N_IMAGES)
    indexed_rows = equivariance.best.set_index(["attack", "network", "setting"])
    assert len(indexed_rows) == 2 * 2 * 2
    assert (indexed_rows["selection"] >= 0).all()
    assert indexed_rows.loc[("rot30", "STN", "D"), "chosen"].startswith("STN-ResNet-34")
    assert indexed_rows.loc[("rot30", "STN", "D"), "candidates"] == 4
    assert indexed_rows.loc[("rot30", "STN", "D*"), "printed"] == pytest.approx(0.861)
    assert indexed_rows.loc[("clean", "ResNet-50", "D"), "printed"] == pytest.approx(0.9484)
    depth = equivariance.depths.set_index(["attack", "architecture", "setting"])
    assert depth.loc[("rot30", "STN-ResNet-18", "D"), "printed"] == pytest.approx(0.3866)
    assert depth.loc[("rot30", "STN-ResNet-18", "D"), "candidates"] == 2


def test_candidates_have_accuracies_on_all_images(equivariance):
    rows = equivariance.candidates.query("attack == 'rot30' and architecture == 'STN-ResNet-34' and recipe == 'd-2'")
    weights = make_weights("d-2", (3,), SEEDS)
    expected = [
        correct_images(spatial_accuracy("stn-resnet34", "cifar10", network_weights, "rot30", 0)).mean()
        for network_weights in weights
    ]
    assert rows["mean"].item() == pytest.approx(np.mean(expected))


def test_count_directions_of_the_published_table():
    expected = {"robust": (38, 38), "rotations": (30, 30), "equivariant": (40, 40)}
    assert count_directions(published_equivariance()) == expected


def test_count_directions_ignores_missing_and_equal_accuracies():
    accuracies = {"ResNet-18": (0.5, 0.4, 0.6, math.nan), "STN": (0.5, 0.5, 0.7, 0.6)}
    best = pd.DataFrame(
        {"attack": "rot30", "network": network, "setting": setting, "on_test": value}
        for network, values in accuracies.items()
        for setting, value in zip(("D", "D_R", "D*", "D_R*"), values, strict=True)
    )
    assert count_directions(best) == {"robust": (2, 3), "rotations": (3, 3), "equivariant": (2, 3)}
    clean = count_directions(best.assign(attack="clean"))
    assert clean == {"robust": (2, 3), "rotations": (0, 0), "equivariant": (0, 0)}
