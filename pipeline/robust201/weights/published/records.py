"""Readers of the records of NATS-Bench and NAS-Bench-201 in their published archives.

- NATS-Bench, full: ``NATS-tss-v1_0-3ffb9-full/{index:06d}.pickle.pbz2`` or ``{index:d}.pickle.pbz2``, one
  bz2-compressed pickle (protocol 4) per network (nats_bench 1.8, api_utils.py, `NASBenchMetaAPI.reload`). The "simple"
  archive has the same layout, but no weights.
- NAS-Bench-201: ``NAS-Bench-201-v1_1-archive/{index:06d}-FULL.pth``, one `torch.save` file per network: ``"full"`` (200
  epochs) and ``"less"`` (12) (nas_bench_201 2.1, api_201.py, `NASBench201API.reload`). ``-SIMPLE.pth`` files have no
  weights.

A file maps each training length to {arch_index, arch_str, all_results: {(dataset, seed): trial}, …} (nats_bench 1.8,
api_utils.py, ArchResults and ResultsCount; nas_bench_201 2.1, api_utils.py). A trial has net_state_dict (None in the
"simple" files), arch_config, epochs, params and eval_acc1es {"ori-test@199": percent}. Its `seed` is a string, so the
integer in the key is used instead. In some trials, `params` and `flop` belong to another network (NATS-Bench issue 36),
so they are not used.
"""

import bz2
import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from robust201.core.errors import CheckpointError, did_you_mean
from robust201.core.unpickling import load_pickle, load_torch
from robust201.weights.published.base import (
    DEFAULT_DATASETS,
    Selection,
    SourceWeights,
    choose_seeds,
    numbered_format,
    read_network_file,
    read_test_accuracy,
    require_state_dict,
)

RECORD_NAME = re.compile(r"(\d{1,6})\.pickle\.pbz2")
"""Pattern of the file name of a NATS-Bench record. Its group is the network's index."""

_NATS_LENGTH_NAMES = {"less": "12", "full": "200"}
"""NATS-Bench's name of a training length, by NAS-Bench-201's name."""


def read_nats(index: int, raw: bytes, name: str, selection: Selection) -> Iterator[SourceWeights]:
    """Return the selected weights in one record of NATS-Bench. `raw` contains the bytes of the compressed record."""
    stream = cast(BinaryIO, bz2.BZ2File(io.BytesIO(raw)))
    results_by_length = load_pickle(stream, name=name)
    return _read_trials(
        results_by_length, selection, index=index, source=name, source_sha256=hashlib.sha256(raw).hexdigest()
    )


def _read_nats_file(index: int, path: Path, selection: Selection) -> Iterator[SourceWeights]:
    return read_nats(index, read_network_file(path), str(path), selection)


def _read_nasbench201_file(index: int, path: Path, selection: Selection) -> Iterator[SourceWeights]:
    raw = read_network_file(path)
    results_by_length = load_torch(io.BytesIO(raw), str(path))
    if isinstance(results_by_length, dict):
        results_by_length = {_NATS_LENGTH_NAMES.get(name, name): results for name, results in results_by_length.items()}
    return _read_trials(
        results_by_length, selection, index=index, source=str(path), source_sha256=hashlib.sha256(raw).hexdigest()
    )


NATS_FULL = numbered_format("nats", "NATS-tss-v1_0-3ffb9-full/{index:06d}.pickle.pbz2", RECORD_NAME, _read_nats_file)

NASBENCH201_ARCHIVE = numbered_format(
    "nasbench201",
    "NAS-Bench-201-v1_1-archive/{index:06d}-FULL.pth",
    re.compile(r"(\d{6})-(?:FULL|SIMPLE)\.pth"),
    _read_nasbench201_file,
)


class _Config(BaseModel):
    """Size of a trained network."""

    model_config = ConfigDict(strict=True)

    class_num: int
    channel: int
    num_cells: int


