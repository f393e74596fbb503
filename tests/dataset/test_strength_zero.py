"""Attacks without a norm ball, which are only evaluated at strength 0. Their values are not mixed with clean values."""

import re
from pathlib import Path

import pytest

from robust201.dataset.reader import Dataset
from robust201.figures.boxes import accuracy_boxes
from robust201.figures.plots import save_plot
from robust201.figures.report import write_report
from tests.support.small_results import results_of, write_results, write_sweep_json

CLEAN_ACCURACIES = {"0": 0.9, "1": 0.7, "2": 0.8}
ACCURACIES = {
    "clean": CLEAN_ACCURACIES,
    "pgd": {"0": [0.5, 0.1], "1": [0.6, 0.2], "2": [0.4, 0.3]},
    "grid775": {"0": [0.2], "1": [0.3], "2": [0.1]},
    "mine": {"0": [0.4], "1": [0.2], "2": [0.3]},
}
KEYS_WITHOUT_BALL = ("grid775", "mine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write_results(tmp_path_factory.mktemp("zero"), ACCURACIES)
    strengths = {"clean": [0], "pgd": [1, 8], "grid775": [0], "mine": [0]}
    sweep_record = {
        "images": {"count": 100, "seed": 0},
        "protocols": [{"key": "mine", "parameters": {"kind": "attack"}}],
    }
    return write_sweep_json(out, {"cifar10": strengths}, sweep_record)


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return Dataset(folder)


def test_keys_without_ball_have_only_strength_zero_in_the_table(dataset: Dataset) -> None:
    table = dataset.table
    for key in KEYS_WITHOUT_BALL:
        rows = table[table["key"] == key]
        assert rows["strength"].tolist() == [0.0] * 3
        assert dict(zip(rows["network"], rows["accuracy"], strict=True)) == {
            int(identifier): accuracies[0] for identifier, accuracies in ACCURACIES[key].items()
        }
    assert table[table["key"] == "pgd"]["strength"].tolist() == [1.0, 8.0] * 3


def test_curve_metrics_need_a_key_with_a_ball(dataset: Dataset) -> None:
    metrics = dataset.metrics()
    # A curve must begin with the clean value. PGD has a curve, so nothing is missing for these metrics.
    assert {*metrics.table[metrics.table["metric"] == "robustness_r"]["key"]} == {"pgd"}
    assert "robustness_r, relative_change" not in metrics.needs


def test_adversarial_scores_leave_out_keys_without_ball(folder: Path) -> None:
    results = results_of(folder)
    assert results.keys("attack") == ["pgd", "grid775", "mine"]
    assert results.scores["adversarial"].tolist() == pytest.approx([0.3, 0.4, 0.35])  # means over the strengths of PGD


@pytest.mark.usefixtures("without_figures")
def test_figures_and_report_do_not_label_key_without_ball_as_clean(
    dataset: Dataset, folder: Path, tmp_path: Path
) -> None:
    results = results_of(folder)
    boxes = accuracy_boxes(results, "attack").set_index(["key", "strength"])["median"]
    expected = {("pgd", 0.0): 0.8, ("pgd", 1.0): 0.5, ("pgd", 8.0): 0.2, ("grid775", 0.0): 0.2, ("mine", 0.0): 0.3}
    assert boxes.to_dict() == expected
    page = write_report(dataset, tmp_path / "page.html").read_text()
    assert '{"key":"Grid 775","strength":""}' in page
    save_plot(dataset, "attack-curves", tmp_path / "attacks.svg")
    labels = re.findall(">([^<>]+)</text>", (tmp_path / "attacks.svg").read_text())
    assert [label for label in labels if label in ("clean", "0", "1", "8")] == ["clean", "1", "8", "0", "0"]
