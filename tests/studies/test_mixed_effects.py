"""Mixed models of R: effects of complete and incomplete groups, over architectures, and of too few seeds."""

import numpy as np
import pandas as pd
import pytest

from robust201.statistics.significance import holm_adjust
from robust201.studies.comparisons import FAMILIES, GROUPS
from robust201.studies.mixed_effects import ALL_NETWORKS, FACTORS, fit_mixed_effects


def invent(seeds=range(5), networks=("LeNet", "ResNet50"), epochs=(1, 4)):
    """R of every group, with a part that a network's seed adds to all of them."""
    draws = np.random.default_rng(0)
    rows = []
    for network in networks:
        for epoch in epochs:
            of_seed = dict(zip(seeds, draws.normal(0, 0.1, len(seeds)), strict=True))
            for place, group in enumerate(GROUPS):
                names = {"network": network, "group": group, "epoch": epoch}
                rows += [names | {"seed": seed, "r": 0.6 - 0.05 * place + of_seed[seed]} for seed in seeds]
    frame = pd.DataFrame(rows)
    return frame.assign(r=frame["r"] + draws.normal(0, 0.02, len(frame)))


@pytest.fixture(scope="module")
def models():
    return invent()


@pytest.fixture(scope="module")
def found(models):
    return fit_mixed_effects(models)


def effect(effects, experiment, network, epoch):
    rows = effects.query("experiment == @experiment and network == @network")
    return rows[rows["epoch"].isna() if epoch is None else rows["epoch"] == epoch].iloc[0]


def test_there_is_an_effect_of_every_factor(found):
    assert set(FACTORS) == {family.experiment for family in FAMILIES}
    assert len(found.effects) == 7 * 2 * 2 + 7 + 1
    assert set(found.effects["factor"]) == {*FACTORS.values(), "architecture"}
    assert found.effects.notna().drop(columns="epoch").all(axis=None)
    np.testing.assert_allclose(found.effects["p_holm"], holm_adjust(found.effects["p"]))
    assert len(found.variances) == 4


def test_an_effect_of_complete_groups_is_the_difference_of_their_means(models, found):
    means = models.groupby(["network", "group", "epoch"])["r"].mean()
    row = effect(found.effects, "E2a", "ResNet50", 4)
    wanted = means["ResNet50", "fusion_digit", 4] - means["ResNet50", "fusion_object", 4]
    assert row["estimate"] == pytest.approx(wanted)
    assert row["degrees"] == pytest.approx(4 * 5, rel=1e-4)
    assert row["low"] < wanted < row["high"]
    assert (found.variances["seed_share"] > 0.7).all()
    assert found.variances["n"].tolist() == [30] * 4


def test_effects_over_architectures_are_of_the_last_epochs(models, found):
    both = [effect(found.effects, "E3a", network, 4) for network in ("LeNet", "ResNet50")]
    mean = effect(found.effects, "E3a", ALL_NETWORKS, None)
    assert mean["estimate"] == pytest.approx(np.mean([row["estimate"] for row in both]))
    assert mean["error"] == pytest.approx(np.hypot(*(row["error"] for row in both)) / 2)
    row = found.effects.query("factor == 'architecture'").iloc[0]
    last = models.query("epoch == 4").groupby("network")["r"].mean()
    assert row["network"] == "LeNet against ResNet50"
    assert row["estimate"] == pytest.approx(last["LeNet"] - last["ResNet50"])
    assert row["degrees"] < 10  # seeds count, not trainings


def test_one_network_has_no_effects_over_architectures():
    found = fit_mixed_effects(invent(networks=("LeNet",), epochs=(1,)))
    assert found.effects["network"].unique().tolist() == ["LeNet"]


def test_what_other_groups_say_of_a_seed_stands_in_for_a_missing_training(models):
    one = models.query("network == 'LeNet' and epoch == 4")
    highest = one.query("group == 'mnist'").sort_values("r").index[-1]
    whole, gap = (effect(fit_mixed_effects(rows).effects, "E1", "LeNet", 4) for rows in (one, one.drop(highest)))
    without_r = one.assign(r=one["r"].where(one.index != highest))
    assert effect(fit_mixed_effects(without_r).effects, "E1", "LeNet", 4)["estimate"] == gap["estimate"]
    means = one.drop(highest).groupby("group")["r"].mean()
    of_means = means["mnist"] - means["cifar10"]
    assert abs(gap["estimate"] - whole["estimate"]) < abs(of_means - whole["estimate"]) / 2


def test_groups_that_are_left_out_have_no_effects(models):
    found = fit_mixed_effects(models[models["group"].isin(["mnist", "cifar10"])])
    assert set(found.effects["experiment"]) == {"E1", ""}


def test_a_single_seed_has_no_model():
    found = fit_mixed_effects(invent(seeds=[3]))
    assert found.variances["n_seeds"].tolist() == [1] * 4
    assert found.effects[["estimate", "p", "p_holm"]].isna().all(axis=None)
