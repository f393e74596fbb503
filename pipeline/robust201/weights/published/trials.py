"""The nested records of NATS-Bench and NAS-Bench-201: trials by dataset and seed, with or without their weights.

Structure (nats_bench 1.8, api_utils.py, ArchResults and ResultsCount; nas_bench_201 2.1, api_utils.py): training length
→ {arch_index, arch_str, all_results: {(dataset, seed): trial}, …}; a trial holds net_state_dict (None in the "simple"
files), arch_config, epochs, params and eval_acc1es {"ori-test@199": percent}. Its own `seed` is a string; the one in
the key is an integer and is the one to go by. Its `params` and `flop` belong to another network in some trials
(NATS-Bench issue 36), so nothing here relies on them.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from robust201.core.errors import CheckpointError, closest
from robust201.weights.published.base import (
    DEFAULT_DATASETS,
    Selection,
    SourceWeights,
    TrainingRecord,
    choose_seeds,
    require_state_dict,
)


def weights_of(
    states: Any, selection: Selection, *, index: int, source: str, source_sha256: str
) -> Iterator[SourceWeights]:
    """Take the chosen trials' weights out of one network's records.

    Args:
        states: ``"12"`` and ``"200"`` to the state of an `ArchResults`.
        selection: datasets, training length and seed.
        index: index that the file is named by.
        source: file (and member) for messages.
        source_sha256: 64 hex digits of its bytes.

    Yields:
        Weights by dataset and seed.

    Raises:
        CheckpointError: the records are of another network, lack what was asked for, hold no weights, or are damaged.
    """
    state = _state_of(states, selection.hp, index, source)
    trials = _trials_of(state, source)
    with_weights = {
        dataset: held
        for dataset, seeds in trials.items()
        if (held := {seed: trial for seed, trial in seeds.items() if trial.get("net_state_dict") is not None})
    }
    for dataset in _choose_datasets(trials, with_weights, selection, source):
        for seed in choose_seeds(with_weights[dataset], selection.seed):
            trial = with_weights[dataset][seed]
            name = f"{source} ({dataset}, seed {seed})"
            epochs, config = _check_trial(trial, selection.hp, name)
            yield SourceWeights(
                index=index,
                spec=_field(state, "arch_str", str, source),
                dataset=dataset,
                epochs=epochs,
                seed=seed,
                n_classes=_field(config, "class_num", int, name),
                channels=_field(config, "channel", int, name),
                cells=_field(config, "num_cells", int, name),
                state_dict=require_state_dict(trial["net_state_dict"], name),
                source=source,
                source_sha256=source_sha256,
            )


def records_of(states: Any, selection: Selection, *, index: int, source: str) -> Iterator[TrainingRecord]:
    """Read what one network's records say of the chosen trials, weights aside.

    Args:
        states: as in `weights_of`.
        selection: datasets, training length and seed.
        index: index that the file is named by.
        source: file (and member) for messages.

    Yields:
        Records by dataset and seed.

    Raises:
        CheckpointError: the records are of another network, lack what was asked for, or are damaged.
    """
    state = _state_of(states, selection.hp, index, source)
    trials = _trials_of(state, source)
    for dataset in _choose_datasets(trials, trials, selection, source):
        for seed in choose_seeds(trials[dataset], selection.seed):
            trial = trials[dataset][seed]
            name = f"{source} ({dataset}, seed {seed})"
            epochs, _config = _check_trial(trial, selection.hp, name)
            yield TrainingRecord(
                index=index,
                spec=_field(state, "arch_str", str, source),
                dataset=dataset,
                epochs=epochs,
                seed=seed,
                parameters=float(_field(trial, "params", float, name)),
                accuracies=_final_accuracies(_field(trial, "eval_acc1es", Mapping, name), epochs),
                has_weights=trial.get("net_state_dict") is not None,
            )


def _final_accuracies(percentages: Mapping[str, float], epochs: int) -> dict[str, float]:
    ending = f"@{epochs - 1}"
    return {key.removesuffix(ending): float(value) / 100 for key, value in percentages.items() if key.endswith(ending)}


def _field(mapping: Any, key: str, kind: Any, name: str) -> Any:
    value = mapping.get(key) if isinstance(mapping, Mapping) else None
    if not isinstance(value, kind):
        raise CheckpointError(
            f"Reading records failed for {name}: expected a {kind.__name__} named {key!r}, got a "
            f"{type(value).__name__}. Get the file again from its publisher."
        )
    return value


def _state_of(states: Any, hp: str, index: int, source: str) -> Any:
    if not isinstance(states, Mapping) or hp not in states:
        there = ", ".join(map(str, states)) if isinstance(states, Mapping) else f"a {type(states).__name__}"
        raise CheckpointError(
            f"Reading records failed for {source}: expected records of {hp} epochs, got {there}. "
            "Choose another training length with --epochs, or get the file again."
        )
    state = states[hp]
    held = _field(state, "arch_index", int, source)
    if held != index:
        raise CheckpointError(
            f"Reading records failed for {source}: expected the records of network #{index}, got those of #{held}. "
            "Get the file again from its publisher."
        )
    return state


def _trials_of(state: Any, source: str) -> dict[str, dict[int, Mapping[str, Any]]]:
    trials: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for key, trial in _field(state, "all_results", Mapping, source).items():
        match key, trial:
            case (str(dataset), int(seed)), Mapping():
                trials[dataset][seed] = trial
            case _:
                raise CheckpointError(
                    f"Reading records failed for {source}: expected trials by (dataset, seed), got {key!r}. "
                    "Get the file again from its publisher."
                )
    return dict(trials)


def _choose_datasets(
    trials: Mapping[str, Any], usable: Mapping[str, Any], selection: Selection, source: str
) -> tuple[str, ...]:
    chosen = (
        tuple(name for name in DEFAULT_DATASETS if name in usable) if selection.datasets is None else selection.datasets
    )
    unknown = [name for name in chosen if name not in trials]
    if unknown:
        raise CheckpointError(
            f"Reading weights failed for {source}: expected trials of {unknown[0]!r}, got none."
            f"{closest(unknown[0], trials)}"
        )
    empty = [name for name in chosen if name not in usable]
    if empty or not chosen:
        what = ", ".join(empty) if empty else f"any of {', '.join(DEFAULT_DATASETS)}"
        there = f"weights of {', '.join(usable)} only" if usable else "records without weights (net_state_dict is None)"
        raise CheckpointError(
            f"Reading weights failed for {source}: expected weights of {what} after {selection.hp} epochs, got "
            f"{there}. Take the archive with weights (NATS-tss-v1_0-3ffb9-full), or choose others with --datasets."
        )
    return chosen


def _check_trial(trial: Mapping[str, Any], hp: str, name: str) -> tuple[int, Mapping[str, Any]]:
    epochs = int(_field(trial, "epochs", int, name))
    if str(epochs) != hp:
        raise CheckpointError(
            f"Reading records failed for {name}: expected a training of {hp} epochs, got {epochs}. "
            "Get the file again from its publisher."
        )
    return epochs, _field(trial, "arch_config", Mapping, name)
