"""Overlaid folders: each evaluation is read from the first folder that has it, which is reported as its source."""

import json
from pathlib import Path

import numpy as np
import pytest

from robust201.analysis.class_summaries import summarise_classes
from robust201.analysis.dataset_results import read_results
from robust201.core.errors import ArchitectureError, ConfigError, ResultsError
from robust201.core.records import EvaluationProtocol
from robust201.export.conversion import convert_dataset
from robust201.figures.report import write_report
from robust201.reader.dataset import RobustnessDataset
from tests.support.fabricated import FabricatedStore, export, make_plan
from tests.support.small_results import write_results, write_sweep_json

MATRIX = [[3, 1], [0, 4]]


@pytest.fixture
def published(tmp_path: Path) -> Path:
    accuracies = {"clean": {"0": 0.9, "2": 0.8}, "pgd": {"0": [0.5, 0.4], "2": [0.6, 0.5]}}
    folder = write_results(tmp_path / "published", accuracies)
    return write_results(folder, {"pgd": {"0": [MATRIX] * 2, "2": [MATRIX] * 2}}, measure="cm")


def write_custom(folder: Path, accuracies: dict, strengths: dict, dataset: str = "cifar10") -> Path:
    """Write an export with accuracies by key and the strengths of its sweep.json."""
    write_results(folder, accuracies, dataset=dataset)
    return write_sweep_json(folder, {dataset: strengths})


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    accuracies = {"pgd": {"0": [0.1, 0.2], "9": [0.3, 0.4]}, "mine": {"0": [0.7]}}
    return write_custom(tmp_path / "own", accuracies, {"pgd": [8.0, 16.0], "mine": [0.25]})


def test_overlay_reads_evaluation_from_first_folder(published, custom):
    data = RobustnessDataset(published, custom)
    assert data.strengths("cifar10", "pgd") == (1.0, 8.0, 16.0)
    assert data.accuracy(0, "cifar10", "pgd") == [0.5, 0.4, 0.2]
    assert data.accuracy(2, "cifar10", "pgd@Linf") == [0.6, 0.5, None]
    assert data.accuracy(9, "cifar10", "pgd", 16.0) == 0.4
    assert data.accuracy(0, "cifar10", "pgd", 0) == 0.9
    assert data.query("cifar10", "pgd", "accuracy")["cifar10"]["pgd"]["accuracy"] == {
        "0": [0.5, 0.4, 0.2],
        "2": [0.6, 0.5, None],
        "9": [None, 0.3, 0.4],
    }
    assert data.query("cifar10", "pgd", "cm")["cifar10"]["pgd"]["cm"]["2"] == [MATRIX, MATRIX, None]
    assert RobustnessDataset(custom, published).accuracy(0, "cifar10", "pgd") == [0.5, 0.1, 0.2]
    with pytest.raises(ArchitectureError):
        data.value(21, "cifar10", "pgd")
    with pytest.raises(ResultsError):
        data.query("cifar10", "fgsm")


def test_overlay_lists_custom_key_with_published_keys(published, custom):
    data = RobustnessDataset(published, custom)
    assert data.keys_other == ["mine"]
    assert "mine" not in data.keys_adv
    assert data.strengths("cifar10", "mine") == (0.25,)
    assert data.accuracy(0, "cifar10", "mine", 0.25) == 0.7


def test_overlay_reports_sources(published, custom):
    data = RobustnessDataset(published, custom)
    sources = {(row.key, row.folder): (row.strengths, row.architectures) for row in data.sources().itertuples()}
    assert sources == {
        ("clean", str(published)): ((0.0,), 2),
        ("pgd", str(published)): ((1.0, 8.0), 2),
        ("pgd", str(custom)): ((8.0, 16.0), 2),
        ("mine", str(custom)): ((0.25,), 1),
    }
    frame = data.to_frame("cifar10", ["pgd", "mine"])
    rows = {(r.key, r.architecture, r.strength): (r.value, r.source) for r in frame.itertuples()}
    assert rows["pgd", 0, 0.0] == (0.9, str(published))
    assert rows["pgd", 0, 8.0] == (0.4, str(published))
    assert rows["pgd", 0, 16.0] == (0.2, str(custom))
    assert rows["mine", 0, 0.25] == (0.7, str(custom))
    assert ("pgd", 2, 16.0) not in rows
    assert ("pgd", 9, 0.0) not in rows
    assert len(frame) == 3 + 1 + 3 + 2 + 1
    assert "source" not in RobustnessDataset(published).to_frame("cifar10", "pgd")
    assert data.to_frame(wide=True)[("pgd", 16.0)].notna().sum() == 2
    assert set(RobustnessDataset(published).sources()["folder"]) == {str(published)}


def write_measure(folder: Path, values: dict, protocol: dict | None) -> Path:
    """Write an export of a measure with its protocol in sweep.json."""
    write_results(folder, {"clean": {"0": 0.9, "2": 0.8}})
    write_results(folder, {"jacobian": values}, measure="squared_norm")
    protocols = [] if protocol is None else [{"dataset": "cifar10", "key": "jacobian", **protocol}]
    return write_sweep_json(folder, {"cifar10": {"clean": [0], "jacobian": [0]}}, {"protocols": protocols})


