"""`robust201.compare`: differences between networks on the same images, with intervals and significance tests."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest
from torch import nn

import robust201
from robust201.analysis.evaluation import Evaluation
from robust201.core.errors import ConfigError, RobustWarning

# Networks with random weights classify images at chance level.
pytestmark = pytest.mark.filterwarnings("ignore:.* by chance")

KEYS = ["clean", {"fgsm": {"epsilons": ["8/255", "32/255"]}}]


class LinearNetwork(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3 * 8 * 8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images.flatten(1))


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)


@pytest.fixture(scope="module")
def labels(images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return LinearNetwork(0)(torch.from_numpy(images) / 255).argmax(1).numpy()


def test_mean_outcomes_match_accuracies_in_table(images, labels):
    result = robust201.evaluate(LinearNetwork(0), images, labels, [*KEYS, "input_gradient"])
    assert isinstance(result, Evaluation)
    assert result.outcomes.shape == (60, 3)  # a measure has no outcomes
    accuracies = result.table.dropna(subset="accuracy").set_index(["key", "strength"])["accuracy"]
    pd.testing.assert_series_equal(result.outcomes.mean(), accuracies, check_names=False)
    for copied in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert copied.outcomes.equals(result.outcomes)
        assert copied.table.equals(result.table)


def test_compare_detects_only_the_worse_network(images, labels):
    comparison = robust201.compare(
        {"good": LinearNetwork(0), "copy": LinearNetwork(0), "bad": LinearNetwork(1)}, images, labels, KEYS
    )
    assert comparison.table[["first", "second"]].drop_duplicates().values.tolist() == [
        ["good", "copy"],
        ["good", "bad"],
        ["copy", "bad"],
    ]
    rows_of_copy = comparison.table[comparison.table["second"] == "copy"]
    assert (rows_of_copy["difference"] == 0).all()
    assert (rows_of_copy["p_value"] == 1).all()
    clean = comparison.table[(comparison.table["second"] == "bad") & (comparison.table["key"] == "clean")].iloc[0]
    assert clean["difference"] == clean["second_accuracy"] - clean["first_accuracy"] < -0.3
    assert clean["low"] < clean["difference"] < clean["high"] < 0
    expected = binomtest(int(clean["only_second"]), int(clean["only_first"] + clean["only_second"])).pvalue
    assert clean["p_value"] == pytest.approx(expected)
    assert (comparison.table["adjusted_p_value"] >= comparison.table["p_value"]).all()
    notice, good_and_copy, good_and_bad, copy_and_bad = comparison.summary.splitlines()
    assert notice.startswith("bad classifies ")
    assert good_and_copy.startswith("good and copy do not differ significantly in any of 3 evaluations (60 images")
    assert good_and_copy.endswith("They have the same outcome on every image, as if they were the same network.")
    assert "same outcome on every image" not in good_and_bad
    assert good_and_bad.startswith("good is significantly more accurate in")
    assert copy_and_bad.startswith("copy is significantly more accurate in")


def test_compare_accepts_results_of_evaluate(images, labels):
    results = [robust201.evaluate(LinearNetwork(seed), images, labels, KEYS) for seed in (0, 1)]
    comparison = robust201.compare(results)
    assert comparison.table["first"].unique().tolist() == ["LinearNetwork 1"]
    comparison_of_modules = robust201.compare([LinearNetwork(0), LinearNetwork(1)], images, labels, KEYS)
    pd.testing.assert_frame_equal(
        comparison.table.drop(columns=["first", "second"]),
        comparison_of_modules.table.drop(columns=["first", "second"]),
    )


def test_compare_rejects_incomparable_networks(images, labels, tmp_path):
    """The protocol of a custom attack includes the batch size, on which its random numbers depend."""
    path = tmp_path / "noise.py"
    path.write_text(
        "import torch\n\ndef perturb(model, images, labels, epsilon):\n"
        "    return (images + epsilon / 255 * (2 * torch.rand_like(images) - 1)).clamp(0, 1)\n"
    )
    noise = {"noise": {"file": str(path), "norm": "Linf", "strengths": [8]}}
    pgd = {"pgd": {"epsilons": ["8/255"], "steps": 31}}

    def evaluate(keys, seed=0, pixels=images, classes=labels, **options):
        return robust201.evaluate(LinearNetwork(seed), pixels, classes, keys, **options)

    clean, attacked = evaluate(["clean"]), evaluate(pgd)
    for evaluations, message in (
        ([clean, evaluate(["clean"], 1, images[::-1], labels[::-1])], "2 different sets of images"),
        ([clean], "expected two or more networks, got 1"),
        ([clean, evaluate(["fgsm"], 1)], "0 and 1: they have no evaluated key and strength in common"),
        ([evaluate(noise, batch_size=4), evaluate(noise, batch_size=7)], r"noise has .* \(batch_size\)"),
        ([attacked, evaluate({"pgd": pgd["pgd"] | {"steps": 40}})], r"pgd has different parameters \(steps\)"),
        ([attacked, robust201.evaluate(LinearNetwork(1), images, labels, pgd, seed=1)], r"parameters \(seed\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            robust201.compare({str(number): evaluation for number, evaluation in enumerate(evaluations)})


def test_compare_warns_about_parameters_once_per_call(images, labels):
    keys = {"pgd": {"epsilons": ["8/255"], "steps": 1}}
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught_warnings:
            warnings.simplefilter("always")
            robust201.compare([LinearNetwork(0), LinearNetwork(1), LinearNetwork(2)], images, labels, keys)
        messages = [str(warning.message) for warning in caught_warnings if issubclass(warning.category, RobustWarning)]
        assert len([message for message in messages if message.startswith("pgd.")]) == 1
