"""Reader of the files that NAS-Bench-201's training writes, one per network and seed, with the weights of all datasets.

``arch-{index:06d}-seed-{seed:04d}.pth`` is written with torch.save and contains {"info", "all_dataset_keys", dataset:
{"net_state_dict", "total_epoch", "config", …}} (AutoDL-Projects f46486e, exps/NAS-Bench-201/main.py).
"""

import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from robust201.core.errors import CheckpointError, did_you_mean
from robust201.core.unpickling import load_torch
from robust201.weights.published.base import (
    DEFAULT_DATASETS,
    NetworkReader,
    Selection,
    SourceWeights,
    WeightsFormat,
    infer_size,
    make_network_readers,
    matching_files,
    read_network_file,
    require_state_dict,
)

_FILE_NAME = re.compile(r"arch-(\d{6})-seed-(\d{4})\.pth")


def _make_readers(path: Path, indices: Collection[int] | None) -> list[NetworkReader]:
    files_by_index: dict[int, dict[int, Path]] = defaultdict(dict)
    for file, match in matching_files(path, _FILE_NAME):
        files_by_index[int(match[1])][int(match[2])] = file

    def absent_message(index: int) -> str:
        return (
            f"Finding weights failed for #{index} in {path}: there is no file arch-{index:06d}-seed-….pth, only files "
            f"of {len(files_by_index)} other networks. Add the file, or exclude the network."
        )

    return make_network_readers(files_by_index, indices, _read_network, absent_message)


def _read_network(index: int, files: Mapping[int, Path], selection: Selection) -> Iterator[SourceWeights]:
    """Yield the weights on each dataset from the file of the selected seed, or else of the lowest seed that has them.

    If no seed is selected, the weights from every file are yielded.
    """
    requested = selection.datasets or DEFAULT_DATASETS
    missing_datasets = set(requested)
    available: dict[str, None] = {}
    for seed in sorted(files, key=lambda seed: (seed != selection.seed, seed)):
        if selection.seed is not None and not missing_datasets:
            break
        raw = read_network_file(files[seed])
        trials = _trials_of(raw, str(files[seed]))
        available |= dict.fromkeys(trials)
        for dataset in requested:
            if dataset in trials and (selection.seed is None or dataset in missing_datasets):
                missing_datasets.discard(dataset)
                yield _read_trial(index, seed, files[seed], raw, dataset, trials[dataset], selection.hp)
    if (missing_datasets and selection.datasets is not None) or missing_datasets == set(requested):
        first_missing = next(dataset for dataset in requested if dataset in missing_datasets)
        expected = first_missing if selection.datasets is not None else " or ".join(requested)
        file_names = ", ".join(str(files[seed]) for seed in sorted(files))
        got = f"weights of {', '.join(available)}" if available else "none"
        raise CheckpointError(
            f"Reading weights failed for #{index} in {file_names}: expected weights of {expected}, got {got}."
            f"{did_you_mean(first_missing, available) if available else ' Get the files again.'}"
        )


def _trials_of(raw: bytes, name: str) -> dict[str, Mapping[str, Any]]:
    """Return the trials in a file that have weights, by dataset."""
    content = load_torch(io.BytesIO(raw), name)
    return {
        key: trial
        for key, trial in (content.items() if isinstance(content, Mapping) else ())
        if isinstance(trial, Mapping) and trial.get("net_state_dict") is not None
    }


def _read_trial(
    index: int, seed: int, path: Path, raw: bytes, dataset: str, trial: Mapping[str, Any], hp: str
) -> SourceWeights:
    label = f"{path} ({dataset})"
    state_dict = require_state_dict(trial["net_state_dict"], label)
    channels, cells, n_classes = infer_size(state_dict, label)
    return SourceWeights(
        index=index,
        spec=None,
        dataset=dataset,
        epochs=_epochs_of(trial, hp, label),
        seed=seed,
        n_classes=n_classes,
        channels=channels,
        cells=cells,
        state_dict=state_dict,
        source=str(path),
        source_sha256=hashlib.sha256(raw).hexdigest(),
    )


def _epochs_of(trial: Mapping[str, Any], hp: str, name: str) -> int:
    """Return the number of epochs of a trial, which must be the requested one."""
    config = trial.get("config")
    epochs = trial.get("total_epoch", config.get("epochs") if isinstance(config, Mapping) else None)
    if not isinstance(epochs, int) or str(epochs) != hp:
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a training run of {hp} epochs, got {epochs}. "
            "Choose another training length with --epochs."
        )
    return epochs


RAW_TRAINING = WeightsFormat(
    "nasbench201-raw",
    "arch-{index:06d}-seed-{seed:04d}.pth",
    matches=lambda path: bool(matching_files(path, _FILE_NAME)),
    make_readers=_make_readers,
)
