"""Archives of tiny networks in the published formats, written with classes of the official packages."""

import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robust201.networks.nb201 import cells as nasbench201
from robust201.networks.nb201.network import Network
from robust201.weights.published.base import DEFAULT_HP, DEFAULT_SEED, Selection, SourceWeights
from robust201.weights.published.formats import open_networks

CHANNELS, CELLS = 2, 1
CLASSES = {"cifar10-valid": 10, "cifar10": 10, "cifar100": 100, "ImageNet16-120": 120}
"""Number of classes of each dataset."""

# Trials are not sorted, as in the real records. Trials of 12 epochs have seed 111, and on cifar10-valid also seed 777.
LONG_TRIALS = tuple((dataset, seed) for seed in (999, 777) for dataset in CLASSES)
SHORT_TRIALS = (("cifar10-valid", 777), *((dataset, 111) for dataset in CLASSES))


def random_weights(index: int, dataset: str, seed: int, epochs: int) -> dict[str, torch.Tensor]:
    """Return a random state_dict that depends on the arguments, with non-trivial running statistics."""
    torch.manual_seed(hash((index, CLASSES[dataset], len(dataset), seed, epochs)) % 2**31)
    network = Network(nasbench201.specs()[index], channels=CHANNELS, cells=CELLS, n_classes=CLASSES[dataset])
    network(torch.randn(4, 3, 8, 8))
    return network.state_dict()


def make_records(
    index: int, api_utils: Any, trials: Mapping[str, Iterable[tuple[str, int]]] | None = None
) -> dict[str, Any]:
    """Return one network's records by number of epochs, built with the official ArchResults and ResultsCount."""
    records = {}
    for n_epochs, trial_ids in (trials or {"12": SHORT_TRIALS, "200": LONG_TRIALS}).items():
        spec = nasbench201.specs()[index]
        results = api_utils.ArchResults(index, spec)
        for dataset, seed in trial_ids:
            trial = api_utils.ResultsCount(
                dataset,
                random_weights(index, dataset, seed, int(n_epochs)),
                dict.fromkeys(range(int(n_epochs)), 50.0),
                dict.fromkeys(range(int(n_epochs)), 1.0),
                np.float64(0.25),
                15.5,
                {"channel": CHANNELS, "num_cells": CELLS, "arch_str": spec, "class_num": CLASSES[dataset]},
                f"{seed:04d}",
                int(n_epochs),
                [np.float64(0.014)],
            )
            epochs = [f"ori-test@{epoch}" for epoch in range(int(n_epochs))]
            accuracies = dict.fromkeys(epochs, 10.0) | {epochs[-1]: 62.5}
            trial.update_eval(accuracies, dict.fromkeys(epochs, 1.0), dict.fromkeys(epochs, 0.5))
            results.update(dataset, seed, trial)
        records[n_epochs] = results.state_dict()
    return records


def write_nats(folder: Path, indices: Iterable[int], **options: Any) -> Path:
    """Write a NATS-Bench full archive."""
    from nats_bench import api_utils

    folder.mkdir(parents=True, exist_ok=True)
    specs = list(nasbench201.specs())
    meta = {"meta_archs": specs, "total_archs": len(specs), "arch2infos": {}, "evaluated_indexes": set()}
    api_utils.pickle_save(meta, folder / "meta.pickle")
    for index in indices:
        api_utils.pickle_save(make_records(index, api_utils, **options), folder / f"{index:06d}.pickle")
    return folder


def write_split_tar(folder: Path, source: Path, part_bytes: int) -> list[Path]:
    """Write an archive as a tar file, and split it into .taraa, .tarab and so on, like the command `split`."""
    folder.mkdir()
    tar_path = folder.parent / "whole.tar"
    with tarfile.open(tar_path, "w") as archive:
        archive.add(source, source.name)
    tar_bytes = tar_path.read_bytes()
    tar_path.unlink()
    part_paths = []
    for index, start in enumerate(range(0, len(tar_bytes), part_bytes)):
        part_paths.append(folder / f"{source.name}.tar{chr(97 + index // 26)}{chr(97 + index % 26)}")
        part_paths[-1].write_bytes(tar_bytes[start : start + part_bytes])
    return part_paths


def write_nasbench201(folder: Path, indices: Iterable[int], **options: Any) -> Path:
    """Write a NAS-Bench-201 archive."""
    from nas_201_api import api_utils

    folder.mkdir(parents=True, exist_ok=True)
    for index in indices:
        records = make_records(index, api_utils, **options)
        torch.save({"full": records["200"], "less": records["12"]}, folder / f"{index:06d}-FULL.pth")
    return folder


def assert_equal_tensors(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Check that names, data types and values of tensors are equal."""
    assert sorted(actual) == sorted(expected)
    for key, tensor in expected.items():
        assert actual[key].dtype == tensor.dtype
        assert torch.equal(actual[key], tensor), key


def iter_weights(
    path: Path,
    *,
    indices: Collection[int] | None = None,
    datasets: Collection[str] | None = None,
    hp: str = DEFAULT_HP,
    seed: int | None = DEFAULT_SEED,
) -> Iterator[SourceWeights]:
    """Yield the selected weights of a file or folder, one trial at a time."""
    selection = Selection(None if datasets is None else tuple(datasets), hp, seed)
    for read_network in open_networks(path, indices)[0]:
        yield from read_network(selection)
