"""Datasets of spaces without cells, whose architectures have names and no isomorphs."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from robust201.analysis.dataset_results import read_results
from robust201.core.errors import ArchitectureError, ConfigError, ResultsError
from robust201.export.conversion import convert_dataset
from robust201.figures.plots import save_plot
from robust201.figures.report import write_report
from robust201.figures.table import FIGURES
from robust201.reader.dataset import RobustnessDataset
from tests.support.fabricated import export, make_plan

NAMES = ("resnet18", "resnet34.a", "wide-28")
KEYS = ("clean", "pgd", "pgd_l2", "fog", "jacobian")


def export_zoo(out: Path, names=NAMES, **options) -> Path:
    export(out, replace(make_plan(names, KEYS), space_name="zoo"), **options)
    return out


@pytest.fixture(scope="module", params=["json", "parquet", "parquet alone", "converted"])
def folder(request, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("zoo")
    if request.param == "converted":
        convert_dataset(export_zoo(out))
        return out
    export_zoo(out, formats=(request.param.partition(" ")[0],))
    return out / "parquet" if request.param == "parquet alone" else out


@pytest.fixture
def dataset(folder) -> RobustnessDataset:
    return RobustnessDataset(folder)


@pytest.mark.parametrize("form", ["json", "parquet", "parquet alone"])
def test_numbers_are_not_read_as_indices_in_other_spaces(tmp_path, form):
    numbers = (7, 20_000, 123_456)
    out = export_zoo(tmp_path, numbers, formats=(form.partition(" ")[0],))
    if form == "parquet alone":
        out = out / "parquet"
        for path in out.rglob("*.parquet"):
            table = pq.ParquetFile(path).read()
            table = table.set_column(
                table.schema.get_field_index("architecture"), "architecture", table["architecture"].cast("int32")
            )
            pq.write_table(table, path)
        (out.parent / "parquet_files.json").unlink()  # outdated listing
    dataset = RobustnessDataset(out)
    assert dataset.non_isomorph_ids == ["7", "20000", "123456"]
    assert dataset.get_uid(20_000) == dataset.id_to_string(20_000) == "20000"
    assert 0 <= dataset.accuracy(123_456, "cifar10", "pgd", 1.0) <= 1
    assert dataset.to_frame("cifar10", "pgd")["architecture"].unique().tolist() == list(numbers)
    with pytest.raises(ArchitectureError, match="7"):
        dataset.get_uid(8)


def test_architectures_are_identified_by_name(dataset):
    assert dataset.non_isomorph_ids == list(NAMES)
    assert [dataset.get_uid(name) for name in NAMES] == list(NAMES)
    assert dataset.id_to_string("resnet18") == dataset.string_to_id("resnet18") == "resnet18"
    with pytest.raises(ArchitectureError, match=r"resnet19.*Did you mean 'resnet18'"):
        dataset.get_uid("resnet19")
    with pytest.raises(ArchitectureError, match="expected one of"):
        dataset.accuracy(0, "cifar10", "pgd")
    with pytest.raises(ArchitectureError, match="expected a cell, got an architecture of the space"):
        dataset.draw_arch("resnet18")
    with pytest.raises(ConfigError, match=r"Looking up resnet18 failed"):
        dataset.accuracy("resnet18", "cifar10", "pgd", 7.5)


def test_query_to_frame_and_rank_use_names(dataset):
    answer = dataset.query("cifar10", "pgd", "accuracy")["cifar10"]["pgd"]["accuracy"]
    assert list(answer) == list(NAMES)
    assert dataset.accuracy("resnet34.a", "cifar10", "pgd", 8.0) == answer["resnet34.a"][-1]
    frame = dataset.to_frame("cifar10", "pgd", isomorphs=True)
    assert frame["architecture"].unique().tolist() == frame["spec"].unique().tolist() == list(NAMES)
    assert frame["value"].tolist() == [v for i in NAMES for v in (dataset.accuracy(i, "cifar10", "clean"), *answer[i])]
    values = {name: row[-1] for name, row in answer.items()}
    best = dataset.rank("cifar10", "pgd", 8.0)
    assert {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()} == {**best}


OF_ANY_SPACE = {"attacks", "corruptions", "rank-correlation", "confidence", "confusion", "clean-vs-robust"}
OF_CELLS = {"top-cells", "best-cells", "neighbours"}


def test_report_contains_all_figures_that_do_not_need_cells(folder, dataset, tmp_path):
    (results,) = read_results(dataset)
    computed = {name for name, row in FIGURES.items() if not row.compute(results).empty}
    assert computed >= OF_ANY_SPACE
    assert computed.isdisjoint(OF_CELLS)
    with pytest.raises(ResultsError, match="the figure needs an accuracy, of architectures that are cells"):
        save_plot(dataset, "top-cells", tmp_path / "top.png")
    page = write_report(dataset, tmp_path / "page.html").read_text()
    assert 'id="explorer"' not in page
    assert "Robustness of networks: cifar10" in page
    assert "needs an accuracy, of architectures that are cells" in page
    assert "{" not in page[: page.index("<script")].partition("</style>")[2]


def test_overlay_accepts_folders_of_one_space_only(tmp_path):
    one, other = export_zoo(tmp_path / "one", NAMES[:2]), export_zoo(tmp_path / "other", NAMES[1:])
    both = RobustnessDataset(one, other)
    assert both.non_isomorph_ids == list(NAMES)
    assert both.to_frame("cifar10", "pgd")["architecture"].unique().tolist() == list(NAMES)
    assert len(both.rank("cifar10", "jacobian", measure="squared_norm")) == 3
    counts = both.sources().set_index(["key", "folder"])["architectures"]
    assert counts["jacobian"].to_dict() == {str(one): 2, str(other): 1}
    export(tmp_path / "cells", make_plan([0]))
    with pytest.raises(ConfigError, match="those of another space"):
        RobustnessDataset(one, tmp_path / "cells")


def test_reader_rejects_id_that_is_not_a_name(tmp_path):
    out = export_zoo(tmp_path / "zoo", formats=("json",))
    meta = out / "meta.json"
    meta.write_text(meta.read_text().replace("wide-28", "28 wide"))
    with pytest.raises(ResultsError, match="expected ids, and lists of epsilons"):
        RobustnessDataset(out)
