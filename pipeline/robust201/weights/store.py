"""The store of weights that workers read: a folder of safetensors files and a manifest, without pickles.

Layout::

    manifest.jsonl                                     see `weights.manifest`
    <dataset>/<index:06d>-e<epochs>-s<seed>.safetensors            published weights, without a recipe name
    <dataset>/<index:06d>-<recipe>-e<epochs>-s<seed>.safetensors   weights with a recipe name, such as trained weights
    <space>/<dataset>/<architecture>/[<recipe>-]e<epochs>-s<seed>.safetensors   spaces other than the default

Here <space> is `Space.weights_name`, and i<steps> replaces e<epochs> for a snapshot within an epoch. Missing,
truncated, changed or non-finite weights raise `CheckpointError`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from robust201.core.errors import CheckpointError
from robust201.core.files import atomic_write, sha256_of
from robust201.core.records import ArchitectureId, canonical_json, format_architecture
from robust201.networks.spaces import DEFAULT_SPACE
from robust201.weights.manifest import (
    MANIFEST_NAME,
    CheckpointRecord,
    ManifestWriter,
    NetworkName,
    TrainingRecord,
    Trial,
    Trials,
    describe_trial,
    read_manifest,
    trial_sort_key,
)
from robust201.weights.published.base import DEFAULT_SEED, StateDict, check_finite, count_parameters
from robust201.weights.published.state_dicts import parse_safetensors, read_shapes

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT_EPOCHS", "CheckpointRecord", "CheckpointStore"]

DEFAULT_EPOCHS = 200
"""Training length, in epochs, that `CheckpointStore.find` prefers. The networks in figure 11 of the dataset's paper
were trained for this length."""

_MAX_LISTED_NETWORKS = 5
_RECREATE_ADVICE = "Import the weights again, or run their training again."


class CheckpointStore:
    """A folder of weights with a manifest, which the first `add` creates.

    The manifest is read on first use, and flushed at the end of a `with` block. With `verify_hashes`, `check` compares
    the hash of each file with the manifest, once per file.
    """

    def __init__(self, root: Path, *, verify_hashes: bool = False) -> None:
        self.root = root
        self._verify_hashes = verify_hashes
        self._verified_files: set[tuple[str, str]] = set()
        self._networks: dict[NetworkName, Trials] | None = None
        self._writer = ManifestWriter(root / MANIFEST_NAME)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.flush()

    @property
    def manifest(self) -> Path:
        return self.root / MANIFEST_NAME

    def records(self) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints, sorted by space, dataset, index, recipe, length and seed."""
        networks = self._load_networks()
        sorted_networks = sorted(networks, key=lambda network: (*network[:2], _architecture_sort_key(network[2])))
        return tuple(record for network in sorted_networks for record in _sort_by_trial(networks[network]))

    def find(
        self,
        index: ArchitectureId,
        dataset: str,
        *,
        space: str = DEFAULT_SPACE,
        epochs: int | None = None,
        seed: int | None = None,
        recipe: str | None = None,
    ) -> CheckpointRecord:
        """Return a checkpoint of one network. `index` is the network's id in the space.

        Without `epochs`, 200 epochs are preferred, and then the longest training. Without `seed`, the seed 777 is
        preferred, and then the lowest seed. A snapshot within an epoch is returned only if there is nothing else.

        Raises:
            CheckpointError: there is no such checkpoint, or, without `recipe`, several recipes match; the message lists
                the existing checkpoints.
        """
        records = self._find_matching((space, dataset, index), [_Query(recipe, epochs, None, seed)])
        return min(records, key=lambda record: _preference_sort_key(record.trial))

    def find_by_hash(
        self, index: ArchitectureId, dataset: str, sha256: str, *, space: str = DEFAULT_SPACE
    ) -> CheckpointRecord | None:
        """Return the network's checkpoint whose weights file has this SHA-256, or None."""
        trials = self._load_networks().get((space, dataset, index), {})
        return next((record for record in trials.values() if record.sha256 == sha256), None)

    def find_all(
        self,
        index: ArchitectureId,
        dataset: str,
        *,
        space: str = DEFAULT_SPACE,
        recipes: Sequence[str] | None = None,
        epochs: Sequence[int] | None = None,
        steps: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints of one network that a sweep selects.

        They are sorted by recipe, epochs, steps and seed. Every combination of `recipes`, lengths (`epochs` and
        `steps`) and `seeds` must exist. If `epochs` and `steps` are None, all lengths are selected. If `seeds` is None,
        all seeds are selected. If `recipes` is None, only one recipe may match.

        Raises:
            CheckpointError: a combination is missing, or `recipes` is None and several recipes match; the message lists
                the existing checkpoints.
        """
        lengths: list[tuple[int | None, int | None]] = [(length, None) for length in epochs or ()]
        lengths += [(None, length) for length in steps or ()]
        queries = [
            _Query(recipe, *length, seed)
            for recipe, length, seed in product(recipes or (None,), lengths or [(None, None)], seeds or (None,))
        ]
        return self._find_matching((space, dataset, index), queries)

    def _find_matching(self, network: NetworkName, queries: Sequence["_Query"]) -> tuple[CheckpointRecord, ...]:
        """Return the sorted matches of all queries; see `find_all` for the errors."""
        trials = self._load_networks().get(network, {})
        for query in queries:
            if not any(query.matches(record) for record in trials.values()):
                raise self._no_match_error(network, query)
        matching = [record for record in _sort_by_trial(trials) if any(query.matches(record) for query in queries)]
        recipes = sorted({record.recipe for record in matching})
        if len(recipes) > 1 and any(query.recipe is None for query in queries):
            recipe_list = ", ".join(recipe or '"" (the unnamed recipe)' for recipe in recipes)
            raise CheckpointError(
                f"Choosing weights failed for {_network_label(network)} in {self.root}: there are weights of "
                f"{len(recipes)} recipes: {recipe_list}. Set `recipe` to one of them; in a sweep, with "
                "`weights: {path: …, recipe: …}`. The manifest has the settings of each recipe."
            )
        return tuple(matching)

    def records_of_network(self, index: ArchitectureId, dataset: str, space: str) -> tuple[CheckpointRecord, ...]:
        """Return the checkpoints of one network; empty if there are none, or if the store does not exist yet."""
        return tuple(_sort_by_trial(self._load_networks(missing_ok=True).get((space, dataset, index), {})))

    def check(self, record: CheckpointRecord) -> None:
        """Check that a record's file exists and is not truncated; if the store verifies hashes, also check its hash.

        Raises:
            CheckpointError: the file is missing, truncated or not safetensors, or (if the store verifies hashes) it has
                changed.
        """
        if (record.file, record.sha256) in self._verified_files:
            return
        self.read_shapes(record)
        if self._verify_hashes:
            self._check_hash(record, sha256_of(self._path_of(record)))
            self._verified_files.add((record.file, record.sha256))

    def read_shapes(self, record: CheckpointRecord) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of a record's tensors by name, read from the header of its file."""
        path = self._path_of(record)
        try:
            return read_shapes(path, f"{record.label} at {path}", _RECREATE_ADVICE)
        except OSError as error:
            raise self._unreadable_error(record, error) from error

    def load(self, record: CheckpointRecord, *, verify: bool = True) -> dict[str, "torch.Tensor"]:
        """Return the tensors of a record by name, finite and on the CPU. With `verify`, check the hash of the file."""
        path = self._path_of(record)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise self._unreadable_error(record, error) from error
        if verify:
            self._check_hash(record, hashlib.sha256(raw).hexdigest())
        return parse_safetensors(raw, str(path))

    def _check_hash(self, record: CheckpointRecord, digest: str) -> None:
        if digest != record.sha256:
            raise CheckpointError(
                f"Loading weights failed for {record.label} from {self._path_of(record)}: expected SHA-256 "
                f"{record.sha256[:16]}…, got {digest[:16]}…. The file is truncated or changed. {_RECREATE_ADVICE}"
            )

    @staticmethod
    def _unreadable_error(record: CheckpointRecord, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"Loading weights failed for {record.label}: {error.filename}: {error.strerror}. {_RECREATE_ADVICE}"
        )

    def add(self, **fields: Any) -> CheckpointRecord:
        """Store the weights of one network (see `write`). Adding equal weights again changes nothing."""
        self._load_networks(missing_ok=True)
        record = self.write(**fields)
        self.add_to_manifest(record)
        return record

    def write(
        self,
        *,
        state_dict: StateDict,
        space: str = DEFAULT_SPACE,
        training: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> CheckpointRecord:
        """Write the weights file of one network atomically. Afterwards, `add_to_manifest` must add it to the manifest.

        Tensors may be on any device. `fields` are the other fields of `CheckpointRecord`, without the fields that are
        computed from the weights.

        Raises:
            CheckpointError: the weights contain NaN or infinity, or a name is not a valid file name.
            StorageError: the file cannot be written (StorageFullError: the disk is full).
        """
        raw = _serialise(state_dict)
        record = CheckpointRecord(
            space=space,
            training=None if training is None else TrainingRecord(**json.loads(canonical_json(training))),
            parameters=count_parameters(state_dict),
            file="",
            sha256=hashlib.sha256(raw).hexdigest(),
            **fields,
        )
        names = {"dataset": record.dataset, "space": space, "architecture": str(record.index), "recipe": record.recipe}
        for field_name, name in names.items():
            if name in {".", ".."} or PurePosixPath(name).name != name or (not name and field_name != "recipe"):
                raise CheckpointError(
                    f"Storing weights failed for the {field_name} {name!r}: it cannot be the name of a folder or file. "
                    f"Rename the {field_name}."
                )
        check_finite(state_dict, f"{record.label} from {record.source}")
        record = record.model_copy(update={"file": _file_of(record)})
        if not _has_content(self._path_of(record), raw):
            with atomic_write(self._path_of(record)) as stream:
                stream.write(raw)
        return record

    def add_to_manifest(self, record: CheckpointRecord) -> None:
        """Add a record to the manifest.

        It replaces an earlier record with the same architecture, dataset, recipe, length and seed.
        """
        trials = self._load_networks(missing_ok=True).setdefault(record.network, {})
        if trials.get(record.trial) != record:
            self._writer.append(record)
            trials[record.trial] = record

    def flush(self) -> None:
        """Make the manifest durable, and close it. `add` opens it again."""
        self._writer.close()

    def _load_networks(self, *, missing_ok: bool = False) -> dict[NetworkName, Trials]:
        if self._networks is None:
            self._networks = {} if missing_ok and not self.manifest.exists() else read_manifest(self.manifest)
        return self._networks

    def _path_of(self, record: CheckpointRecord) -> Path:
        return self.root / PurePosixPath(record.file)

    def _no_match_error(self, network: NetworkName, query: "_Query") -> CheckpointError:
        networks = self._load_networks()
        if network in networks:
            existing = ", ".join(describe_trial(record.trial) for record in _sort_by_trial(networks[network]))
        else:

            def sort_key(other: NetworkName) -> tuple[Any, ...]:
                return other[:2] != network[:2], *other[:2], _architecture_sort_key(other[2])

            others = sorted(networks, key=sort_key)
            listed = [f"{format_architecture(index)} on {dataset} ({space})" for space, dataset, index in others]
            existing = f"weights of {len(listed):,} other networks: {', '.join(listed[:_MAX_LISTED_NETWORKS])}"
        templates = zip(("recipe {}", "{} epochs", "{} steps", "seed {}"), query, strict=True)
        requested = " and ".join(template.format(value) for template, value in templates if value is not None)
        return CheckpointError(
            f"Finding weights failed for {_network_label(network)} in {self.root}: expected "
            f"{requested or 'a checkpoint'}, got {existing}. Correct the selection, import the weights with "
            "`robust201 import`, or train them."
        )


class _Query(NamedTuple):
    """Properties of a requested checkpoint; None matches any value."""

    recipe: str | None
    epochs: int | None
    steps: int | None
    seed: int | None

    def matches(self, record: CheckpointRecord) -> bool:
        """Return whether a record matches.

        `epochs` matches only the snapshot at the end of that epoch, not later snapshots with the same number of
        complete epochs.
        """
        return (
            self.recipe in {None, record.recipe}
            and (self.epochs is None or (self.epochs == record.epochs and record.steps is None))
            and self.steps in {None, record.steps_done}
            and self.seed in {None, record.seed}
        )


def _sort_by_trial(trials: Trials) -> list[CheckpointRecord]:
    return [trials[trial] for trial in sorted(trials, key=trial_sort_key)]


def _network_label(network: NetworkName) -> str:
    _, dataset, index = network
    return f"{format_architecture(index)} {dataset}"


def _preference_sort_key(trial: Trial) -> tuple[bool, bool, int, int, bool, int]:
    """Return the sort key by which `find` ranks the trials of one recipe, the preferred trial first."""
    _, epochs, seed, steps = trial
    return steps is not None, epochs != DEFAULT_EPOCHS, -epochs, -(steps or 0), seed != DEFAULT_SEED, seed


def _architecture_sort_key(index: ArchitectureId) -> tuple[bool, ArchitectureId]:
    """Return the sort key of an architecture: indices by number, followed by names."""
    return isinstance(index, str), index


def _file_of(record: CheckpointRecord) -> str:
    """Return the path of a record's weights file below the folder of the store."""
    length = f"e{record.epochs}" if record.steps is None else f"i{record.steps}"
    file_name = f"{record.recipe}{'-' if record.recipe else ''}{length}-s{record.seed}.safetensors"
    if record.space == DEFAULT_SPACE:
        return f"{record.dataset}/{record.index:06d}-{file_name}"
    return f"{record.space}/{record.dataset}/{record.index}/{file_name}"


def _has_content(path: Path, raw: bytes) -> bool:
    """Return whether a file exists and contains exactly these bytes."""
    return path.is_file() and path.read_bytes() == raw


def hash_weights(state_dict: StateDict) -> str:
    """Return the SHA-256 that the file of these tensors would have in a store."""
    return hashlib.sha256(_serialise(state_dict)).hexdigest()


def _serialise(state_dict: StateDict) -> bytes:
    from safetensors.torch import save

    # The tensors are cloned, because safetensors rejects tensors that share memory, as tensors of a pickle may.
    raw: bytes = save({key: tensor.detach().cpu().clone().contiguous() for key, tensor in state_dict.items()})
    return raw
