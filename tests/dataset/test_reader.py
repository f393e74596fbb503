"""The reader: compatibility with the published helper class, arguments, results of any architecture, DataFrames."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import robust201
from robust201.core.errors import ArchitectureError, ConfigError, FormatVersionError, InputError, ResultsError
from robust201.dataset.reader import Dataset
from robust201.dataset.side_files import spell_epsilons
from robust201.networks.nb201 import cells as nasbench201
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, TASKS
from tests.support.fabricated import FabricatedPlan, FabricatedStore, export, make_plan
from tests.support.small_results import write_results

ARCHITECTURES = (0, 2, 10, 309, 991)
PAPER_TASKS = [TASKS[key] for key in PAPER_KEYS]


@pytest.fixture(scope="module", params=["paper", "published"])
def folder(request, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp(request.param)
    export(out, make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100")), key_style=request.param)
    return out


@pytest.fixture
def dataset(folder) -> Dataset:
    return Dataset(folder)


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory) -> Path:
    """Return a folder like the published dataset.

    File names contain ``@Linf``. There is no sweep.json, and there are no corruptions of ImageNet16-120.
    """
    out = tmp_path_factory.mktemp("published-layout")
    strengths = {task.key: task.parameters().strengths for task in PAPER_TASKS}
    for dataset_name in ("cifar10", "cifar100", "ImageNet16-120"):
        for task in PAPER_TASKS:
            if dataset_name == "ImageNet16-120" and task.kind == "corruption":
                continue
            n_strengths = len(task.parameters().strengths)
            matrix = [[len(dataset_name), len(task.key)], [n_strengths, 1]]
            confidences = [[1 / count for count in row] for row in matrix]
            confidence = {"label": confidences, "argmax": confidences, "prediction": [0.5, None]}
            values_by_measure = {
                "accuracy": [0.5 / (1 + position) for position in range(n_strengths)],
                "confidence": [confidence] * n_strengths,
                "cm": [matrix] * n_strengths,
            }
            for measure, values in values_by_measure.items():
                values_by_id = dict.fromkeys(("0", "309"), values[0] if task.kind == "clean" else values)
                write_results(out, {task.published_key: values_by_id}, dataset=dataset_name, measurement=measure)
    (out / "meta.json").write_text(nasbench201.meta_text(spell_epsilons(strengths, TASKS, "published")))
    return out


def read_values(path: Path, dataset_name: str, key: str, measure: str) -> dict:
    return json.loads((path / dataset_name / f"{key}_{measure}.json").read_text())[dataset_name][key][measure]


def test_reader_has_attributes_of_published_helper_class():
    assert robust201.Dataset is Dataset
    assert Dataset.keys_clean == ["clean"]
    assert Dataset.keys_adv == ["aa_apgd-ce@Linf", "aa_square@Linf", "fgsm@Linf", "pgd@Linf"]
    assert Dataset.keys_cc == list(CORRUPTIONS)
    assert Dataset.keys_all == Dataset.keys_clean + Dataset.keys_adv + Dataset.keys_cc
    assert Dataset.data == ["cifar10", "cifar100", "ImageNet16-120"]
    assert Dataset.data == [
        Dataset.data_cifar10,
        Dataset.data_cifar100,
        Dataset.data_imagenet16,
    ]


def test_query_equals_result_of_published_helper(published_folder):
    dataset = Dataset(str(published_folder))
    keys, measures = Dataset.keys_all, ["accuracy", "confidence", "cm"]
    expected = {
        dataset_name: {
            # The published helper returns an empty entry for a corruption of ImageNet16-120.
            key: {}
            if dataset_name == "ImageNet16-120" and key in CORRUPTIONS
            else {measure: read_values(published_folder, dataset_name, key, measure) for measure in measures}
            for key in keys
        }
        for dataset_name in Dataset.data
    }
    assert dataset.query() == expected
    assert dataset.query(Dataset.data, keys, measures) == expected
    assert dataset.query(data="cifar10", key="pgd@Linf", measure="cm") == {
        "cifar10": {"pgd@Linf": {"cm": expected["cifar10"]["pgd@Linf"]["cm"]}}
    }
    assert dataset.data == Dataset.data
    assert dataset.keys_all == Dataset.keys_all


def test_example_of_published_readme_works(published_folder):
    dataset = Dataset(path=published_folder)
    result = dataset.query(data=["cifar10", "cifar100"], measure="accuracy", key=Dataset.keys_all)
    position = dataset.meta["epsilons"]["pgd@Linf"].index(1.0)
    assert result["cifar10"]["pgd@Linf"]["accuracy"][dataset.get_uid(1832)][position] == 0.5 / 3
    assert result["cifar10"]["clean"]["accuracy"][dataset.get_uid(1832)] == 0.5


def test_query_reads_corruptions_of_imagenet16_if_present(tmp_path):
    export(tmp_path, make_plan([0], ["clean", "fog"], ["ImageNet16-120"]))
    result = Dataset(tmp_path).query(key=["fog", "snow"], measure="accuracy")
    assert result == {
        "ImageNet16-120": {"fog": {"accuracy": read_values(tmp_path, "ImageNet16-120", "fog", "accuracy")}, "snow": {}}
    }


@pytest.mark.parametrize("spelling", ["pgd", "pgd@Linf"])
def test_query_accepts_both_spellings_and_returns_callers_spelling(folder, dataset, spelling):
    (stored_spelling,) = {"pgd", "pgd@Linf"} & set(dataset.keys_adv)
    expected = read_values(folder, "cifar10", stored_spelling, "accuracy")
    assert dataset.query("cifar10", spelling, "accuracy") == {"cifar10": {spelling: {"accuracy": expected}}}
    assert dataset.accuracy(0, "cifar10", spelling) == expected["0"]
    assert dataset.strengths("cifar10", spelling) == (0.5, 1.0, 8.0)
    assert len(dataset.read_table("cifar10", spelling)) == 3 * len(ARCHITECTURES)


def test_instance_attributes_describe_folder(folder, dataset):
    suffix = "@Linf" if folder.name.startswith("published") else ""
    assert dataset.keys_adv == [f"fgsm{suffix}", f"pgd{suffix}"]
    assert dataset.keys_cc == ["fog"]
    assert dataset.data == ["cifar10", "cifar100"]
    result = dataset.query()
    assert {dataset_name: list(keys) for dataset_name, keys in result.items()} == dict.fromkeys(
        dataset.data, dataset.keys_all
    )


def test_modified_result_does_not_affect_later_queries(dataset):
    original = dataset.accuracy(0, "cifar10", "pgd")
    dataset.accuracy(0, "cifar10", "pgd").clear()
    dataset.query("cifar10", "pgd", "accuracy")["cifar10"]["pgd"]["accuracy"].clear()
    assert dataset.accuracy(0, "cifar10", "pgd") == original != []


@pytest.mark.filterwarnings("ignore::robust201.dataset.folder.MissingFilesWarning")
def test_query_rejects_or_skips_missing_files(tmp_path):
    export(tmp_path, make_plan([0], ["clean", "pgd"]))
    (tmp_path / "cifar10/pgd_cm.json").unlink()
    dataset = Dataset(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no file in .*cifar10"):
        dataset.query("cifar10", "pgd")
    with pytest.raises(FileNotFoundError):
        dataset.query("cifar10", "fgsm")
    result = dataset.query(["cifar10", "cifar100"], ["clean", "pgd", "fgsm"], missing_ok=True)
    assert {key: list(measures) for key, measures in result["cifar10"].items()} == {
        "clean": ["accuracy", "confidence", "cm"],
        "pgd": ["accuracy", "confidence"],
    }
    assert result["cifar100"] == {}


def test_query_of_all_keys_skips_keys_that_are_not_in_sweep(tmp_path):
    units = make_plan([0], ["clean", "fog"], ["cifar10"]).units + make_plan([0], ["clean"], ["digits"]).units
    export(tmp_path, FabricatedPlan(units))
    dataset = Dataset(tmp_path)
    assert {key: bool(measures) for key, measures in dataset.query()["digits"].items()} == {"clean": True, "fog": False}
    with pytest.raises(ResultsError):
        dataset.query(key="fog")


def test_query_error_explains_gaps_of_partial_export(tmp_path):
    export(
        tmp_path,
        make_plan([0, 2], ["clean", "pgd"]),
        FabricatedStore(missing={(0, "pgd", 1.0), (2, "pgd", 1.0)}),
        partial=True,
    )
    dataset = Dataset(tmp_path)
    assert dataset.missing["cifar10"]["pgd"] == {"0": [1.0], "2": [1.0]}
    with pytest.raises(ResultsError, match=r"partial export, see missing\.json"):
        dataset.query("cifar10", "pgd")
    assert set(dataset.table["key"]) == {"clean"}


def test_isomorphs_have_results_of_evaluated_architecture(dataset):
    assert dataset.get_uid(1832) == dataset.get_uid("1832") == "309"
    assert dataset.get_uid(21) == "21"
    assert dataset.get_uid(np.int64(3365)) == "991"
    assert len(dataset.non_isomorph_ids) == 6466
    assert dataset.non_isomorph_ids[:4] == ["0", "1", "2", "3"]
    spec = dataset.id_to_string(1832)
    assert dataset.string_to_id(spec) == "1832"
    for architecture in (309, "309", 1832, spec):
        assert dataset.accuracy(architecture, "cifar10", "pgd", 1) == dataset.accuracy(309, "cifar10", "pgd")[1]


def test_id_to_string_and_string_to_id_are_inverse(dataset):
    ids = list(dataset.meta["ids"])
    assert [dataset.string_to_id(dataset.id_to_string(identifier)) for identifier in ids] == ids
    assert all(dataset.get_uid(dataset.get_uid(identifier)) == dataset.get_uid(identifier) for identifier in ids)


def test_accuracy_at_strength_zero_is_clean_accuracy(dataset):
    clean_accuracy = dataset.accuracy(0, "cifar10", "clean")
    assert dataset.accuracy(0, "cifar10", "pgd", 0) == dataset.accuracy(0, "cifar10", "clean", 0) == clean_accuracy
    assert dataset.accuracy(0, "cifar10", "fog", 3) == dataset.accuracy(0, "cifar10", "fog")[1]


def test_table_has_one_row_per_accuracy(dataset):
    table = dataset.table
    columns = ["dataset", "key", "strength", "network", "accuracy", "n_images", "kind", "standard_error"]
    assert list(table.columns) == columns
    assert len(table) == 2 * len(ARCHITECTURES) * (1 + 3 + 3 + 3)
    assert not table.duplicated(columns[:4]).any()
    for row in table.itertuples():
        strength = None if row.key == "clean" else row.strength
        assert row.accuracy == dataset.accuracy(row.network, row.dataset, row.key, strength)
    assert set(table["n_images"]) == set(dataset.read_table("cifar10", "pgd", "cm")["n_images"]) == {40}
    (rows,) = dataset.iter_rows("cifar10", "pgd", "accuracy")
    with pytest.raises(ValueError, match="read-only"):
        rows.columns["accuracy"][:] = 0
    assert set(table["kind"]) == {"counted"}
    variances = table["accuracy"] * (1 - table["accuracy"]) / 40
    np.testing.assert_array_equal(table["standard_error"], np.sqrt(variances))
    accuracies = dataset.accuracies("cifar10")
    assert accuracies.index.tolist() == list(ARCHITECTURES)
    assert accuracies["pgd", 8.0].tolist() == [dataset.accuracy(index, "cifar10", "pgd", 8) for index in ARCHITECTURES]


def test_read_table_keeps_nested_measurements(folder, dataset):
    table = dataset.read_table("cifar10", "clean", "confidence")
    assert table["value"].tolist() == list(read_values(folder, "cifar10", "clean", "confidence").values())


def test_table_of_confidences_has_the_rows_of_accuracies(tmp_path):
    plan = make_plan(ARCHITECTURES, ["clean", "pgd"])
    export(tmp_path / "json", plan, formats=("json",))
    export(tmp_path / "parquet", plan, formats=("parquet",))
    for file_format, key in itertools.product(("json", "parquet"), ("clean", "pgd")):
        dataset = Dataset(tmp_path / file_format)
        accuracies = dataset.read_table("cifar10", key)
        for position, name in enumerate(("confidence_correct", "confidence_incorrect")):
            table = dataset.read_table("cifar10", key, name)
            assert table[["architecture", "strength"]].equals(accuracies[["architecture", "strength"]])
            values = dataset.read_table("cifar10", key, "confidence")["value"]
            assert table["value"].tolist() == [value["prediction"][position] for value in values]
    with pytest.raises(ResultsError, match="there is no file"):
        Dataset(tmp_path / "json").read_table("cifar10", "fog", "confidence_correct")


def test_one_number_is_read_without_pandas_and_arrow(published_folder):
    code = (
        "import sys; from robust201 import Dataset; "
        f"print(Dataset({str(published_folder)!r}).accuracy(309, 'cifar10', 'pgd', 8), "
        "{'pandas', 'pyarrow', 'scipy'} & {*sys.modules})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = Dataset(published_folder).accuracy(309, "cifar10", "pgd", 8)
    assert result.stdout.split(maxsplit=1) == [str(expected), "set()\n"]


def test_draw_arch_draws_six_labelled_edges(dataset):
    short_names = {"none": "none", "skip_connect": "skip", "avg_pool_3x3": "avg pool 3×3"}
    short_names |= {"nor_conv_1x1": "conv 1×1", "nor_conv_3x3": "conv 3×3"}
    edges = [short_names[operation] for operation in nasbench201.parse(dataset.id_to_string(309))]
    for chart in (dataset.draw_arch(i=309), dataset.draw_arch(s=dataset.id_to_string(309))):
        chart_fields = chart.to_dict()
        texts = {row["text"] for rows in chart_fields["datasets"].values() for row in rows if "text" in row}
        assert texts == {*edges, "in", "1", "2", "out"}
        assert chart_fields["title"] == "#309"
    with pytest.raises(ArchitectureError, match="a cell string or an id is needed"):
        dataset.draw_arch()


def test_error_names_architecture_that_was_not_evaluated(dataset):
    with pytest.raises(ArchitectureError, match="#13433 was not evaluated"):
        dataset.accuracy(13433, "cifar10", "pgd")


def test_reader_rejects_later_format(tmp_path):
    export(tmp_path, make_plan([0], ["clean"]))
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps(sweep | {"format": 2}))
    with pytest.raises(FormatVersionError, match="expected format 1, got 2"):
        Dataset(tmp_path)


def test_join_adds_columns_of_a_table(dataset: Dataset) -> None:
    frame = pd.DataFrame({"network": [0, 309], "latency": [1.5, 2.5]})
    joined = dataset.join(frame)
    pd.testing.assert_frame_equal(joined.drop(columns="latency"), dataset.table)
    assert set(joined.loc[joined["network"] == 309, "latency"]) == {2.5}
    assert joined.loc[~joined["network"].isin(frame["network"]), "latency"].isna().all()
    joined_by_dataset = dataset.join(frame.assign(dataset=["cifar10", "cifar100"])).query("key == 'clean'").dropna()
    assert joined_by_dataset[["network", "dataset", "latency"]].to_numpy().tolist() == [
        [0, "cifar10", 1.5],
        [309, "cifar100", 2.5],
    ]
    for table in ({"index": [0], "x": [1.0]}, {"network": [0, 0], "x": [1.0, 2.0]}):
        with pytest.raises(ConfigError, match="the table must have one row per"):
            dataset.join(pd.DataFrame(table))


@pytest.fixture(scope="module")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    values = {"clean": {"0": 0.9, "2": 0.8}, "pgd": {"0": [0.5, 0.4], "2": [0.6, 0.5]}}
    return Dataset(write_results(tmp_path_factory.mktemp("dataset"), values))


@pytest.mark.parametrize("strength", ["1", True, float("nan"), 2.0])
def test_accuracy_rejects_invalid_strengths(small_dataset: Dataset, strength: Any) -> None:
    with pytest.raises(ConfigError, match="expected one of the strengths 1, 8, got"):
        small_dataset.accuracy(0, "cifar10", "pgd", strength)


@pytest.mark.parametrize("strength", [8, np.int64(8), np.float32(8)])
def test_accuracy_accepts_numpy_strengths(small_dataset: Dataset, strength: Any) -> None:
    assert small_dataset.accuracy(0, "cifar10", "pgd", strength) == 0.4


@pytest.mark.parametrize("architecture", [0.0, None, True, "00", -1, 15625])
def test_methods_reject_unknown_architectures(small_dataset: Dataset, architecture: Any) -> None:
    for look_up in (
        lambda: small_dataset.accuracy(architecture, "cifar10", "pgd", 1.0),
        lambda: small_dataset.get_uid(architecture),
        lambda: small_dataset.id_to_string(architecture),
    ):
        with pytest.raises(ArchitectureError, match="expected"):
            look_up()


@pytest.mark.parametrize("architecture", [np.int64(2), np.array(2), "2", np.str_("2")])
def test_accuracy_accepts_numpy_and_text_architectures(small_dataset: Dataset, architecture: Any) -> None:
    assert small_dataset.accuracy(architecture, "cifar10", "pgd", 1.0) == 0.6
    assert small_dataset.get_uid(architecture) == "2"


@pytest.mark.parametrize("wrap", [str, lambda name: (name,), lambda name: iter([name])])
def test_query_accepts_name_or_iterable_of_names(small_dataset: Dataset, wrap: Callable[[str], Any]) -> None:
    expected = {"cifar10": {"pgd": {"accuracy": {"0": [0.5, 0.4], "2": [0.6, 0.5]}}}}
    assert small_dataset.query(wrap("cifar10"), wrap("pgd"), wrap("accuracy")) == expected


@pytest.mark.parametrize("name", ["x" * 300, "../cifar10", ""])
def test_methods_reject_unknown_names(small_dataset: Dataset, name: str) -> None:
    for call in (
        lambda: small_dataset.query(name, "pgd", "accuracy"),
        lambda: small_dataset.query("cifar10", name, "accuracy"),
        lambda: small_dataset.query("cifar10", "pgd", name),
        lambda: small_dataset.accuracy(0, name, "pgd", 1.0),
    ):
        with pytest.raises(InputError, match="expected"):
            call()


@pytest.mark.parametrize("path", ["/dev/null", "/nowhere/at/all"])
def test_reader_rejects_invalid_folders(path: str) -> None:
    with pytest.raises(InputError, match="failed for"):
        Dataset(path)
