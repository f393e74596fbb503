"""Presets of keys in `robust201.evaluate`: keys, parameters, a reproducible subset of images, and a summary."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import robust201
from robust201 import api
from robust201.analysis.evaluation import Evaluation
from robust201.core.errors import ConfigError, DatasetError, EvaluationError
from robust201.images import select
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import CORRUPTIONS, FEW_CLASSES_KEYS, PRESETS, TASKS
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images

IMAGES = tiny_images(60)
PIXELS, LABELS = IMAGES.images, IMAGES.labels
# Networks have random weights, and attacks have few images and steps.
pytestmark = pytest.mark.filterwarnings("ignore:(single step|ensemble|.* by chance)")
OPTIONS = {"normalisation": NORMALISATION, "progress": False}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce images and AutoAttack's steps, since the defaults take seconds even on tiny networks."""
    reduced_fields = {
        "aa_standard": {"steps": 5, "queries": 20},
        "aa_fab-t": {"steps": 3},
        "aa_square": {"queries": 20},
    }
    for keys in (PRESETS["quick"], FEW_CLASSES_KEYS):
        for key in keys.keys() & reduced_fields.keys():
            monkeypatch.setitem(keys, key, keys[key] | reduced_fields[key])
    monkeypatch.setattr(api, "N_QUICK_IMAGES", 20)


def without_seconds(evaluation: Evaluation) -> pd.DataFrame:
    return evaluation.table.drop(columns="seconds")


def test_presets_have_the_strengths_of_the_protocol():
    strengths = {
        preset: {key: TASKS[key].parameters(**fields).strengths for key, fields in keys.items()}
        for preset, keys in PRESETS.items()
    }
    attacks = {"fgsm": (8.0,), "pgd": (8.0,), "aa_standard": (8.0,)}
    corruptions = dict.fromkeys(("gaussian_noise", "defocus_blur", "jpeg_compression"), (5.0,))
    assert strengths["quick"] == {"clean": (0.0,)} | attacks | corruptions
    assert strengths["robustbench-linf"] == {"clean": (0.0,), "aa_standard": (8.0,)}
    assert strengths["robustbench-l2"] == {"clean": (0.0,), "aa_standard_l2": (0.5,)}
    assert [*strengths["robustbench-corruptions"]] == ["clean", *CORRUPTIONS]
    assert {strengths["robustbench-corruptions"][key] for key in CORRUPTIONS} == {(1.0, 2.0, 3.0, 4.0, 5.0)}


def test_quick_is_the_default_and_evaluates_a_reproducible_subset():
    default = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, seed=4, **OPTIONS)
    assert [*dict.fromkeys(default.table["key"])] == [*PRESETS["quick"]]
    assert (default.table["n_images"] == 20).all()
    low, high = accuracy_intervals(default.table["accuracy"], 20)
    assert (default.table["low"].tolist(), default.table["high"].tolist()) == (low.tolist(), high.tolist())
    assert default.outcomes.index.tolist() == np.flatnonzero(np.isin(IMAGES.indices, select_indices(20, 4))).tolist()
    assert {protocol["images"] for protocol in default.protocols.values()} == {"class-stratified subset, 20 of 60"}
    for keys in (["quick"], [{key: fields} for key, fields in PRESETS["quick"].items()]):
        result = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, keys, count=20, seed=4, **OPTIONS)
        pd.testing.assert_frame_equal(without_seconds(result), without_seconds(default))
        assert result.images_sha256 == default.images_sha256
        assert result.protocols == default.protocols


def test_quick_omits_corruptions_if_images_are_not_8_bit():
    floats = PIXELS[:4].astype(np.float32) / 255 * np.float32(0.999)
    result = robust201.evaluate(TinyNetwork(), floats, LABELS[:4], **OPTIONS)
    assert [*result.table["key"]] == ["clean", "fgsm", "pgd", "aa_standard"]


def select_indices(count: int, seed: int) -> np.ndarray:
    return select(IMAGES, count=count, seed=seed).indices


def test_summary_is_per_image_worst_case_over_attacks():
    result = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, **OPTIONS)
    clean, attacked = result.summary.splitlines()
    assert clean.startswith(f"{result.outcomes['clean', 0.0].mean():.1%} [")
    keys = ["fgsm", "pgd", "aa_standard"]
    worst_case_accuracy = result.outcomes[[(key, 8.0) for key in keys]].all(axis=1).mean()
    assert attacked.startswith(f"{worst_case_accuracy:.1%} [")
    assert attacked.endswith(
        "withstand fgsm, pgd, aa_standard at epsilon 8/255 (Linf), each image under its worst attack."
    )
    assert "AutoAttack" not in result.summary
    fgsm = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, {"fgsm": {"epsilons": ["1/255", "8/255"]}}, **OPTIONS)
    assert all("AutoAttack" in line for line in fgsm.summary.splitlines())
    assert worst_case_accuracy <= result.table.set_index("key").loc[keys, "accuracy"].min()


def linear_network(n_classes: int) -> nn.Module:
    torch.manual_seed(n_classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, n_classes))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_quick_supports_few_classes(n_classes):
    result = robust201.evaluate(linear_network(n_classes), PIXELS, LABELS % n_classes, progress=False)
    assert {"aa_apgd-ce", "aa_square"} <= {*result.table["key"]}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": linear_network(1)}, EvaluationError, "got a single logit per image"),
        ({"count": 61}, DatasetError, "expected a count from 1 to 60, got 61"),
        ({"keys": ["quick", "fog"]}, ConfigError, "'quick': expected a preset alone"),
        ({"keys": {"quick": {"epsilons": ["4/255"]}}}, ConfigError, "'quick': expected a preset alone"),
    ],
)
def test_evaluate_rejects_wrong_arguments(changes, error, message):
    options = {"model": TinyNetwork(), "images": PIXELS, "labels": LABELS, **OPTIONS}
    with pytest.raises(error, match=message) as caught:
        robust201.evaluate(**(options | changes))
    assert not re.search("\n", str(caught.value))
