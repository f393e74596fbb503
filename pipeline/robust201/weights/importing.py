"""Import weights into a checkpoint store, so that workers need not open third-party pickles.

Published records are not reliable: some trials (training runs of a network) have the metadata of another network
(NATS-Bench issue 36). Therefore, each state_dict's names and shapes are compared with those of the expected network.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from robust201.core.errors import ArchitectureError, CheckpointError, ConfigError, InputError
from robust201.core.records import ArchitectureId
from robust201.images import DATASETS
from robust201.networks.space import Space
from robust201.networks.spaces import DEFAULT_SPACE, SPACES
from robust201.weights.loading import check_shapes, fill_network
from robust201.weights.published.base import DEFAULT_SEED, NetworkReader, Selection, SourceWeights, check_finite
from robust201.weights.published.formats import open_networks
from robust201.weights.published.state_dicts import open_named_networks
from robust201.weights.store import CheckpointRecord, CheckpointStore

_RECIPE_NAME = r"[A-Za-z][\w.-]*"


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes:
        imported: the imported networks' records in the store, in the order of the source. They include records that
            already existed.
        rejected: one message per rejected network or trial.
    """

    imported: tuple[CheckpointRecord, ...]
    rejected: tuple[str, ...]


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
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Read the selected weights of a source, check each network, and add the weights to a store.

    Args:
        source: file or folder in one of the formats of `weights.published.formats.FORMATS`. For spaces other than the
            default, it must contain state_dicts in files named after the networks.
        store: store to which each network is added as soon as it is checked, even if the import fails later.
        space: space of the networks.
        indices: networks to import; None imports all networks of the source.
        datasets: datasets that every network must have; None imports cifar10, cifar100 and ImageNet16-120 if they
            exist.
        n_classes: number of classes of a dataset outside `images.DATASETS`, if the format does not contain it.
        recipe: name of the training recipe, to distinguish training runs of equal length and seed.
        epochs: training length to import: 200 or 12 in the published archives.
        seed: preferred training seed; a network without it uses its lowest seed. None imports every seed.
        progress: called with the number of finished networks and the total, which is an upper limit for tar archives.

    Raises:
        CheckpointError: the source has an unknown format, is truncated or has no selected network, or the first weights
            are absent, damaged, not finite, or belong to another network. Errors in later weights are in the report.
        ArchitectureError: the first network is not in the space.
        ConfigError: the recipe is not a valid name or, for spaces other than the default, the number of classes is
            unknown.
    """
    if recipe and not re.fullmatch(_RECIPE_NAME, recipe):
        raise ConfigError(
            f"Importing weights failed for the recipe {recipe!r}: a name must start with a letter and contain only "
            "letters, digits, dots, dashes and underscores. Rename the recipe."
        )
    selection = Selection(None if datasets is None else tuple(datasets), str(epochs), seed)
    readers, total = _open_source(source, space, indices, selection.datasets, n_classes)
    imported: list[CheckpointRecord] = []
    messages: list[str] = []
    for n_finished, read_network in enumerate(readers, start=1):
        for outcome in _import_network(read_network, selection, store, space, recipe):
            if isinstance(outcome, CheckpointRecord):
                imported.append(outcome)
            elif imported:
                messages.append(str(outcome))
            else:  # probably caused by an invalid option, which affects all networks
                raise outcome
        if progress is not None:
            progress(n_finished, total)
    store.flush()
    if not imported:
        raise CheckpointError(
            f"Importing weights failed for {source}: the selection contains no network. "
            "Check the path and the selection."
        )
    return ImportReport(tuple(imported), tuple(messages))


def _open_source(
    source: Path,
    space: Space,
    indices: Collection[ArchitectureId] | None,
    datasets: tuple[str, ...] | None,
    n_classes: int | None,
) -> tuple[Iterable[NetworkReader], int]:
    """Return readers of the networks of a source, and their number (see `open_networks`)."""
    if not space.has_text_ids:
        return open_networks(source, None if indices is None else [int(name) for name in indices])
    dataset = datasets[0] if datasets else ""
    if n_classes is None and dataset in DATASETS:
        n_classes = DATASETS[dataset].n_classes
    if n_classes is None:
        raise ConfigError(
            f"Importing weights failed for {source}: the number of classes of the dataset {dataset or '(none set)'} is "
            f"unknown. Set --datasets to one of {', '.join(DATASETS)}, or set --classes."
        )
    readers = open_named_networks(source, None if indices is None else [str(name) for name in indices], n_classes)
    return readers, len(readers)


def _import_network(
    read_network: NetworkReader, selection: Selection, store: CheckpointStore, space: Space, recipe: str
) -> Iterator[CheckpointRecord | InputError]:
    """Import the trials of one network, and yield the record or the error of each."""
    try:
        for weights in read_network(selection):
            try:
                yield _import_trial(weights, store, space, recipe)
            except (CheckpointError, ArchitectureError) as error:
                yield error
    except CheckpointError as error:
        yield error


def _import_trial(weights: SourceWeights, store: CheckpointStore, space: Space, recipe: str) -> CheckpointRecord:
    spec = space.spec(weights.index)
    if weights.spec is not None and weights.spec != spec:
        raise CheckpointError(
            f"Importing weights failed for {weights.label}: expected the cell {spec}, got {weights.spec}. {_ADVICE}"
        )
    if weights.channels is not None and weights.cells is not None:
        space = space.with_size(channels=weights.channels, cells=weights.cells)
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
        # The last two path components identify the file; its location on this machine stays private.
        source="/".join(Path(weights.source).parts[-2:]),
        source_sha256=weights.source_sha256,
        state_dict=weights.state_dict,
        recipe=recipe,
        test_accuracy=weights.test_accuracy,
    )


def check_weights(weights: SourceWeights, space: Space) -> None:
    """Check that weights belong to a network (names and shapes of the tensors), and that they are finite."""
    n_classes, label = weights.n_classes, weights.label
    if space.executes_code:  # the shapes of a user's network are known only after building it
        fill_network(space.build(weights.index, n_classes=n_classes), weights.state_dict, label, _ADVICE)
    else:  # building the network of a damaged record may need more memory than there is
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.state_dict.items()}
        check_shapes(space, weights.index, shapes, n_classes=n_classes, name=label, advice=_ADVICE)
    check_finite(weights.state_dict, label)


_ADVICE = (
    "The weights belong to another network: import another seed with --seed, correct --datasets or --space, or exclude "
    "the network."
)