PROTOCOL = {"images": {"sha256": "0", "count": 2560}, "parameters": {"projections": 1}}
OTHER = {"images": {"sha256": "1", "count": 10}, "parameters": {"projections": "exact"}}


def test_overlay_rejects_measure_under_two_protocols(tmp_path):
    first = write_measure(tmp_path / "first", {"0": 3.0}, PROTOCOL)
    second = write_measure(tmp_path / "second", {"2": 5.0}, OTHER)
    data = RobustnessDataset(first, second)
    names = [
        EvaluationProtocol.of({"dataset": "cifar10", "key": "jacobian", **variant}).digest[:8]
        for variant in (PROTOCOL, OTHER)
    ]
    message = (
        rf"jacobian of cifar10 failed for {first} and {second}: their protocols {names[0]} and {names[1]} differ "
        r"\(images\.count: 2560 → 10, images\.sha256: 0 → 1, parameters\.projections: 1 → exact\)"
    )
    for read in (
        lambda: data.query("cifar10", "jacobian"),
        lambda: data.value(0, "cifar10", "jacobian", "squared_norm"),
        lambda: data.value(2, "cifar10", "jacobian", "squared_norm"),
        lambda: data.to_frame("cifar10", "jacobian", "squared_norm"),
        lambda: data.rank("cifar10", "jacobian", measure="squared_norm"),
        lambda: list(data.files.iter_values("cifar10", "jacobian", "squared_norm")),
        lambda: read_results(data)[0].measures,
    ):
        with pytest.raises(ConfigError, match=message):
            read()
    assert data.accuracy(0, "cifar10", "clean") == 0.9
    assert set(data.sources()["folder"]) == {str(first), str(second)}


@pytest.mark.parametrize("protocols", [(PROTOCOL, PROTOCOL), (PROTOCOL, None), (None, OTHER)])
def test_overlay_combines_measure_under_one_protocol(tmp_path, protocols):
    folders = [
        write_measure(tmp_path / str(number), {str(2 * number): 3.0 + number}, protocol)
        for number, protocol in enumerate(protocols)
    ]
    values = RobustnessDataset(*folders).query("cifar10", "jacobian", "squared_norm")
    assert values["cifar10"]["jacobian"]["squared_norm"] == {"0": 3.0, "2": 4.0}


def test_rank_of_overlay_requires_all_strengths(published, custom):
    data = RobustnessDataset(published, custom)
    assert data.rank("cifar10", "pgd").to_dict() == {0: 1}
    assert data.rank("cifar10", "pgd", 8.0).to_dict() == {2: 1, 0: 2, 9: 3}


def test_overlay_equals_single_folder_for_all_formats(tmp_path):
    names = ("clean", "fgsm", "pgd", "fog")
    combined = tmp_path / "whole"
    export(combined, make_plan([0, 2, 10, 309], names))
    parts = [tmp_path / name for name in ("some", "others", "keys")]
    export(parts[0], make_plan([0, 10], names[:3]), formats=("parquet",))
    export(parts[1], make_plan([2, 309], names[:3]), compression="zst")
    export(parts[2], make_plan([0, 2, 10, 309], names[3:]), key_style="published")
    convert_dataset(parts[2])
    expected, data = RobustnessDataset(combined), RobustnessDataset(*parts)
    assert data.query() == expected.query()
    assert (data.data, data.keys_all, data.measures) == (expected.data, expected.keys_all, expected.measures)
    assert data.to_frame().drop(columns="source").equals(expected.to_frame())
    for measure in ("cm", "confidence"):
        variant, other = (summarise_classes(each.files, "cifar10", names, measure) for each in (data, expected))
        assert variant.keys() == other.keys()
        for column, array in variant.items():
            # The rows of confidences are in the order of the folders.
            pair = [each if measure == "cm" else each[each[:, 2].argsort()] for each in (array, other[column])]
            np.testing.assert_allclose(*pair, rtol=1e-12)
    text = write_report(data, tmp_path / "page.html").read_text()
    assert text.count("<figure") == write_report(expected, tmp_path / "other.html").read_text().count("<figure")


def test_overlay_rejects_other_spaces_and_classes_in_one_line(tmp_path, published):
    other = write_results(tmp_path / "other", {"clean": {"0": 0.5}})
    meta = json.loads((other / "meta.json").read_text())
    del meta["ids"]["15624"]
    (other / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(
        ConfigError, match=r"failed for .*other: expected the architectures of .*published, got"
    ) as refused:
        RobustnessDataset(published, other)
    assert "\n" not in str(refused.value)
    for form in ("json", "parquet"):
        export(tmp_path / form, make_plan([0]), FabricatedStore(n_classes=3), formats=(form,))
        with pytest.raises(ConfigError, match=r"expected 2 classes of cifar10, as .*published has, got 3"):
            RobustnessDataset(published, tmp_path / form)
    with pytest.raises(ConfigError, match="expected the name of a folder"):
        RobustnessDataset(published, 5)


def test_overlay_combines_folders_with_and_without_sweep_json(published, custom):
    data = RobustnessDataset(published, custom)
    assert data.sweep is None
    assert {"clean", "mine"} <= set(data.keys_all)
    answer = data.query("cifar10", measure="accuracy")
    assert answer["cifar10"]["mine"] == {"accuracy": {"0": [0.7]}}
    assert str(custom) in repr(data)