class _Trial(BaseModel):
    """A training run on one dataset. `net_state_dict` is None in archives without weights."""

    model_config = ConfigDict(strict=True)

    epochs: int
    arch_config: _Config
    net_state_dict: Any = None
    eval_acc1es: Any = None


class _Results(BaseModel):
    """Records of one network and training length; `all_results` has the trials by (dataset, seed)."""

    model_config = ConfigDict(strict=True)

    arch_index: int
    arch_str: str
    all_results: dict[tuple[str, int], _Trial]


def _read_trials(
    results_by_length: Any, selection: Selection, *, index: int, source: str, source_sha256: str
) -> Iterator[SourceWeights]:
    """Yield the weights of the selected trials in the records of one network, by dataset and seed."""
    results = _results_of_length(results_by_length, selection.hp, index, source)
    usable_trials: dict[str, dict[int, _Trial]] = defaultdict(dict)
    for (dataset, seed), trial in results.all_results.items():
        if trial.net_state_dict is not None:
            usable_trials[dataset][seed] = trial
    for dataset in _choose_datasets({name for name, _ in results.all_results}, usable_trials, selection, source):
        for seed in choose_seeds(usable_trials[dataset], selection.seed):
            trial, name = usable_trials[dataset][seed], f"{source} ({dataset}, seed {seed})"
            if str(trial.epochs) != selection.hp:
                raise _invalid_records_error(name, f"a training run of {selection.hp} epochs", str(trial.epochs))
            yield SourceWeights(
                index=index,
                spec=results.arch_str,
                dataset=dataset,
                epochs=trial.epochs,
                seed=seed,
                n_classes=trial.arch_config.class_num,
                channels=trial.arch_config.channel,
                cells=trial.arch_config.num_cells,
                state_dict=require_state_dict(trial.net_state_dict, name),
                source=source,
                source_sha256=source_sha256,
                test_accuracy=read_test_accuracy(trial.eval_acc1es, trial.epochs),
            )


def _invalid_records_error(
    name: str, expected: str, got: str, advice: str = "Get the file again from its publisher."
) -> CheckpointError:
    return CheckpointError(f"Reading records failed for {name}: expected {expected}, got {got}. {advice}")


def _results_of_length(results_by_length: Any, hp: str, index: int, source: str) -> _Results:
    """Return the records of one training length, which must belong to the network with this index."""
    lengths = list(results_by_length) if isinstance(results_by_length, Mapping) else []
    if hp not in lengths:
        got = ", ".join(map(str, lengths)) or f"a {type(results_by_length).__name__}"
        advice = "Choose another training length with --epochs, or get the file again."
        raise _invalid_records_error(source, f"records of {hp} epochs", got, advice)
    try:
        results = _Results.model_validate(results_by_length[hp])
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(map(str, fault["loc"]))
        raise _invalid_records_error(source, "records of a network", f"in {field!r}: {fault['msg']}") from error
    if results.arch_index != index:
        raise _invalid_records_error(
            source, f"the records of network #{index}", f"the records of #{results.arch_index}"
        )
    return results


def _choose_datasets(
    datasets: Collection[str], usable: Collection[str], selection: Selection, source: str
) -> tuple[str, ...]:
    """Return the selected datasets; each of them must have weights."""
    selected = selection.datasets or tuple(name for name in DEFAULT_DATASETS if name in usable)
    for name in selected:
        if name not in datasets:
            raise CheckpointError(
                f"Reading weights failed for {source}: there are no trials on {name!r}.{did_you_mean(name, datasets)}"
            )
    without_weights = [name for name in selected if name not in usable]
    if without_weights or not selected:
        expected = ", ".join(without_weights) if without_weights else f"any of {', '.join(DEFAULT_DATASETS)}"
        available = (
            f"weights of {', '.join(usable)} only" if usable else "records without weights (net_state_dict is None)"
        )
        raise CheckpointError(
            f"Reading weights failed for {source}: expected weights of {expected} after {selection.hp} epochs, got "
            f"{available}. Use the archive with weights (NATS-tss-v1_0-3ffb9-full), or choose other datasets with "
            "--datasets."
        )
    return selected
