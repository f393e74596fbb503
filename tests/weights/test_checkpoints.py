"""The readers of the published formats return the same tensors as the official packages, and reject damaged files."""

import bz2
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import CheckpointError
from robust201.networks.nb201 import cells as nasbench201
from robust201.weights.published.base import SourceWeights
from robust201.weights.published.formats import detect_format
from robust201.weights.published.nats_split import JoinedParts, find_parts
from tests.support.official_archives import (
    CELLS,
    CHANNELS,
    assert_equal_tensors,
    iter_weights,
    make_records,
    random_weights,
    write_nasbench201,
    write_nats,
    write_split_tar,
)

INDICES = (3, 21, 309)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nats(tmp_path_factory.mktemp("nats") / "NATS-tss-v1_0-3ffb9-full", INDICES)


@pytest.fixture(scope="module")
def parts(nats: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_split_tar(tmp_path_factory.mktemp("split") / "download", nats, 50_000)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nasbench201(tmp_path_factory.mktemp("nb201") / "NAS-Bench-201-v1_1-archive", INDICES[:2])


def weights_by_trial(weights: list[SourceWeights]) -> dict[tuple[int, str, int, int], SourceWeights]:
    """Return weights by (index, dataset, epochs, seed)."""
    trials = {(trial.index, trial.dataset, trial.epochs, trial.seed): trial for trial in weights}
    assert len(trials) == len(weights)
    return trials


# --- readers and the official packages


@pytest.mark.parametrize(("hp", "seed"), [("12", 111), pytest.param("200", 777, marks=pytest.mark.slow)])
def test_nats_reader_returns_the_official_tensors(nats, hp, seed):
    import nats_bench

    api = nats_bench.create(str(nats), "tss", fast_mode=True, verbose=False)
    weights_of_trials = weights_by_trial(list(iter_weights(nats, hp=hp, seed=seed)))
    datasets = ("cifar10", "cifar100", "ImageNet16-120")
    assert set(weights_of_trials) == {(index, dataset, int(hp), seed) for index in INDICES for dataset in datasets}
    for (index, dataset, _, _), source_weights in weights_of_trials.items():
        assert_equal_tensors(source_weights.state_dict, api.get_net_param(index, dataset, seed, hp=hp))
        config = api.get_net_config(index, dataset)
        assert (config["C"], config["N"], config["num_classes"]) == (
            source_weights.channels,
            source_weights.cells,
            source_weights.n_classes,
        )
        assert config["arch_str"] == source_weights.spec


def test_nasbench201_reader_returns_the_official_tensors(archive):
    from nas_201_api import NASBench201API

    files = {index: torch.load(archive / f"{index:06d}-FULL.pth", weights_only=False) for index in INDICES[:2]}
    api = NASBench201API(
        {"meta_archs": list(nasbench201.specs()), "arch2infos": files, "evaluated_indexes": list(files)}, verbose=False
    )
    for hp, seed in (("200", 777), ("12", 111)):
        weights_of_trials = weights_by_trial(list(iter_weights(archive, hp=hp, seed=seed)))
        assert len(weights_of_trials) == 6
        for (index, dataset, epochs, trial_seed), source_weights in weights_of_trials.items():
            assert (str(epochs), trial_seed) == (hp, seed)
            assert_equal_tensors(source_weights.state_dict, api.get_net_param(index, dataset, seed, hp=hp))


def test_split_tar_reader_returns_the_same_as_the_folder_reader(nats, parts):
    assert len(parts) > 3
    for path in (parts[0].parent, parts[-1]):
        assert detect_format(path).name == "nats-tar"
    weights_of_trials = weights_by_trial(list(iter_weights(parts[-1])))
    expected = weights_by_trial(list(iter_weights(nats)))
    assert weights_of_trials.keys() == expected.keys()
    for trial, source_weights in weights_of_trials.items():
        assert source_weights.source_sha256 == expected[trial].source_sha256
        assert_equal_tensors(source_weights.state_dict, expected[trial].state_dict)


def test_tar_reader_accepts_an_archive_in_one_part(nats, parts, tmp_path):
    tar = tmp_path / "NATS-tss-v1_0-3ffb9-full.tar"
    tar.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert [source_weights.index for source_weights in iter_weights(tar, indices=[21], datasets=["cifar10"])] == [21]


@pytest.mark.parametrize("suffix", ["pth", "pt", "safetensors"])
def test_state_dicts_reader_needs_the_dataset_and_returns_the_weights(tmp_path, suffix):
    from safetensors.torch import save_file

    weights = {index: random_weights(index, "cifar10", 1, 200) for index in INDICES}
    for index, state_dict in weights.items():
        path = tmp_path / f"{index:06d}.{suffix}"
        if suffix == "safetensors":
            save_file(state_dict, path)
        else:  # users often save a dictionary with the state_dict of a DataParallel module
            torch.save({"state_dict": {f"module.{key}": value for key, value in state_dict.items()}}, path)
    assert detect_format(tmp_path).name == "state-dicts"
    for trial in iter_weights(tmp_path, datasets=["cifar10"]):
        assert (trial.dataset, trial.epochs, trial.seed, trial.n_classes) == ("cifar10", 200, 777, 10)
        assert (trial.channels, trial.cells) == (CHANNELS, CELLS)
        assert_equal_tensors(trial.state_dict, weights[trial.index])
    with pytest.raises(CheckpointError, match=r"expected the one dataset .* got none.*--datasets"):
        list(iter_weights(tmp_path))


# --- choice of trials


def test_cifar10_valid_is_skipped_unless_requested(nats):
    for names, expected in ((None, {"cifar10", "cifar100", "ImageNet16-120"}), (["cifar10-valid"], {"cifar10-valid"})):
        assert {trial.dataset for trial in iter_weights(nats, indices=[3], datasets=names)} == expected


def test_nats_reader_ignores_seeds_without_weights(tmp_path):
    from nats_bench import api_utils

    records = make_records(3, api_utils, trials={"200": [("cifar10", 999), ("cifar10", 888), ("cifar10", 777)]})
    records["200"]["all_results"]["cifar10", 777]["net_state_dict"] = None
    api_utils.pickle_save(records, tmp_path / "000003.pickle")
    (source_weights,) = iter_weights(tmp_path)
    assert source_weights.seed == 888
    assert [source_weights.seed for source_weights in iter_weights(tmp_path, seed=None)] == [888, 999]


def test_nats_reader_prefers_zero_padded_file_names(nats, tmp_path):
    (tmp_path / "21.pickle.pbz2").write_bytes((nats / "000021.pickle.pbz2").read_bytes())
    assert [source_weights.index for source_weights in iter_weights(tmp_path, datasets=["cifar10"])] == [21]
    (tmp_path / "21.pickle.pbz2").rename(tmp_path / "000021.pickle.pbz2")
    (tmp_path / "21.pickle.pbz2").write_bytes(b"")
    assert [source_weights.index for source_weights in iter_weights(tmp_path, datasets=["cifar10"])] == [21]


@pytest.mark.parametrize(
    ("options", "subject"),
    [
        ({"indices": [5]}, r"failed for #5 in "),
        ({"indices": [3], "datasets": ["cifr10"]}, "'cifr10'"),
        ({"indices": [3], "hp": "90"}, "expected records of 90 epochs"),
    ],
)
def test_selections_that_match_nothing_are_rejected(nats, archive, options, subject):
    for source in (nats, archive):
        with pytest.raises(CheckpointError, match=subject):
            list(iter_weights(source, **options))


@pytest.mark.parametrize(
    "name", ["absent", "empty", "NATS-tss-v1_0-3ffb9.pickle.pbz2", "NAS-Bench-201-v1_1-096897.pth"]
)
def test_sources_without_a_known_format_are_rejected(tmp_path, name):
    """The published single files have records, but no weights."""
    (tmp_path / "empty").mkdir()
    if "." in name:
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=name):
        list(iter_weights(tmp_path / name))


