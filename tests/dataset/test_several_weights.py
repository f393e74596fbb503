"""Parquet files with rows for several sets of weights per architecture, which are selected by name."""

import functools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.dataset.reader import Dataset
from tests.support.fabricated import export, make_plan

ARCHITECTURES = (0, 2)
ARCHITECTURES_BY_WEIGHTS = {"e12-s0": ARCHITECTURES, "e200-s0": (2, 10)}


@pytest.fixture(scope="module")
def folders_by_weights(tmp_path_factory) -> dict[str, Path]:
    """Return a folder with the results of each set of weights, by the name of the weights."""
    folders = {}
    for name, architectures in ARCHITECTURES_BY_WEIGHTS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        export(folders[name], make_plan(architectures, ["clean", "pgd"]), formats=("parquet",))
    return folders


@pytest.fixture(scope="module")
def folder(folders_by_weights, tmp_path_factory) -> Path:
    """Return an export with the results of both sets of weights; #2 has different results for each set."""
    out = tmp_path_factory.mktemp("both")
    for key in ("clean", "pgd"):
        name = f"parquet/dataset=cifar10/key={key}/part-0.parquet"
        tables = []
        for weights, single_folder in folders_by_weights.items():
            table = pq.read_table(single_folder / name, partitioning=None)
            if weights == "e200-s0":
                lower_accuracies = [value / 2 for value in table["accuracy"].to_pylist()]
                table = table.set_column(table.schema.names.index("accuracy"), "accuracy", pa.array(lower_accuracies))
            names = pa.array([weights] * len(table)).dictionary_encode()
            tables.append(table.replace_schema_metadata().append_column("weights", names))
        path = out / name
        path.parent.mkdir(parents=True)
        table = pa.concat_tables(tables, promote_options="permissive")
        pq.write_table(table, path, row_group_size=1)  # no row group has rows of both sets
    single_folder = folders_by_weights["e12-s0"]
    (out / "meta.json").write_bytes((single_folder / "meta.json").read_bytes())
    sweep = json.loads((single_folder / "sweep.json").read_text())
    (out / "sweep.json").write_text(json.dumps(sweep | {"weights": {name: {} for name in folders_by_weights}}))
    return out


def test_all_methods_use_the_chosen_weights(folder, folders_by_weights):
    assert Dataset(folder).weights == ["e12-s0", "e200-s0"]
    single_dataset = Dataset(folders_by_weights["e12-s0"])
    for dataset in (Dataset(folder, weights="e12-s0"), Dataset(folder).with_weights("e12-s0")):
        assert dataset.query(measure="cm") == single_dataset.query(measure="cm")
        assert dataset.table.equals(single_dataset.table)
        matrices, expected_matrices = (
            [matrix for rows in reader.iter_rows("cifar10", "pgd", "cm") for matrix in rows.nested_values("cm")]
            for reader in (dataset, single_dataset)
        )
        assert matrices == expected_matrices
        accuracy = dataset.accuracy(2, "cifar10", "pgd", 8.0)
        assert accuracy == single_dataset.accuracy(2, "cifar10", "pgd", 8.0)
        assert dataset.value(2, "cifar10", "pgd", "cm") == single_dataset.value(2, "cifar10", "pgd", "cm")
        # Tables of one set of weights are not used for another set.
        assert dataset.with_weights("e200-s0").accuracy(2, "cifar10", "pgd", 8.0) == accuracy / 2
        assert dataset.with_weights(None).table.equals(single_dataset.table)


def test_query_without_weights_name_lists_names_in_a_one_line_error(folder):
    dataset = Dataset(folder)
    matrices = functools.partial(dataset.value, 2, "cifar10", "pgd", "cm")
    for query in (dataset.query, lambda: dataset.table, lambda: dataset.accuracy(2, "cifar10", "pgd"), matrices):
        with pytest.raises(ConfigError, match="expected weights 'e12-s0' or 'e200-s0', got no name") as error_info:
            query()
        assert "\n" not in str(error_info.value)
    assert "weights e12-s0, e200-s0" in repr(dataset)
    with pytest.raises(ConfigError, match="'e13-s0'"):
        dataset.with_weights("e13-s0")


NETWORKS = ("0@e12-s0", "10@e200-s0", "2@e12-s0", "2@e200-s0")


def test_select_returns_one_network_per_set_of_weights(folder, folders_by_weights):
    dataset, single_dataset = Dataset(folder), Dataset(folders_by_weights["e12-s0"])
    networks = dataset.select()
    assert sorted(networks.non_isomorph_ids) == list(NETWORKS)
    assert networks.space is None
    assert networks.accuracy("2@e12-s0", "cifar10", "pgd", 8.0) == single_dataset.accuracy(2, "cifar10", "pgd", 8.0)
    assert (
        networks.accuracy("2@e200-s0", "cifar10", "pgd", 8.0) == single_dataset.accuracy(2, "cifar10", "pgd", 8.0) / 2
    )
    assert networks.value("2@e12-s0", "cifar10", "pgd", "cm") == single_dataset.value(2, "cifar10", "pgd", "cm")
    with pytest.raises(ArchitectureError, match="got '10@e12-s0'"):
        networks.accuracy("10@e12-s0", "cifar10", "pgd")


def test_select_restricts_networks_and_keys(folder, folders_by_weights):
    dataset, single_dataset = Dataset(folder), Dataset(folders_by_weights["e12-s0"])
    assert dataset.select([2]).non_isomorph_ids == ["2@e12-s0", "2@e200-s0"]
    assert dataset.select("10@e200-s0").non_isomorph_ids == ["10@e200-s0"]
    assert dataset.select(keys="pgd").keys_all == ["clean", "pgd"]
    for names in ([2], ["2@e12-s0", "10@e200-s0"]):
        result = dataset.select(names, keys="clean").with_weights("e12-s0").query(measure="accuracy")
        assert result == single_dataset.select([2], keys="clean").query(measure="accuracy")
    selected_dataset = single_dataset.select([2], keys=["clean"])
    assert (selected_dataset.table["network"].tolist(), selected_dataset.keys_all) == ([2], ["clean"])
    assert selected_dataset.space is single_dataset.space
    selected_overlay = Dataset(folders_by_weights["e12-s0"], folders_by_weights["e200-s0"]).select([2, 10])
    assert selected_overlay.read_table("cifar10", "clean")["architecture"].tolist() == [2, 10]
    with pytest.raises(ConfigError, match=r"'10': expected a network that was evaluated, such as 0, 2"):
        single_dataset.select([10])
    with pytest.raises(ConfigError, match="'pdg'"):
        single_dataset.select(keys="pdg")


def test_overlay_includes_folders_whose_weights_have_no_names(folder, tmp_path):
    export(tmp_path / "more", make_plan([309], ["clean", "pgd"]))
    overlay = Dataset(folder, tmp_path / "more", weights="e12-s0")
    assert overlay.read_table("cifar10", "pgd")["architecture"].unique().tolist() == [0, 2, 309]
    export(tmp_path / "clean", make_plan([309], ["clean"]))
    overlay = Dataset(tmp_path / "clean", folder)
    assert overlay.select().with_weights("e12-s0").meta["epsilons"] == overlay.meta["epsilons"] != {}
