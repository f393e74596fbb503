"""Datasets of spaces without cells, whose architectures have names and no isomorphs."""

from dataclasses import replace
from pathlib import Path

import pytest

from robust201.analysis.dataset_results import read_results
from robust201.core.errors import ArchitectureError, ConfigError, ResultsError
from robust201.dataset.reader import Dataset
from robust201.figures.plots import save_plot
from robust201.figures.report import write_report
from robust201.figures.table import FIGURES
from tests.support.fabricated import export, make_plan

NAMES = ("resnet18", "resnet34.a", "wide-28")
KEYS = ("clean", "pgd", "pgd_l2", "fog", "jacobian")


def export_zoo(out: Path, names=NAMES, **options) -> Path:
    export(out, replace(make_plan(names, KEYS), space_name="zoo"), **options)
    return out


@pytest.fixture(scope="module", params=["json", "parquet"])
def folder(request, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("zoo")
    return export_zoo(out, formats=(request.param,))


@pytest.fixture
def dataset(folder) -> Dataset:
    return Dataset(folder)


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_numeric_names_are_not_read_as_indices_in_other_spaces(tmp_path, file_format):
    numeric_names = (7, 20_000, 123_456)
    out = export_zoo(tmp_path, numeric_names, formats=(file_format,))
    dataset = Dataset(out)
    assert dataset.non_isomorph_ids == ["7", "20000", "123456"]
    assert dataset.get_uid(20_000) == dataset.id_to_string(20_000) == "20000"
    assert 0 <= dataset.accuracy(123_456, "cifar10", "pgd", 1.0) <= 1
    assert dataset.read_table("cifar10", "pgd")["architecture"].unique().tolist() == list(numeric_names)
    with pytest.raises(ArchitectureError, match="7"):
        dataset.get_uid(8)


def test_architectures_are_identified_by_name(dataset):
    assert dataset.non_isomorph_ids == list(NAMES)
    assert [dataset.get_uid(name) for name in NAMES] == list(NAMES)
    assert dataset.id_to_string("resnet18") == dataset.string_to_id("resnet18") == "resnet18"
    with pytest.raises(ArchitectureError, match="resnet19"):
        dataset.get_uid("resnet19")
    with pytest.raises(ArchitectureError, match="expected one of"):
        dataset.accuracy(0, "cifar10", "pgd")
    with pytest.raises(ArchitectureError, match=r"the architectures of the space .* are not cells"):
        dataset.draw_arch("resnet18")
    with pytest.raises(ConfigError, match=r"Looking up resnet18 failed"):
        dataset.accuracy("resnet18", "cifar10", "pgd", 7.5)


def test_query_and_table_use_names(dataset):
    accuracies = dataset.query("cifar10", "pgd", "accuracy")["cifar10"]["pgd"]["accuracy"]
    assert list(accuracies) == list(NAMES)
    assert dataset.accuracy("resnet34.a", "cifar10", "pgd", 8.0) == accuracies["resnet34.a"][-1]
    rows = dataset.table.query("key == 'pgd'")
    assert rows["network"].unique().tolist() == list(NAMES)
    assert rows["accuracy"].tolist() == [accuracy for name in NAMES for accuracy in accuracies[name]]


FIGURES_OF_ANY_SPACE = {
    "attacks",
    "corruptions",
    "rank-correlation-attacks",
    "confidence",
    "confusion",
    "clean-vs-robust",
}
FIGURES_OF_CELLS = {"top-cells", "best-cells", "neighbours"}


def test_report_contains_all_figures_that_do_not_need_cells(tmp_path):
    dataset = Dataset(export_zoo(tmp_path))
    (results,) = read_results(dataset)
    computed_figures = {name for name, figure in FIGURES.items() if not figure.compute(results).empty}
    assert computed_figures >= FIGURES_OF_ANY_SPACE
    assert computed_figures.isdisjoint(FIGURES_OF_CELLS)
    with pytest.raises(ResultsError, match="the figure needs accuracies of cells"):
        save_plot(dataset, "top-cells", tmp_path / "top.png")
    page = write_report(dataset, tmp_path / "page.html").read_text()
    assert 'id="cell-drawing"' not in page
    assert "networks on CIFAR-10</h1>" in page
    assert "needs accuracies of cells" in page
    # The text between the style sheet and the first script has no unfilled placeholder.
    assert "{" not in page[: page.index("<script")].partition("</style>")[2]


def test_overlay_requires_folders_of_the_same_space(tmp_path):
    first_folder, second_folder = export_zoo(tmp_path / "one", NAMES[:2]), export_zoo(tmp_path / "other", NAMES[1:])
    overlay = Dataset(first_folder, second_folder)
    assert overlay.non_isomorph_ids == list(NAMES)
    assert overlay.read_table("cifar10", "pgd")["architecture"].unique().tolist() == list(NAMES)
    export(tmp_path / "cells", make_plan([0]))
    with pytest.raises(ConfigError, match="got architectures of another space"):
        Dataset(first_folder, tmp_path / "cells")
