"""`robust201.evaluate` without keys: a reproducible subset of images, AutoAttack, and a summary."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import robust201
from robust201 import api
from robust201.analysis.first_look import choose_first_look_keys
from robust201.core.errors import ConfigError, DatasetError, EvaluationError
from robust201.images import select
from robust201.statistics.intervals import accuracy_intervals
from tests.support.tiny_networks import NORMALISATION, TinyNetwork, tiny_images

IMAGES = tiny_images(60)
PIXELS, LABELS = IMAGES.images, IMAGES.labels
# Networks have random weights, and attacks few images and steps.
pytestmark = pytest.mark.filterwarnings("ignore:(single step|ensemble|.* by chance)")
OPTIONS = {"normalisation": NORMALISATION, "progress": False}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce AutoAttack's steps, since its defaults take seconds even on tiny networks."""

    def choose_keys_with_few_steps(*arguments: Any, **options: Any) -> dict[str, dict[str, Any]]:
        keys = choose_first_look_keys(*arguments, **options)
        reduced_fields = {
            "aa_standard": {"steps": 5, "queries": 20},
            "aa_fab-t": {"steps": 3},
            "aa_square": {"queries": 20},
        }
        return {key: fields | reduced_fields.get(key, {}) for key, fields in keys.items()}

    monkeypatch.setattr(api, "choose_first_look_keys", choose_keys_with_few_steps)
    monkeypatch.setattr("robust201.analysis.first_look.TARGET_SECONDS", 0.0)  # chooses the minimum count on any machine


def without_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="seconds")


def test_first_look_is_reproducible_from_count_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    table_without_count = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, normalisation=NORMALISATION, seed=4)
    captured = capsys.readouterr()
    assert "on 20 of 60 images (class-stratified, seed 4, as many as the time allows)" in captured.err
    assert captured.out == ""
    assert (table_without_count["n_images"] == 20).all()
    assert (
        table_without_count.outcomes.index.tolist()
        == np.flatnonzero(np.isin(IMAGES.indices, select_indices(20, 4))).tolist()
    )
    assert {protocol["images"] for protocol in table_without_count.protocols.values()} == {
        "class-stratified subset, 20 of 60"
    }
    table_with_count = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, count=20, seed=4, **OPTIONS)
    pd.testing.assert_frame_equal(without_seconds(table_with_count), without_seconds(table_without_count))
    assert table_with_count.images_sha256 == table_without_count.images_sha256
    assert table_with_count.protocols == table_without_count.protocols


def select_indices(count: int, seed: int) -> np.ndarray:
    return select(IMAGES, count=count, seed=seed).indices


def test_intervals_are_based_on_number_of_evaluated_images() -> None:
    table = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, **OPTIONS)
    low, high = accuracy_intervals(table["accuracy"], 20)
    assert (table["low"].tolist(), table["high"].tolist()) == (low.tolist(), high.tolist())


def test_summary_is_per_image_worst_case_over_attacks() -> None:
    table = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, epsilon="2/255", **OPTIONS)
    clean, attacked = table.summary.splitlines()
    assert clean.startswith(f"{table.outcomes['clean', 0.0].mean():.1%} (")
    keys = ["fgsm", "pgd", "aa_standard"]
    worst_case_accuracy = table.outcomes[[(key, 2.0) for key in keys]].all(axis=1).mean()
    assert attacked.startswith(f"{worst_case_accuracy:.1%} (")
    assert attacked.endswith(
        "withstand fgsm, pgd, aa_standard at epsilon 2/255 (Linf), each image under its worst attack."
    )
    assert worst_case_accuracy <= table.set_index("key").loc[keys, "accuracy"].min()


def test_summary_mentions_missing_autoattack() -> None:
    table = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, {"fgsm": {"epsilons_255": [1, 8]}}, **OPTIONS)
    lines = table.summary.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("AutoAttack may fool more images.") for line in lines)


def test_subset_results_match_results_on_all_images() -> None:
    keys = ["clean", {"pgd": {"epsilons_255": [8], "steps": 4, "rel_stepsize": 0.5}}, {"gaussian_noise": {}}]
    table_of_all_images = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, keys, **OPTIONS)
    table_of_subset = robust201.evaluate(TinyNetwork(), PIXELS, LABELS, keys, count=15, seed=0, **OPTIONS)
    pd.testing.assert_frame_equal(
        table_of_subset.outcomes, table_of_all_images.outcomes.loc[table_of_subset.outcomes.index]
    )
    assert "images" not in table_of_all_images.protocols["pgd"]


def test_compare_accepts_tables_of_same_subset() -> None:
    tables = {
        str(seed): robust201.evaluate(TinyNetwork(seed), PIXELS, LABELS, count=count, **OPTIONS)
        for seed, count in ((0, None), (1, 20))
    }
    assert set(robust201.compare(tables)["n_images"]) == {20}


class LinearNetwork(nn.Module):
    """A linear network. If it is broken, it returns NaN."""

    def __init__(self, n_classes: int, *, is_broken: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(n_classes)
            self.linear = nn.Linear(192, n_classes)
        self.is_broken = is_broken

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits = self.linear(pixels.flatten(1))
        return logits / 0.0 - logits / 0.0 if self.is_broken else logits


@pytest.mark.parametrize("n_classes", [2, 3])
def test_first_look_supports_few_classes(n_classes: int) -> None:
    table = robust201.evaluate(LinearNetwork(n_classes), PIXELS, LABELS % n_classes, progress=False)
    assert {"aa_apgd-ce", "aa_square"} <= {*table["key"]}


def test_first_look_supports_images_of_one_class() -> None:
    table = robust201.evaluate(TinyNetwork(), PIXELS, np.full(60, 3), **OPTIONS)
    assert (table["n_images"] == 20).all()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, DatasetError, r"there are no images"),
        ({"model": LinearNetwork(1)}, EvaluationError, "got a single logit per image"),
        ({"model": LinearNetwork(5, is_broken=True)}, EvaluationError, "contain NaN or infinity"),
        ({"count": 61}, DatasetError, "expected a count from 1 to 60, got 61"),
        ({"count": 0}, DatasetError, "expected a count from 1 to 60, got 0"),
        ({"epsilon": "8"}, ConfigError, "Write 8/255"),
        ({"epsilon": "8/255", "keys": ["clean"]}, ConfigError, "combined with `keys` or `benchmark`"),
    ],
)
def test_evaluate_rejects_wrong_arguments(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    options = {"model": TinyNetwork(), "images": PIXELS, "labels": LABELS, **OPTIONS}
    with pytest.raises(error, match=message) as caught:
        robust201.evaluate(**(options | changes))
    assert not re.search("\n", str(caught.value))
