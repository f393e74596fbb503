"""Import published weights into a checkpoint store: the only step that opens other people's pickles.

Published records are not to be trusted by their labels: some trials carry the fields of another network (NATS-Bench
issue 36). So every state_dict is loaded strictly into the network that its index names, and its parameters are counted.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import ArchitectureError, CheckpointError, InputError
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.weights.published.base import (
    DEFAULT_SEED,
    Member,
    Selection,
    SourceWeights,
    check_finite,
    count_parameters,
)
from robust201.weights.published.formats import open_members
from robust201.weights.store import CheckpointRecord, CheckpointStore


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        imported: the store's records, in the order of the source; those that were there already included.
        refused: one message for each network or trial that was not taken.
        other_seeds: how many of `imported` have another seed than the one asked for, because the source lacks that.
    """

    imported: tuple[CheckpointRecord, ...]
    refused: tuple[str, ...]
    other_seeds: int


def import_weights(
    source: Path,
    store: CheckpointStore,
    *,
    indices: Collection[int] | None = None,
    datasets: Collection[str] | None = None,
    epochs: int = 200,
    seed: int | None = DEFAULT_SEED,
    format: str | None = None,  # noqa: A002
    keep_going: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Read the chosen weights of a source, check each network, and add them to a store.

    Args:
        source: file or folder in one of `weights.published.formats.FORMATS`.
        store: filled as the import goes; what is in it stays, also where the import ends with an error.
        indices: the networks to take; None takes all that the source holds.
        datasets: names, each of which every network must have; None takes those of cifar10, cifar100 and
            ImageNet16-120 that are there.
        epochs: training length to take: 200 or 12 in the published archives.
        seed: training seed to prefer, else the lowest there is; None takes every seed.
        format: name of a format; None finds it out from the path.
        keep_going: collect refusals in the report and go on, instead of ending with the first.
        progress: called with (networks done, networks in all); in all is at most 15,625 where a stream does not say.

    Raises:
        CheckpointError: the source is unknown, or, unless `keep_going`, something asked for is absent, damaged,
            foreign, not finite or another network's.
        ArchitectureError: the source holds an index that is none, unless `keep_going`.
    """
    selection = Selection(None if datasets is None else tuple(datasets), str(epochs), seed)
    members, count = open_members(source, indices, format)
    total = nasbench201.N_ARCHITECTURES if count is None else count
    imported: list[CheckpointRecord] = []
    refused: list[str] = []
    for done, member in enumerate(members, start=1):
        for outcome in _import_member(member, selection, store):
            if isinstance(outcome, CheckpointRecord):
                imported.append(outcome)
            elif keep_going:
                refused.append(str(outcome))
            else:
                store.flush()
                raise outcome
        if progress is not None:
            progress(done, total)
    store.flush()
    if not imported and not refused:
        raise CheckpointError(
            f"Importing weights failed for {source}: expected at least one network, got none. "
            "Check the path, the format and what was asked for."
        )
    return ImportReport(
        tuple(imported), tuple(refused), 0 if seed is None else sum(record.seed != seed for record in imported)
    )


def _import_member(
    member: Member, selection: Selection, store: CheckpointStore
) -> Iterator[CheckpointRecord | InputError]:
    """Import one network's trials; a trial that is refused does not keep the others out."""
    try:
        for weights in member(selection):
            try:
                yield _import_one(weights, store)
            except (CheckpointError, ArchitectureError) as error:
                yield error
    except CheckpointError as error:
        yield error


def _import_one(weights: SourceWeights, store: CheckpointStore) -> CheckpointRecord:
    spec = nasbench201.architecture(weights.index).spec
    if weights.spec is not None and weights.spec != spec:
        raise _other_network(weights, f"the cell {spec}", weights.spec)
    check_network(weights, spec)
    return store.add(
        index=weights.index,
        spec=spec,
        dataset=weights.dataset,
        epochs=weights.epochs,
        seed=weights.seed,
        channels=weights.channels,
        cells=weights.cells,
        n_classes=weights.n_classes,
        # Two path components say which file it was; where it lay on this machine is nobody else's business.
        source="/".join(Path(weights.source).parts[-2:]),
        source_sha256=weights.source_sha256,
        state_dict=weights.state_dict,
        space=nasbench201.SPACE,
    )


def check_network(weights: SourceWeights, spec: str) -> None:
    """Check that weights are those of a cell's network: parameter count, names, shapes, finite numbers.

    Raises:
        CheckpointError: they are another network's or not finite.
    """
    from robust201.spaces.nasbench201.network import build_network

    size = {"channels": weights.channels, "cells": weights.cells, "n_classes": weights.n_classes}
    expected = nasbench201.parameter_count(spec, **size)
    got = count_parameters(weights.state_dict)
    if got != expected:
        raise _other_network(weights, f"{expected:,} parameters", f"{got:,}")
    try:
        build_network(spec, **size).load_state_dict(dict(weights.state_dict), strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split()[:60])
        raise _other_network(weights, f"the tensors of {spec}", f"others ({reason})") from error
    check_finite(weights.state_dict, weights.label)


def _other_network(weights: SourceWeights, expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        f"Importing weights failed for {weights.label}: expected {expected}, got {got}: the source holds another "
        "network there. Import another seed with --seed, or leave the network out."
    )
