"""Parquet files with rows of several sets of weights per architecture, which require the name of the weights."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.analysis.class_summaries import summarise_classes
from robust201.core.errors import ArchitectureError, ConfigError
from robust201.figures.report import write_report
from robust201.reader.dataset import RobustnessDataset
from tests.support.fabricated import export, make_plan

ARCHITECTURES = (0, 2)
OF_EPOCH = {"e12-s0": ARCHITECTURES, "e200-s0": (2, 10)}


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> dict[str, Path]:
    """One folder per name of weights."""
    folders = {}
    for name, architectures in OF_EPOCH.items():
        folders[name] = tmp_path_factory.mktemp(name)
        export(folders[name], make_plan(architectures, ["clean", "pgd"]), formats=("parquet",))
    return folders


@pytest.fixture(scope="module")
def folder(parts, tmp_path_factory) -> Path:
    """An export with both sets of weights, under which #2 has different numbers."""
    out = tmp_path_factory.mktemp("both")
    for key in ("clean", "pgd"):
        name = f"dataset=cifar10/key={key}/part-0.parquet"
        tables = []
        for weights, part in parts.items():
            table = pq.read_table(part / "parquet" / name, partitioning=None)
            if weights == "e200-s0":
                worse = [value / 2 for value in table["accuracy"].to_pylist()]
                table = table.set_column(table.schema.names.index("accuracy"), "accuracy", pa.array(worse))
            names = pa.array([weights] * len(table)).dictionary_encode()
            tables.append(table.replace_schema_metadata().append_column("weights", names))
        path = out / name
        path.parent.mkdir(parents=True)
        pq.write_table(pa.concat_tables(tables, promote_options="permissive"), path)
    return out


def test_all_methods_accept_name_of_weights(folder, parts):
    data, part = RobustnessDataset(folder), RobustnessDataset(parts["e12-s0"])
    assert data.weights == ["e12-s0", "e200-s0"]
    chosen = {"weights": "e12-s0"}
    assert data.query(measure="cm", **chosen) == part.query(measure="cm")
    assert data.to_frame(**chosen).equals(part.to_frame())
    assert data.rank("cifar10", "pgd", **chosen).equals(part.rank("cifar10", "pgd"))
    assert data.accuracy(2, "cifar10", "pgd", 8.0, **chosen) == part.accuracy(2, "cifar10", "pgd", 8.0)
    assert data.value(2, "cifar10", "pgd", "cm", **chosen) == part.value(2, "cifar10", "pgd", "cm")
    other = data.accuracy(2, "cifar10", "pgd", 8.0, weights="e200-s0")
    assert other == part.accuracy(2, "cifar10", "pgd", 8.0) / 2
    # Cached results of one name of weights are not returned for another.
    assert data.accuracy(2, "cifar10", "pgd", 8.0, **chosen) == 2 * other


def test_query_without_name_of_weights_lists_names_in_one_line(folder):
    data = RobustnessDataset(folder)
    for ask in (
        data.query,
        data.to_frame,
        lambda: data.accuracy(2, "cifar10", "pgd"),
    ):
        with pytest.raises(ConfigError, match="expected weights 'e12-s0' or 'e200-s0', got no name") as refused:
            ask()
        assert "\n" not in str(refused.value)
    assert "weights e12-s0, e200-s0" in repr(data)
    with pytest.raises(ConfigError, match=r"'e13-s0': expected e12-s0, e200-s0.*Did you mean 'e12-s0'"):
        data.to_frame(weights="e13-s0")


NETWORKS = ("0@e12-s0", "10@e200-s0", "2@e12-s0", "2@e200-s0")


def test_select_turns_trainings_into_networks(folder, parts):
    data, part = RobustnessDataset(folder), RobustnessDataset(parts["e12-s0"])
    networks = data.select()
    assert sorted(networks.non_isomorph_ids) == list(NETWORKS)
    assert networks.files.space is None
    assert networks.accuracy("2@e12-s0", "cifar10", "pgd", 8.0) == part.accuracy(2, "cifar10", "pgd", 8.0)
    assert networks.accuracy("2@e200-s0", "cifar10", "pgd", 8.0) == part.accuracy(2, "cifar10", "pgd", 8.0) / 2
    values = {name: networks.accuracy(name, "cifar10", "pgd", 8.0) for name in NETWORKS}
    ranks = data.rank("cifar10", "pgd", 8.0)
    assert {**ranks} == {
        network_name: 1 + sum(other > values[network_name] for other in values.values()) for network_name in NETWORKS
    }
    (ranking, *_) = data.metrics(keys=["clean"]).rankings
    assert sorted(ranking.accuracies.index) == list(NETWORKS)
    assert networks.value("2@e12-s0", "cifar10", "pgd", "cm") == part.value(2, "cifar10", "pgd", "cm")
    with pytest.raises(ArchitectureError, match="got '10@e12-s0'"):
        networks.accuracy("10@e12-s0", "cifar10", "pgd")


def test_select_restricts_networks_and_keys(folder, parts):
    data, part = RobustnessDataset(folder), RobustnessDataset(parts["e12-s0"])
    assert list(data.select([2]).rank("cifar10", "pgd").sort_index().index) == ["2@e12-s0", "2@e200-s0"]
    assert list(data.select("10@e200-s0").rank("cifar10", "pgd").index) == ["10@e200-s0"]
    assert data.select(keys="pgd").keys_all == ["clean", "pgd"]
    assert part.select().files is part.files
    network_name = part.select([2], keys=["clean"])
    assert (network_name.to_frame()["architecture"].tolist(), network_name.keys_all) == ([2], ["clean"])
    assert network_name.files.space is part.files.space
    several = RobustnessDataset(parts["e12-s0"], parts["e200-s0"]).select([2, 10])
    assert several.to_frame("cifar10", "clean")["architecture"].tolist() == [2, 10]
    with pytest.raises(ConfigError, match=r"'10': expected a network that was evaluated, such as 0, 2, got another"):
        part.select([10])
    with pytest.raises(ConfigError, match=r"'pdg': it has no results for this key\. Did you mean 'pgd'"):
        part.select(keys="pdg")


def test_report_shows_trainings_as_networks(folder, tmp_path):
    page = write_report(RobustnessDataset(folder), tmp_path / "page.html").read_text()
    assert 'data-figure="attack-curves"' in page
    assert 'data-figure="attacks"' not in page
    assert all(name in page for name in NETWORKS)


def test_reader_of_single_name_needs_no_weights_argument(folder, parts, tmp_path):
    data, part = RobustnessDataset(folder, weights="e12-s0"), RobustnessDataset(parts["e12-s0"])
    assert data.to_frame().equals(part.to_frame())
    for measure in ("cm", "confidence"):
        network_name, other = (summarise_classes(d.files, "cifar10", ["clean", "pgd"], measure) for d in (data, part))
        assert all((network_name["pgd", s] == other["pgd", s]).all() for s in (0.5, 1.0, 8.0))
    assert "2 of 6,466 architectures" in write_report(data, tmp_path / "page.html").read_text()


def test_reader_of_unnamed_weights_rejects_name(parts):
    with pytest.raises(ConfigError, match=r"the folder's weights have no names\. Leave them out\."):
        RobustnessDataset(parts["e12-s0"]).to_frame(weights="e12-s0")


def test_overlay_keeps_folders_without_names_of_weights(folder, tmp_path):
    export(tmp_path / "more", make_plan([309], ["clean", "pgd"]))
    both = RobustnessDataset(folder, tmp_path / "more", weights="e12-s0")
    assert both.to_frame("cifar10", "pgd")["architecture"].unique().tolist() == [0, 2, 309]
