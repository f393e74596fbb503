"""Robustness R, its tables, tests and curves of invented networks with planted accuracies."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from robust201.core.errors import ResultsError
from robust201.core.records import Weights
from robust201.statistics.robustness import robustness_r, sensitivity
from robust201.studies import drawings
from robust201.studies.comparisons import check_printed_marks
from robust201.studies.image_distribution import EPSILONS, attach_printed_decisions, measure_image_distribution
from robust201.studies.networks import Exports
from robust201.studies.pages import write_pages
from tests.support.planted_studies import (
    EPOCHS,
    FOUR_SEEDS,
    IMAGE_DISTRIBUTION,
    N_IMAGES,
    STRENGTHS,
    falling,
    make_weights,
    plant_image_distribution,
    write_study,
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return plant_image_distribution(tmp_path_factory.mktemp("exports"))[1]


@pytest.fixture(scope="module")
def found(exports):
    return measure_image_distribution(IMAGE_DISTRIBUTION, exports)


def test_every_network_is_there_once(found):
    assert len(found.models) == 2 * 6 * len(EPOCHS) * len(FOUR_SEEDS)
    assert not found.models.duplicated(["network", "group", "epoch", "seed"]).any()
    assert found.comparable
    assert found.floor == pytest.approx(1 / 48)


def test_r_is_of_each_network_and_its_mean_is_not_that_of_the_mean_curve(found):
    weights = Weights("", "plain", 4, 3)
    accuracies = [
        round(falling("lenet5", "cifar10", weights, "fgsm", strength) * N_IMAGES) / N_IMAGES
        for strength in (0, *STRENGTHS)
    ]
    wanted = robustness_r(EPSILONS, accuracies).value
    row = found.models.query("network == 'LeNet' and group == 'cifar10' and epoch == 4 and seed == 3")
    assert row["r"].item() == pytest.approx(float(wanted))
    assert row["c"].item() == pytest.approx(float(wanted) - 1)
    of_group = found.models.query("network == 'LeNet' and group == 'cifar10' and epoch == 4")["r"]
    cell = found.tables.query("network == 'LeNet' and group == 'cifar10' and epoch == 4").iloc[0]
    assert (cell["n"], cell["mean"], cell["sd"]) == (4, pytest.approx(of_group.mean()), pytest.approx(of_group.std()))
    assert cell["low"] < cell["mean"] < cell["high"]
    curve = found.curves.query("network == 'LeNet' and group == 'cifar10' and epoch == 4")
    assert cell["mean"] != pytest.approx(float(robustness_r(EPSILONS, curve["accuracy"]).value), abs=1e-4)


def test_values_above_one_are_counted_and_never_clipped(found):
    cell = found.tables.query("network == 'tiny' and group == 'fusion_object' and epoch == 1").iloc[0]
    assert cell["above_one"] == 4
    assert cell["mean"] > 1.3
    assert found.tables["above_one"].sum() == 4
    rows = found.models.query("exceeds_one")
    assert rows["rises"].all()


def test_printed_numbers_stand_beside_the_epochs_that_the_study_names(found):
    lenet = found.tables.query("network == 'LeNet' and group == 'mnist'")
    assert lenet["printed_epoch"].tolist() == [1, 50]
    assert lenet["printed_mean"].tolist() == [0.438451, 0.543602]
    assert lenet["table"].tolist() == [1, 1]
    np.testing.assert_allclose(lenet["difference"], lenet["mean"] - lenet["printed_mean"])
    ours = lenet[["mean", "sd", "n"]].to_numpy().T
    printed = lenet[["printed_mean", "printed_sd"]].to_numpy().T
    expected = stats.ttest_ind_from_stats(*ours, *printed, 20, equal_var=False)
    np.testing.assert_allclose(lenet["p_printed"], expected.pvalue)
    assert found.tables.query("network == 'tiny'")["printed_mean"].isna().all()  # a name that is not printed


def test_the_planted_order_is_found_and_pairs_find_more(found):
    tests = found.comparisons.set_index(["first", "second", "network", "epoch"])
    assert len(tests) == 7 * 2 * 2
    row = tests.loc["mnist", "cifar10", "LeNet", 4]
    assert row["higher_holm"] == "first"
    assert (tests["n_pairs"] == 4).all()
    close = tests.loc["cifar10", "fusion_object", "LeNet", 4]
    assert close["p_paired"] < close["p"]
    assert (tests["p_holm"].dropna() >= tests["p"].dropna()).all()


def test_printed_decisions_stand_beside_ours(found):
    rows = attach_printed_decisions(IMAGE_DISTRIBUTION, found.comparisons, check_printed_marks().comparisons)
    named = rows.set_index(["first", "second", "network", "epoch"])["printed"]
    assert named["mnist", "cifar10", "LeNet", 4] == "first"
    assert named["cifar10", "fusion_object", "LeNet", 4] == ""  # epoch 50 in print, without a mark
    assert pd.isna(named["mnist", "cifar10", "tiny", 4])


def test_curves_are_means_over_networks(found):
    curve = found.curves.query("network == 'LeNet' and group == 'mnist' and epoch == 4")
    assert curve["strength"].tolist() == pytest.approx([0, *STRENGTHS])
    assert curve["normalised"].iloc[0] == 1
    assert curve["accuracy"].iloc[0] == pytest.approx(0.7 + 0.045, abs=2 / N_IMAGES)
    assert (curve["n"] == 4).all()


def test_a_recipe_that_is_not_there_is_one_line(exports):
    groups = {"mnist": {"dataset": "mnist", "recipes": ["plane"]}}
    other = IMAGE_DISTRIBUTION.model_validate(IMAGE_DISTRIBUTION.model_dump() | {"groups": groups})
    with pytest.raises(
        ResultsError, match=r"by plane, got none in .*, mnist by finetuned, mnist by plain \(of mnist: clean, fgsm\)"
    ) as e:
        measure_image_distribution(other, exports)
    assert "\n" not in str(e.value)


def test_networks_at_chance_have_no_r_and_the_page_counts_them(tmp_path, monkeypatch):
    def accuracy(architecture, dataset, weights, key, strength):
        return 0.12 if dataset == "mnist" else falling(architecture, dataset, weights, key, strength)

    groups = {group: IMAGE_DISTRIBUTION.groups[group] for group in ("mnist", "cifar10")}
    networks = {"LeNet": IMAGE_DISTRIBUTION.networks["LeNet"]}
    study = IMAGE_DISTRIBUTION.model_copy(update={"groups": groups, "networks": networks})
    trained = {dataset: {"lenet5": make_weights("plain", (1,), (0, 1))} for dataset in ("mnist", "cifar10")}
    out = write_study(tmp_path / "export", trained, {"clean": (), "fgsm": STRENGTHS}, accuracy)
    found = measure_image_distribution(study, Exports([out]))
    assert found.tables["n"].tolist() == [0, 2]
    assert found.tables[["mean", "low", "high"]].isna().all(axis=1).tolist() == [True, False]
    monkeypatch.setattr(drawings, "save_figure", lambda figure, path: path)  # which takes long
    page = write_pages(study, Exports([out]), tmp_path / "out")[0].read_text()
    assert (
        "2 of them are not above guessing on clean images: they have no R and are left out of means and tests." in page
    )
    assert "| MNIST | 1 | 0 | 0.1200 | – | – | [–, –] | 0 |" in page


def test_groups_of_different_numbers_of_classes_are_compared_by_sensitivity(exports, monkeypatch):
    sizes = {"mnist": (100, N_IMAGES)}
    monkeypatch.setattr(Exports, "task_size", lambda _self, dataset: sizes.get(dataset, (10, N_IMAGES)))
    found = measure_image_distribution(IMAGE_DISTRIBUTION, exports)
    assert found.by_sensitivity
    assert not found.comparable
    row = found.models.query("network == 'LeNet' and group == 'cifar10' and epoch == 4 and seed == 3").iloc[0]
    weights = Weights("", "plain", 4, 3)
    accuracies = [
        round(falling("lenet5", "cifar10", weights, "fgsm", strength) * N_IMAGES) / N_IMAGES
        for strength in (0, *STRENGTHS)
    ]
    wanted = robustness_r(EPSILONS, sensitivity(accuracies, 10, N_IMAGES)).value
    assert row["r"] == pytest.approx(float(wanted))
    assert row["c"] == pytest.approx(float(wanted) - 1)
