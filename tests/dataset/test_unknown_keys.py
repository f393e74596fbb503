"""Unknown keys, which are shown with their stored strengths and do not count as attacks."""

from pathlib import Path

import pytest

from robust201.analysis.labels import strength_label
from robust201.dataset.layout import kind_of
from robust201.dataset.reader import Dataset
from robust201.figures.report import write_report
from tests.support.small_results import results_of, write_results, write_sweep_json


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    accuracies = {
        "clean": {"0": 0.9, "2": 0.8},
        "pgd": {"0": [0.5], "2": [0.4]},
        "gravity": {"0": [0.7, 0.1], "2": [0.6, 0.2]},
    }
    write_results(tmp_path / "data", accuracies)
    return write_sweep_json(tmp_path / "data", {"cifar10": {"clean": [0], "pgd": [1], "gravity": [0, 9.81]}})


def test_unknown_key_is_listed_separately_from_attacks(folder):
    dataset = Dataset(folder)
    assert kind_of("gravity") == "other"
    assert (dataset.keys_adv, dataset.keys_other, dataset.keys_all) == (
        ["pgd"],
        ["gravity"],
        ["clean", "pgd", "gravity"],
    )
    assert dataset.strengths("cifar10", "gravity") == (0.0, 9.81)
    # The value of `gravity` at strength 0 is not the clean accuracy, whereas strength 0 of `pgd` means clean images.
    assert dataset.accuracy(0, "cifar10", "gravity", 0) == 0.7
    assert dataset.accuracy(0, "cifar10", "pgd", 0) == 0.9
    assert dataset.read_table("cifar10", "gravity")["strength"].tolist() == [0.0, 9.81] * 2


def test_figures_show_unknown_key_without_unit(folder, tmp_path):
    assert strength_label(9.81, "") == "strength 9.81"
    results = results_of(folder)
    assert results.keys("attack") == ["pgd"]
    assert ("gravity", 0.0) in results.columns
    assert results.scores["adversarial"].to_dict() == {0: 0.5, 2: 0.4}
    assert strength_label(0.0, "") == ""
    page = write_report(Dataset(folder), tmp_path / "page.html").read_text()
    assert "gravity" in page
    assert "9.81/255" not in page
