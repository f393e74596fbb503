"""Mixed-effects models of the robustness R: effects by group, effects over architectures, and missing data."""

import numpy as np
import pandas as pd
import pytest

from robust201.statistics.significance import holm_adjust
from robust201.studies.comparisons import COMPARISONS, GROUPS
from robust201.studies.mixed_effects import ALL_NETWORKS, FACTORS, fit_mixed_effects


def make_r_values(seeds=range(5), networks=("LeNet", "ResNet50"), epochs=(1, 4)):
    """Return simulated values of R for networks in all groups, with a seed effect that all groups share."""
    rng = np.random.default_rng(0)
    rows = []
    for network in networks:
        for epoch in epochs:
            seed_effects = dict(zip(seeds, rng.normal(0, 0.1, len(seeds)), strict=True))
            for index, group in enumerate(GROUPS):
                names = {"network": network, "group": group, "epoch": epoch}
                rows += [names | {"seed": seed, "r": 0.6 - 0.05 * index + seed_effects[seed]} for seed in seeds]
    frame = pd.DataFrame(rows)
    return frame.assign(r=frame["r"] + rng.normal(0, 0.02, len(frame)))


@pytest.fixture(scope="module")
def r_values():
    return make_r_values()


@pytest.fixture(scope="module")
def study_effects(r_values):
    return fit_mixed_effects(r_values)


def find_effect(effects, experiment, network, epoch):
    rows = effects.query("experiment == @experiment and network == @network")
    return rows[rows["epoch"].isna() if epoch is None else rows["epoch"] == epoch].iloc[0]


def test_mixed_effects_cover_every_factor(study_effects):
    assert set(FACTORS) == {comparison.experiment for comparison in COMPARISONS}
    # There are 7 comparisons for each of 2 networks and 2 epochs, 7 means over networks, and 1 difference of networks.
    assert len(study_effects.effects) == 7 * 2 * 2 + 7 + 1
    assert set(study_effects.effects["factor"]) == {*FACTORS.values(), "architecture"}
    assert study_effects.effects.notna().drop(columns="epoch").all(axis=None)
    np.testing.assert_allclose(study_effects.effects["p_holm"], holm_adjust(study_effects.effects["p"]))
    assert len(study_effects.variances) == 4


def test_effect_of_complete_groups_is_the_difference_of_their_means(r_values, study_effects):
    means = r_values.groupby(["network", "group", "epoch"])["r"].mean()
    row = find_effect(study_effects.effects, "E2a", "ResNet50", 4)
    expected = means["ResNet50", "fusion_digit", 4] - means["ResNet50", "fusion_object", 4]
    assert row["estimate"] == pytest.approx(expected)
    assert row["degrees"] == pytest.approx(4 * 5, rel=1e-4)
    assert row["low"] < expected < row["high"]
    assert (study_effects.variances["seed_share"] > 0.7).all()
    assert study_effects.variances["n"].tolist() == [30] * 4


def test_effects_over_architectures_use_the_last_epochs(r_values, study_effects):
    effects_by_network = [find_effect(study_effects.effects, "E3a", network, 4) for network in ("LeNet", "ResNet50")]
    mean = find_effect(study_effects.effects, "E3a", ALL_NETWORKS, None)
    assert mean["estimate"] == pytest.approx(np.mean([row["estimate"] for row in effects_by_network]))
    assert mean["error"] == pytest.approx(np.hypot(*(row["error"] for row in effects_by_network)) / 2)
    row = study_effects.effects.query("factor == 'architecture'").iloc[0]
    mean_r = r_values.query("epoch == 4").groupby("network")["r"].mean()
    assert row["network"] == "LeNet against ResNet50"
    assert row["estimate"] == pytest.approx(mean_r["LeNet"] - mean_r["ResNet50"])
    assert row["degrees"] < 10  # degrees of freedom come from seeds, not from training runs


def test_single_network_has_no_effects_over_architectures():
    study_effects = fit_mixed_effects(make_r_values(networks=("LeNet",), epochs=(1,)))
    assert study_effects.effects["network"].unique().tolist() == ["LeNet"]


def test_missing_training_run_hardly_changes_the_effect(r_values):
    complete = r_values.query("network == 'LeNet' and epoch == 4")
    highest = complete.query("group == 'mnist'").sort_values("r").index[-1]
    complete_effect, incomplete_effect = (
        find_effect(fit_mixed_effects(rows).effects, "E1", "LeNet", 4) for rows in (complete, complete.drop(highest))
    )
    without_r = complete.assign(r=complete["r"].where(complete.index != highest))
    assert (
        find_effect(fit_mixed_effects(without_r).effects, "E1", "LeNet", 4)["estimate"] == incomplete_effect["estimate"]
    )
    means = complete.drop(highest).groupby("group")["r"].mean()
    difference_of_means = means["mnist"] - means["cifar10"]
    assert (
        abs(incomplete_effect["estimate"] - complete_effect["estimate"])
        < abs(difference_of_means - complete_effect["estimate"]) / 2
    )


def test_missing_groups_have_no_effects(r_values):
    study_effects = fit_mixed_effects(r_values[r_values["group"].isin(["mnist", "cifar10"])])
    assert set(study_effects.effects["experiment"]) == {"E1", ""}


def test_single_seed_has_no_model():
    study_effects = fit_mixed_effects(make_r_values(seeds=[3]))
    assert study_effects.variances["n_seeds"].tolist() == [1] * 4
    assert study_effects.effects[["estimate", "p", "p_holm"]].isna().all(axis=None)