# --- damaged files


def test_records_of_another_network_or_training_length_are_rejected(nats, tmp_path):
    from nats_bench import api_utils

    (tmp_path / "000022.pickle.pbz2").write_bytes((nats / "000021.pickle.pbz2").read_bytes())
    with pytest.raises(CheckpointError, match=r"000022.*expected the records of network #22, got the records of #21"):
        list(iter_weights(tmp_path, indices=[22]))
    records = make_records(3, api_utils, trials={"200": [("cifar10", 777)]})
    records["200"]["all_results"]["cifar10", 777]["epochs"] = 12
    api_utils.pickle_save(records, tmp_path / "000003.pickle")
    with pytest.raises(CheckpointError, match=r"seed 777.*expected a training run of 200 epochs, got 12"):
        list(iter_weights(tmp_path, indices=[3]))


@settings(max_examples=15)
@given(fraction=st.floats(0, 0.999))
def test_readers_reject_truncated_files(nats, archive, fraction):
    import tempfile

    for source in (nats / "000003.pickle.pbz2", archive / "000003-FULL.pth"):
        raw = source.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / source.name
            path.write_bytes(raw[: int(len(raw) * fraction)])
            with pytest.raises(CheckpointError, match=rf"failed for .*{source.name}: .*truncated"):
                list(iter_weights(path))


