"""Import weights into a checkpoint store: the only step that opens other people's pickles.

Published records are not to be trusted by their labels: some trials carry the fields of another network (NATS-Bench
issue 36). So every state_dict is loaded strictly into the network of its name, and its parameters are counted.
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
    """Read the chosen weights of a source, check each network, and add them to a store.

    Args:
        source: file or folder in one of `weights.published.formats.FORMATS`; of another space than the default one,
            state_dicts in files that bear the networks' names.
        store: filled as the import goes; what is in it stays, also where the import ends with an error.
        space: whose networks they are.
        indices: the networks to take; None takes all that the source holds.
        datasets: names, each of which every network must have; None takes those of cifar10, cifar100 and
            ImageNet16-120 that are there.
        n_classes: of the dataset, where it is none of `images.DATASETS` and the format does not say.
        recipe: name of the training, to distinguish it from others of equal length and seed.
        epochs: training length to take: 200 or 12 in the published archives.
        seed: training seed to prefer, else the lowest there is; None takes every seed.
        format: name of a format; None finds it out from the path.
        keep_going: collect refusals in the report and go on, instead of ending with the first.
        progress: called with (networks done, networks in all); in all is at most that where a stream does not say.

    Raises:
        CheckpointError: the source is unknown, or, unless `keep_going`, something asked for is absent, damaged,
            foreign, not finite or another network's.
        ArchitectureError: the source holds a network that the space has not, unless `keep_going`.
        ConfigError: the recipe is no name, or for another space the number of classes is unknown or a format named.
    """
    if recipe and not re.fullmatch(_RECIPE, recipe):
        raise ConfigError(
            f"Importing weights failed for the recipe {recipe!r}: expected a letter, then letters, digits, dots, "
            "dashes and underscores, got another name. Rename it."
        )
    selection = Selection(None if datasets is None else tuple(datasets), str(epochs), seed)
    members, total = _open(source, space, indices, selection.datasets, n_classes, format)
    imported: list[CheckpointRecord] = []
    refused: list[str] = []
    for done, member in enumerate(members, start=1):
        for outcome in _import_member(member, selection, store, space, recipe):
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


def _open(
    source: Path,
    space: Space,
    names: Collection[ArchitectureId] | None,
    datasets: tuple[str, ...] | None,
    n_classes: int | None,
    format: str | None,  # noqa: A002
) -> tuple[Iterable[Member], int]:
    """Open a source: its networks, and how many they are (see `open_members`)."""
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
    """Import one network's trials; a trial that is refused does not keep the others out."""
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
        # Two path components say which file it was; where it lay on this machine is nobody else's business.
        source="/".join(Path(weights.source).parts[-2:]),
        source_sha256=weights.source_sha256,
        state_dict=weights.state_dict,
        recipe=recipe,
        test_accuracy=weights.test_accuracy,
    )


def check_weights(weights: SourceWeights, space: Space) -> None:
    """Check that weights are those of a network: parameter count, names, shapes, finite numbers."""
    # Before anything is built: a damaged record may name more channels than memory can hold.
    expected = space.parameter_count(weights.index, n_classes=weights.n_classes)
    got = count_parameters(weights.state_dict)
    if expected not in {None, got}:
        raise _other_network(weights, f"{expected:,} parameters", f"{got:,}")
    fill_network(space.build(weights.index, n_classes=weights.n_classes), weights.state_dict, weights.label, _ADVICE)
    check_finite(weights.state_dict, weights.label)


_ADVICE = (
    "The source holds another network there: import another seed with --seed, correct --datasets or --space, or leave "
    "the network out."
)


def _other_network(weights: SourceWeights, expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        f"Importing weights failed for {weights.label}: expected {expected}, got {got}: another network's. {_ADVICE}"
    )
