"""Names of files to write that no file can have: refused before anything is computed, and nothing is written."""

import pytest

from tests.conftest import read_tree
from tests.support.small_results import write_results

ACCURACIES = {"clean": {"0": 0.9, "1": 0.8}, "pgd": {"0": [0.5, 0.4], "1": [0.6, 0.5]}}


@pytest.mark.parametrize("verb", [("report",), ("plot", "attacks"), ("plot", "all")])
@pytest.mark.parametrize("place", ["taken.svg", "file/below.svg", ""])
def test_a_name_that_no_file_can_have_is_bad_input(tmp_path, monkeypatch, robust201, verb, place):
    write_results(tmp_path / "dataset", ACCURACIES)
    monkeypatch.chdir(tmp_path)
    if verb == ("plot", "all"):
        (tmp_path / "taken.svg").write_text("mine")  # of which a folder of figures cannot take the place
        place = place or "file"
    else:
        (tmp_path / "taken.svg").mkdir()
    (tmp_path / "file").write_text("mine")
    before = read_tree(tmp_path)
    assert " failed for " in robust201(*verb, "dataset", "--out", place).refusal(2)
    assert read_tree(tmp_path) == before


def test_a_figure_whose_name_a_folder_has_is_bad_input(tmp_path, robust201):
    folder = write_results(tmp_path / "dataset", ACCURACIES)
    (tmp_path / "plots/cifar10-attacks.png").mkdir(parents=True)
    assert "cifar10-attacks.png" in robust201("plot", "all", folder, "--out", tmp_path / "plots").refusal(2)


def test_the_dataset_in_the_current_folder_has_its_report_beside_it(tmp_path, monkeypatch, robust201):
    monkeypatch.chdir(write_results(tmp_path / "dataset", ACCURACIES))
    assert robust201("report", ".").code == 0
    assert (tmp_path / "dataset-report.html").is_file()
