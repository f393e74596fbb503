"""Import of weights into a checkpoint store: the only step that opens third-party pickles.

The labels of published records are not reliable: some trials have the fields of another network (NATS-Bench issue 36).
Therefore every state_dict is loaded strictly into the network of its name, and its parameters are counted.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import ArchitectureError, CheckpointError, ConfigError, InputError
from robust201.core.records import ArchitectureId
from robust201.images import DATASETS
from robust201.spaces import DEFAULT_SPACE, SPACES
from robust201.spaces.base import Space
from robust201.weights.loading import fill_network
from robust201.weights.published.base import (
    DEFAULT_SEED,
    Member,
    Selection,
    SourceWeights,
    check_finite,
    count_parameters,
)
from robust201.weights.published.formats import open_members
from robust201.weights.published.state_dicts import named_members
from robust201.weights.store import CheckpointRecord, CheckpointStore

_RECIPE = r"[A-Za-z][\w.-]*"


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes:
        imported: the store's records in source order, including those that already existed.
        refused: one message per rejected network or trial.
        other_seeds: number of `imported` records with another seed than requested, because the source lacks that seed.
    """

    imported: tuple[CheckpointRecord, ...]
    refused: tuple[str, ...]
    other_seeds: int


def import_weights(
    source: Path,
    store: CheckpointStore,
    *,
    space: Space = SPACES[DEFAULT_SPACE],
    indices: Collection[ArchitectureId] | None = None,
    datasets: Collection[str] | None = None,
    n_classes: int | None = None,
    recipe: str = "",
    epochs: int = 200,
    seed: int | None = DEFAULT_SEED,
    format: str | None = None,  # noqa: A002
    keep_going: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Read the selected weights of a source, check each network, and add them to a store.

    Args:
        source: file or folder in one of `weights.published.formats.FORMATS`; for other spaces than the default,
            state_dicts in files named after the networks.
        store: receives each network during the import, and keeps them if the import fails.
        space: space of the networks.
        indices: networks to import; None imports all in the source.
        datasets: datasets that every network must have; None takes those of cifar10, cifar100 and ImageNet16-120 that
            exist.
        n_classes: number of classes of a dataset that is not in `images.DATASETS`, if the format does not contain it.
        recipe: name of the training, to distinguish it from others of equal length and seed.
        epochs: training length to import: 200 or 12 in the published archives.
        seed: preferred training seed, with the lowest as fallback; None takes every seed.
        format: name of a format; None detects it from the path.
        keep_going: collect rejections in the report and continue, instead of stopping at the first.
        progress: called with (networks done, total); the total is an upper limit for streams.

    Raises:
        CheckpointError: the source is unknown, or, unless `keep_going`, requested weights are absent, damaged, in an
            unknown format, not finite or another network's.
        ArchitectureError: the source has a network that is not in the space, unless `keep_going`.
        ConfigError: the recipe is not a valid name; for other spaces, the number of classes is unknown or a format is
            named.
    """
    if recipe and not re.fullmatch(_RECIPE, recipe):
        raise ConfigError(
            f"Importing weights failed for the recipe {recipe!r}: expected a letter, then letters, digits, dots, "
            "dashes and underscores, got another name. Rename it."
        )
    selection = Selection(None if datasets is None else tuple(datasets), str(epochs), seed)
    members, total = _open(source, space, indices, selection.datasets, n_classes, format)
    imported: list[CheckpointRecord] = []
    rejected: list[str] = []
    for done, member in enumerate(members, start=1):
        for outcome in _import_member(member, selection, store, space, recipe):
            if isinstance(outcome, CheckpointRecord):
                imported.append(outcome)
            elif keep_going:
                rejected.append(str(outcome))
            else:
                store.flush()
                raise outcome
        if progress is not None:
            progress(done, total)
    store.flush()
    if not imported and not rejected:
        raise CheckpointError(
            f"Importing weights failed for {source}: expected at least one network, got none. "
            "Check the path, the format and the selection."
        )
    return ImportReport(
        tuple(imported), tuple(rejected), 0 if seed is None else sum(record.seed != seed for record in imported)
    )


def _open(
    source: Path,
    space: Space,
    names: Collection[ArchitectureId] | None,
    datasets: tuple[str, ...] | None,
    n_classes: int | None,
    format: str | None,  # noqa: A002
) -> tuple[Iterable[Member], int]:
    """Return the networks of a source and their number (see `open_members`)."""
    if space.has_published_weights:
        return open_members(source, None if names is None else [int(name) for name in names], format)
    if format is not None:
        raise ConfigError(
            f"Importing weights failed for {source}: expected no --format for networks of the space {space.name}, "
            f"whose state_dicts are named by the networks, got {format}. Leave it out."
        )
    dataset = datasets[0] if datasets else ""
    if n_classes is None and dataset in DATASETS:
        n_classes = DATASETS[dataset].n_classes
    if n_classes is None:
        raise ConfigError(
            f"Importing weights failed for {source}: expected a known dataset, or its number of classes, got "
            f"{dataset or 'none'}. Name one of {', '.join(DATASETS)} with --datasets, or give --classes."
        )
    members = named_members(source, None if names is None else [str(name) for name in names], n_classes)
    return members, len(members)


def _import_member(
    member: Member, selection: Selection, store: CheckpointStore, space: Space, recipe: str
) -> Iterator[CheckpointRecord | InputError]:
    """Import one network's trials; a rejected trial does not stop the others."""
    try:
        for weights in member(selection):
            try:
                yield _import_one(weights, store, space, recipe)
            except (CheckpointError, ArchitectureError) as error:
                yield error
    except CheckpointError as error:
        yield error


def _import_one(weights: SourceWeights, store: CheckpointStore, space: Space, recipe: str) -> CheckpointRecord:
    spec = space.spec(weights.index)
    if weights.spec is not None and weights.spec != spec:
        raise _other_network(weights, f"the cell {spec}", weights.spec)
    if weights.channels is not None and weights.cells is not None:
        space = space.sized(channels=weights.channels, cells=weights.cells)
    check_weights(weights, space)
    return store.add(
        space=space.weights_name,
        index=weights.index,
        spec=spec,
        dataset=weights.dataset,
        epochs=weights.epochs,
        seed=weights.seed,
        channels=weights.channels,
        cells=weights.cells,
        n_classes=weights.n_classes,
        # Two path components identify the file; its location on this machine stays private.
        source="/".join(Path(weights.source).parts[-2:]),
        source_sha256=weights.source_sha256,
        state_dict=weights.state_dict,
        recipe=recipe,
        test_accuracy=weights.test_accuracy,
    )


def check_weights(weights: SourceWeights, space: Space) -> None:
    """Check that weights fit a network: parameter count, names, shapes, and finite values."""
    # Before building the network, because a damaged record may have more channels than fit into memory.
    expected = space.parameter_count(weights.index, n_classes=weights.n_classes)
    got = count_parameters(weights.state_dict)
    if expected not in {None, got}:
        raise _other_network(weights, f"{expected:,} parameters", f"{got:,}")
    fill_network(space.build(weights.index, n_classes=weights.n_classes), weights.state_dict, weights.label, _ADVICE)
    check_finite(weights.state_dict, weights.label)


_ADVICE = (
    "The source has another network there: import another seed with --seed, correct --datasets or --space, or leave "
    "the network out."
)


def _other_network(weights: SourceWeights, expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        f"Importing weights failed for {weights.label}: expected {expected}, got {got}: another network's. {_ADVICE}"
    )