@pytest.mark.parametrize("content", [[], {}, {"200": 3}, {"200": {"arch_index": 3, "all_results": {"cifar10": 1}}}])
def test_readers_reject_contents_that_are_not_weights(tmp_path, content):
    (tmp_path / "000003.pickle.pbz2").write_bytes(bz2.compress(pickle.dumps(content, 4)))
    with pytest.raises(CheckpointError, match=r"000003\.pickle\.pbz2: expected"):
        list(iter_weights(tmp_path))
    (tmp_path / "000003.pickle.pbz2").unlink()
    torch.save(content, tmp_path / "000003.pth")
    with pytest.raises(CheckpointError, match=r"000003\.pth: expected a state_dict"):
        list(iter_weights(tmp_path, datasets=["cifar10"]))


# --- split archives


def test_split_tar_errors_say_which_part_is_missing(nats, tmp_path):
    parts = write_split_tar(tmp_path / "download", nats, 30_000)
    names = [part.name for part in parts]
    for part in parts[-2:]:  # the last part may contain only the padding at the end of the archive
        part.unlink()
    with pytest.raises(CheckpointError, match=rf"follows {names[-3]}, and this part is missing"):
        list(iter_weights(tmp_path / "download", indices=[5]))
    with pytest.raises(CheckpointError, match=rf"rest of the records must be in the part that follows {names[-3]}"):
        list(iter_weights(tmp_path / "download"))
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=rf"follows {names[0]}, and this part is missing"):
        list(iter_weights(tmp_path / "download", indices=[309]))
    parts[0].unlink()
    with pytest.raises(CheckpointError, match=rf"the first part {names[0]} is missing"):
        list(iter_weights(tmp_path / "download"))


def test_split_tar_reader_returns_networks_before_a_missing_part(nats, tmp_path):
    parts = write_split_tar(tmp_path / "download", nats, 30_000)
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
        # the records of #3 and #21, in the order of the archive
        entries = [entry for entry in archive if entry.name.endswith("1.pickle.pbz2") or "00003." in entry.name]
    first_entry = entries[0]
    last_needed_part = (first_entry.offset_data + first_entry.size - 1) // 30_000
    for part in parts[last_needed_part + 1 :]:
        part.unlink()
    index = int(Path(first_entry.name).name[:6])
    (source_weights,) = iter_weights(tmp_path / "download", indices=[index], datasets=["cifar10"])
    assert source_weights.index == index


def test_split_tar_reader_reads_only_the_requested_records(parts, monkeypatch):
    n_read_bytes = 0
    original_readinto = JoinedParts.readinto

    def count_bytes(self: JoinedParts, buffer: Any, /) -> int:
        nonlocal n_read_bytes
        n_bytes = original_readinto(self, buffer)
        n_read_bytes += n_bytes
        return n_bytes

    monkeypatch.setattr(JoinedParts, "readinto", count_bytes)
    total_bytes = sum(part.stat().st_size for part in parts)
    list(iter_weights(parts[0], indices=[3], datasets=["cifar10"]))
    assert n_read_bytes < total_bytes / 2


def test_find_parts_sorts_nested_parts_and_rejects_several_archives(tmp_path):
    for name in ("a.taraa-aa", "a.taraa-ab", "a.tarab", "a.tarac-aa", "a.tarae"):
        (tmp_path / name).touch()
    assert [part.name for part in find_parts(tmp_path)] == ["a.taraa-aa", "a.taraa-ab", "a.tarab", "a.tarac-aa"]
    (tmp_path / "b.taraa").touch()
    with pytest.raises(CheckpointError, match=r"got a\.tar, b\.tar"):
        find_parts(tmp_path)
    assert [part.name for part in find_parts(tmp_path / "b.taraa")] == ["b.taraa"]
    (tmp_path / "a.taraa").touch()
    with pytest.raises(CheckpointError, match=r"both a\.taraa and smaller parts of it"):
        find_parts(tmp_path / "a.tarab")
