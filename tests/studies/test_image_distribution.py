"""Robustness R, with its tables, tests and curves, for synthetic networks with planted accuracies."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from robust201.core.errors import ResultsError
from robust201.core.records import Weights
from robust201.statistics.robustness import robustness_r, sensitivity
from robust201.studies import drawings
from robust201.studies.comparisons import check_published_marks
from robust201.studies.image_distribution import EPSILONS, attach_published_decisions, measure_image_distribution
from robust201.studies.networks import Exports
from robust201.studies.pages import write_pages
from tests.support.planted_studies import (
    EPOCHS,
    FOUR_SEEDS,
    IMAGE_DISTRIBUTION,
    N_IMAGES,
    STRENGTHS,
    falling_accuracy,
    make_weights,
    plant_image_distribution,
    write_study,
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return plant_image_distribution(tmp_path_factory.mktemp("exports"))[1]


@pytest.fixture(scope="module")
def study_result(exports):
    return measure_image_distribution(IMAGE_DISTRIBUTION, exports)


def test_trained_networks_contain_every_network_once(study_result):
    assert len(study_result.trained_networks) == 2 * 6 * len(EPOCHS) * len(FOUR_SEEDS)
    assert not study_result.trained_networks.duplicated(["network", "group", "epoch", "seed"]).any()
    assert study_result.is_comparable
    assert study_result.floor == pytest.approx(1 / 48)


def test_r_is_computed_per_network_and_then_averaged(study_result):
    weights = Weights("", "plain", 4, 3)
    accuracies = [
        round(falling_accuracy("lenet5", "cifar10", weights, "fgsm", strength) * N_IMAGES) / N_IMAGES
        for strength in (0, *STRENGTHS)
    ]
    expected = robustness_r(EPSILONS, accuracies).value
    row = study_result.trained_networks.query("network == 'LeNet' and group == 'cifar10' and epoch == 4 and seed == 3")
    assert row["r"].item() == pytest.approx(float(expected))
    assert row["c"].item() == pytest.approx(float(expected) - 1)
    group_values = study_result.trained_networks.query("network == 'LeNet' and group == 'cifar10' and epoch == 4")["r"]
    table_row = study_result.tables.query("network == 'LeNet' and group == 'cifar10' and epoch == 4").iloc[0]
    assert (table_row["n"], table_row["mean"], table_row["sd"]) == (
        4,
        pytest.approx(group_values.mean()),
        pytest.approx(group_values.std()),
    )
    assert table_row["low"] < table_row["mean"] < table_row["high"]
    curve = study_result.curves.query("network == 'LeNet' and group == 'cifar10' and epoch == 4")
    assert table_row["mean"] != pytest.approx(float(robustness_r(EPSILONS, curve["accuracy"]).value), abs=1e-4)


def test_r_above_one_is_counted_and_not_clipped(study_result):
    table_row = study_result.tables.query("network == 'tiny' and group == 'fusion_object' and epoch == 1").iloc[0]
    assert table_row["above_one"] == 4
    assert table_row["mean"] > 1.3
    assert study_result.tables["above_one"].sum() == 4
    rows = study_result.trained_networks.query("exceeds_one")
    assert rows["rises"].all()


def test_tables_show_published_numbers_of_the_printed_epochs(study_result):
    lenet = study_result.tables.query("network == 'LeNet' and group == 'mnist'")
    assert lenet["printed_epoch"].tolist() == [1, 50]
    assert lenet["printed_mean"].tolist() == [0.438451, 0.543602]
    assert lenet["table"].tolist() == [1, 1]
    np.testing.assert_allclose(lenet["difference"], lenet["mean"] - lenet["printed_mean"])
    our_summaries = lenet[["mean", "sd", "n"]].to_numpy().T
    published = lenet[["printed_mean", "printed_sd"]].to_numpy().T
    expected = stats.ttest_ind_from_stats(*our_summaries, *published, 20, equal_var=False)
    np.testing.assert_allclose(lenet["p_printed"], expected.pvalue)
    assert (
        study_result.tables.query("network == 'tiny'")["printed_mean"].isna().all()
    )  # the paper has no network of this name


def test_paired_tests_detect_smaller_differences_than_unpaired_tests(study_result):
    tests = study_result.comparisons.set_index(["first", "second", "network", "epoch"])
    assert len(tests) == 7 * 2 * 2
    row = tests.loc["mnist", "cifar10", "LeNet", 4]
    assert row["higher_holm"] == "first"
    assert (tests["n_pairs"] == 4).all()
    small_difference = tests.loc["cifar10", "fusion_object", "LeNet", 4]
    assert small_difference["p_paired"] < small_difference["p"]
    assert (tests["p_holm"].dropna() >= tests["p"].dropna()).all()


def test_attach_published_decisions_adds_the_published_markers(study_result):
    rows = attach_published_decisions(IMAGE_DISTRIBUTION, study_result.comparisons, check_published_marks().comparisons)
    decisions = rows.set_index(["first", "second", "network", "epoch"])["printed"]
    assert decisions["mnist", "cifar10", "LeNet", 4] == "first"
    assert decisions["cifar10", "fusion_object", "LeNet", 4] == ""  # published at epoch 50 without a marker
    assert pd.isna(decisions["mnist", "cifar10", "tiny", 4])


def test_curves_are_means_over_networks(study_result):
    curve = study_result.curves.query("network == 'LeNet' and group == 'mnist' and epoch == 4")
    assert curve["strength"].tolist() == pytest.approx([0, *STRENGTHS])
    assert curve["normalised"].iloc[0] == 1
    assert curve["accuracy"].iloc[0] == pytest.approx(0.7 + 0.045, abs=2 / N_IMAGES)
    assert (curve["n"] == 4).all()


@pytest.mark.parametrize("normalised", [False, True])
def test_chance_lines_are_at_one_over_each_groups_number_of_classes(exports, monkeypatch, normalised):
    sizes = {"mnist": (100, N_IMAGES)}
    monkeypatch.setattr(Exports, "dataset_size", lambda _self, dataset: sizes.get(dataset, (10, N_IMAGES)))
    study_result = measure_image_distribution(IMAGE_DISTRIBUTION, exports)
    groups, chances = drawings.FROM_SCRATCH_GROUPS, study_result.chances
    assert (chances["mnist"], chances["cifar10"]) == (0.01, 0.1)
    figure = drawings.draw_accuracy_curves(study_result.curves, groups, chances, normalised=normalised)
    panels = study_result.curves[study_result.curves["group"].isin(groups)].groupby(["network", "epoch"], sort=False)
    for axes, (_, rows) in zip(figure.axes, panels, strict=True):
        drawn = sorted(line.get_ydata()[0] for line in axes.lines if line.get_linestyle() in (":", "--"))
        clean = rows[rows["strength"] == 0].set_index("group")["accuracy"]
        normalised_chances = [chances[group] / accuracy for group, accuracy in clean.items()]
        assert drawn == pytest.approx(sorted(normalised_chances if normalised else {*map(chances.get, clean.index)}))


def test_measure_image_distribution_rejects_unknown_recipe(exports):
    groups = {"mnist": {"dataset": "mnist", "recipes": ["plane"]}}
    misspelled_study = IMAGE_DISTRIBUTION.model_validate(IMAGE_DISTRIBUTION.model_dump() | {"groups": groups})
    with pytest.raises(
        ResultsError,
        match=r"trained with plane in .*, mnist with finetuned, mnist with plain \(keys on mnist: clean, fgsm\)",
    ) as error:
        measure_image_distribution(misspelled_study, exports)
    assert "\n" not in str(error.value)


def test_networks_at_chance_have_no_r_and_page_counts_them(tmp_path, monkeypatch):
    def accuracy(architecture, dataset, weights, key, strength):
        return 0.12 if dataset == "mnist" else falling_accuracy(architecture, dataset, weights, key, strength)

    groups = {group: IMAGE_DISTRIBUTION.groups[group] for group in ("mnist", "cifar10")}
    networks = {"LeNet": IMAGE_DISTRIBUTION.networks["LeNet"]}
    study = IMAGE_DISTRIBUTION.model_copy(update={"groups": groups, "networks": networks})
    trained = {dataset: {"lenet5": make_weights("plain", (1,), (0, 1))} for dataset in ("mnist", "cifar10")}
    export_folder = write_study(tmp_path / "export", trained, {"clean": (), "fgsm": STRENGTHS}, accuracy)
    study_result = measure_image_distribution(study, Exports([export_folder]))
    assert study_result.tables["n"].tolist() == [0, 2]
    assert study_result.tables[["mean", "low", "high"]].isna().all(axis=1).tolist() == [True, False]
    monkeypatch.setattr(drawings, "save_figure", lambda figure, path: path)  # drawing is slow
    page = write_pages(study, Exports([export_folder]), tmp_path / "out")[0].read_text()
    assert "The clean accuracies of 2 networks are not significantly above chance: these networks have no R" in page
    assert "| MNIST | 1 | 0 | 0.1200 | – | – | [–, –] | 0 |" in page


def test_r_is_computed_from_sensitivity_if_numbers_of_classes_differ(exports, monkeypatch):
    sizes = {"mnist": (100, N_IMAGES)}
    monkeypatch.setattr(Exports, "dataset_size", lambda _self, dataset: sizes.get(dataset, (10, N_IMAGES)))
    study_result = measure_image_distribution(IMAGE_DISTRIBUTION, exports)
    assert study_result.uses_sensitivity
    assert not study_result.is_comparable
    row = study_result.trained_networks.query(
        "network == 'LeNet' and group == 'cifar10' and epoch == 4 and seed == 3"
    ).iloc[0]
    weights = Weights("", "plain", 4, 3)
    accuracies = [
        round(falling_accuracy("lenet5", "cifar10", weights, "fgsm", strength) * N_IMAGES) / N_IMAGES
        for strength in (0, *STRENGTHS)
    ]
    expected = robustness_r(EPSILONS, sensitivity(accuracies, 10, N_IMAGES)).value
    assert row["r"] == pytest.approx(float(expected))
    assert row["c"] == pytest.approx(float(expected) - 1)
