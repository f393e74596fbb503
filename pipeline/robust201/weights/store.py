"""The store of weights that workers read: safetensors files and a manifest, no pickle.

Layout::

    manifest.jsonl                                     see `weights.manifest`
    <dataset>/<index:06d>-e<epochs>-s<seed>.safetensors            published weights, whose recipe has no name
    <dataset>/<index:06d>-<recipe>-e<epochs>-s<seed>.safetensors   others, such as those of `training`
    <space>/<dataset>/<architecture>/[<recipe>-]e<epochs>-s<seed>.safetensors   of other spaces than the default one

where <space> is `Space.weights_name`, and i<steps> stands for e<epochs> where a snapshot was taken within an epoch.
Whatever is missing, truncated, changed or not finite is a `CheckpointError`.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from robust201.core.errors import CheckpointError
from robust201.core.files import MAX_STATE_BYTES, IrregularFileError, atomic_write, read_file, sha256_of
from robust201.core.records import ArchitectureId, canonical_json, show_architecture
from robust201.spaces import DEFAULT_SPACE
from robust201.weights.manifest import (
    MANIFEST_NAME,
    CheckpointRecord,
    ManifestWriter,
    NetworkName,
    Trial,
    Trials,
    describe_trial,
    parse_line,
    read_manifest,
    record_line,
    trial_order,
)
from robust201.weights.published.base import (
    DEFAULT_SEED,
    MAX_WEIGHTS_BYTES,
    StateDict,
    check_finite,
    count_parameters,
)
from robust201.weights.published.state_dicts import parse_safetensors, read_shapes

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT_EPOCHS", "CheckpointRecord", "CheckpointStore"]

DEFAULT_EPOCHS = 200
"""Training length that `CheckpointStore.find` prefers: the one whose accuracies the paper prints (its figure 11)."""


_SHOWN_NETWORKS = 20
_MAKE_AGAIN = "Import the weights again, or run their training again."


class CheckpointStore:
    """A folder of weights with a manifest, made by the first `add`; a context manager that flushes.

    Opening reads nothing; the manifest is read on first use. Reading it needs no torch. With `hashed`, `check` compares
    each file with its hash in the manifest, once.
    """

    def __init__(self, root: Path, *, hashed: bool = False) -> None:
        self.root = root
        self._hashed = hashed
        self._intact: set[tuple[str, str]] = set()
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
        """List the checkpoints by space, dataset, index, recipe, length and seed."""
        networks = self._index()
        order = sorted(networks, key=lambda network: (*network[:2], _position(network[2])))
        return tuple(
            networks[network][trial] for network in order for trial in sorted(networks[network], key=trial_order)
        )

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
        """Choose one network's checkpoint, `index` being its id in the space of that name.

        Without `epochs`, 200 is preferred, else the longest training; without `seed`, 777, else the lowest. Snapshots
        within an epoch come last.

        Raises:
            CheckpointError: there is no such checkpoint, or, without `recipe`, there are those of several recipes; the
                message says what there is.
        """
        network = space, dataset, index
        there = self._index().get(network, {})
        wanted = _Wanted(recipe, epochs, None, seed)
        fitting = [trial for trial, record in there.items() if wanted.fits(record)]
        if not fitting:
            raise self._nothing_fits(network, wanted)
        if recipe is None:
            self._check_one_recipe(network, fitting)
        return there[min(fitting, key=_preference)]

    def find_hash(
        self, index: ArchitectureId, dataset: str, sha256: str, *, space: str = DEFAULT_SPACE
    ) -> CheckpointRecord | None:
        there = self._index().get((space, dataset, index), {})
        return next((record for record in there.values() if record.sha256 == sha256), None)

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
        """List the checkpoints of one network that a sweep asks for, by recipe, epochs, steps and seed.

        Each of `recipes` must be there after each of `epochs` and each of `steps`, and at each length with each of
        `seeds`; None takes all lengths, where neither epochs nor steps are given, or seeds, and the recipe where there
        is one alone.

        Raises:
            CheckpointError: one is not there, or recipes are not named and several fit; the message says what there is.
        """
        network = space, dataset, index
        there = self._index().get(network, {})
        lengths: list[tuple[int | None, int | None]] = [(length, None) for length in epochs or ()]
        lengths += [(None, length) for length in steps or ()]
        all_wanted = [
            _Wanted(recipe, *length, seed)
            for recipe, length, seed in product(recipes or (None,), lengths or [(None, None)], seeds or (None,))
        ]
        for wanted in all_wanted:
            if not any(wanted.fits(record) for record in there.values()):
                raise self._nothing_fits(network, wanted)
        fitting = [
            trial for trial in sorted(there, key=trial_order) if any(wanted.fits(there[trial]) for wanted in all_wanted)
        ]
        if recipes is None:
            self._check_one_recipe(network, fitting)
        return tuple(there[trial] for trial in fitting)

    def _check_one_recipe(self, network: NetworkName, fitting: Sequence[Trial]) -> None:
        recipes = sorted({recipe for recipe, *_ in fitting})
        if len(recipes) > 1:
            shown = ", ".join(recipe or '"" (the unnamed one)' for recipe in recipes)
            raise CheckpointError(
                f"Choosing weights failed for {_label(network)} in {self.root}: expected weights of "
                f"one recipe, got those of {len(recipes)}: {shown}. Name the one that is meant: in a sweep by "
                "`weights: {path: …, recipe: …}`, otherwise as `recipe`; what each was trained with is in the "
                "manifest."
            )

    def of_network(self, index: ArchitectureId, dataset: str, space: str) -> tuple[CheckpointRecord, ...]:
        """List the checkpoints of one network; empty where there are none, or no store yet."""
        there = self._index(create=True).get((space, dataset, index), {})
        return tuple(there[trial] for trial in sorted(there, key=trial_order))

    def check(self, record: CheckpointRecord) -> None:
        """Look whether a record's file is there and not cut short; unless the store is `hashed`, by its first bytes.

        Raises:
            CheckpointError: it is missing, truncated, or no safetensors file; in a hashed store, changed in any way.
        """
        if (record.file, record.sha256) in self._intact:
            return
        self.read_shapes(record)
        if self._hashed:
            path = self._path_of(record)
            digest = sha256_of(path)
            if digest != record.sha256:
                raise self._changed(record, digest, path.stat().st_size)
            self._intact.add((record.file, record.sha256))

    def read_shapes(self, record: CheckpointRecord) -> Mapping[str, tuple[int, ...]]:
        """Read the shapes of a record's tensors by name off the header of its file."""
        path = self._path_of(record)
        try:
            return read_shapes(path, f"{record.label} at {path}", _MAKE_AGAIN)
        except OSError as error:
            raise self._unreadable(record, error) from error

    def _changed(self, record: CheckpointRecord, digest: str, n_bytes: int) -> CheckpointError:
        return CheckpointError(
            f"Loading weights failed for {record.label} from {self._path_of(record)}: expected SHA-256 "
            f"{record.sha256[:16]}…, got {digest[:16]}… of {n_bytes:,} bytes: the file is truncated or changed. "
            f"{_MAKE_AGAIN}"
        )

    @staticmethod
    def _unreadable(record: CheckpointRecord, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"Loading weights failed for {record.label}: expected {error.filename}, got {error.strerror}. {_MAKE_AGAIN}"
        )

    def load(self, record: CheckpointRecord, *, verify: bool = True) -> dict[str, "torch.Tensor"]:
        """Read the weights of a record, CPU tensors by name, all finite; `verify` compares it with the manifest."""
        path = self._path_of(record)
        try:
            raw = read_file(path, MAX_WEIGHTS_BYTES)
        except OSError as error:
            raise self._unreadable(record, error) from error
        digest = hashlib.sha256(raw).hexdigest()
        if verify and digest != record.sha256:
            raise self._changed(record, digest, len(raw))
        return parse_safetensors(raw, str(path))

    def add(self, **fields: Any) -> CheckpointRecord:
        """Store the weights of one network: `write` and `enter` together. Adding the same again changes nothing."""
        self._index(create=True)
        record = self.write(**fields)
        self.enter(record)
        return record

    def write(
        self,
        *,
        state_dict: StateDict,
        space: str = DEFAULT_SPACE,
        training: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> CheckpointRecord:
        """Write the file of the weights of one network, which counts once the manifest names it (see `enter`).

        The file appears whole under its name or not at all. Tensors may be on any device; `fields` are the others of
        `CheckpointRecord`, except those that follow from the weights.

        Raises:
            CheckpointError: the weights hold NaN or infinity, or a name can name no file.
            StorageFullError: no space is left on the device.
        """
        record = CheckpointRecord(
            space=space,
            training=None if training is None else json.loads(canonical_json(training)),
            parameters=count_parameters(state_dict),
            file="",
            sha256="",
            **fields,
        )
        names = {"dataset": record.dataset, "space": space, "architecture": str(record.index), "recipe": record.recipe}
        for what, name in names.items():
            if name in {".", ".."} or PurePosixPath(name).name != name or (not name and what != "recipe"):
                raise CheckpointError(
                    f"Storing weights failed for the {what} {name!r}: expected a name that can name a folder, got "
                    f"another. Rename the {what}."
                )
        check_finite(state_dict, f"{record.label} from {record.source}")
        raw = _serialise(state_dict)
        record = replace(record, file=_file_of(record), sha256=hashlib.sha256(raw).hexdigest())
        path = self._path_of(record)
        if not _holds(path, raw):
            with atomic_write(path) as stream:
                stream.write(raw)
        return record

    def enter(self, record: CheckpointRecord) -> None:
        """Name a file in the manifest; it supersedes an earlier one of the same network, dataset and trial."""
        trials = self._index(create=True).setdefault(record.network, {})
        if trials.get(record.trial) != record:
            self._writer.append(record)
            trials[record.trial] = record

    def flush(self) -> None:
        """Make the manifest durable and close it; `add` opens it again."""
        self._writer.close()

    def _index(self, *, create: bool = False) -> dict[NetworkName, Trials]:
        if self._networks is None:
            self._networks = {} if create and not self.manifest.exists() else read_manifest(self.manifest)
        return self._networks

    def _path_of(self, record: CheckpointRecord) -> Path:
        relative = PurePosixPath(record.file)
        if relative.is_absolute() or ".." in relative.parts:
            raise CheckpointError(
                f"Loading weights failed for {record.label}: expected a file below {self.root}, got {record.file!r}. "
                "Make the store again with import-weights."
            )
        return self.root / relative

    def _nothing_fits(self, network: NetworkName, wanted: "_Wanted") -> CheckpointError:
        space, dataset, index = network
        networks = self._index()
        got = ", ".join(map(describe_trial, sorted(networks.get(network, {}), key=trial_order)))
        advice = "Import them with import-weights, or train them."
        if not got:
            elsewhere = sorted({name for of, name, number in networks if (of, number) == (space, index)})
            others = sorted((number for of, name, number in networks if (of, name) == (space, dataset)), key=_position)
            spaces = sorted({of for of, _, _ in networks})
            got = f"only weights on {', '.join(elsewhere)}" if elsewhere else _describe_networks(others)
            if space not in spaces:
                got = f"only weights of the space {', '.join(spaces)}" if spaces else "none at all"
                advice = "Name a store of weights of this space, or import them with import-weights."
            elif others:
                advice = "Name networks that are there by `architectures`, or import it with import-weights."
        forms = zip(("recipe {}", "{} epochs", "{} steps", "seed {}"), wanted, strict=True)
        asked = " and ".join(form.format(value) for form, value in forms if value is not None)
        return CheckpointError(
            f"Finding weights failed for {_label(network)} in {self.root}: expected "
            f"{asked or 'a checkpoint'}, got {got}. {advice}"
        )


class _Wanted(NamedTuple):
    """What is asked for; None for any."""

    recipe: str | None
    epochs: int | None
    steps: int | None
    seed: int | None

    def fits(self, record: CheckpointRecord) -> bool:
        """Whether a record is what is asked for; whole epochs are no snapshot within the next one."""
        return (
            self.recipe in {None, record.recipe}
            and (self.epochs is None or (self.epochs == record.epochs and record.steps is None))
            and self.steps in {None, record.steps_done}
            and self.seed in {None, record.seed}
        )


def _label(network: NetworkName) -> str:
    _, dataset, index = network
    return f"{show_architecture(index)} {dataset}"


def _preference(trial: Trial) -> tuple[bool, bool, int, int, bool, int]:
    """Sort key of the trials of a network by one recipe: what `find` prefers comes first."""
    _, epochs, seed, steps = trial
    return steps is not None, epochs != DEFAULT_EPOCHS, -epochs, -(steps or 0), seed != DEFAULT_SEED, seed


def _position(index: ArchitectureId) -> tuple[bool, ArchitectureId]:
    """Sort indices by number, before names."""
    return isinstance(index, str), index


def _describe_networks(indices: Sequence[ArchitectureId]) -> str:
    """Name the networks whose weights there are instead; where they are many, some."""
    if not indices:
        return "none on this dataset"
    more = ", …" if len(indices) > _SHOWN_NETWORKS else ""
    shown = ", ".join(map(show_architecture, indices[:_SHOWN_NETWORKS]))
    return f"weights of {len(indices):,} other {'network' if len(indices) == 1 else 'networks'} ({shown}{more})"


def _file_of(record: CheckpointRecord) -> str:
    """Path of a record's weights below the store's folder."""
    length = f"e{record.epochs}" if record.steps is None else f"i{record.steps}"
    trial = f"{record.recipe}{'-' if record.recipe else ''}{length}-s{record.seed}.safetensors"
    if record.space == DEFAULT_SPACE:
        return f"{record.dataset}/{record.index:06d}-{trial}"
    return f"{record.space}/{record.dataset}/{record.index}/{trial}"


def _holds(path: Path, raw: bytes) -> bool:
    """Whether a file has these bytes; what else lies there is replaced."""
    try:
        return read_file(path, len(raw)) == raw
    except (FileNotFoundError, IrregularFileError):
        return False


def hash_weights(state_dict: StateDict) -> str:
    """Hash tensors by name as a store does: SHA-256 of the file that would hold them."""
    return hashlib.sha256(_serialise(state_dict)).hexdigest()


def _serialise(state_dict: StateDict) -> bytes:
    from safetensors.torch import save

    # Clones, because safetensors refuses tensors that share memory, as those of a pickle may.
    raw: bytes = save({key: tensor.detach().cpu().clone().contiguous() for key, tensor in state_dict.items()})
    return raw


class FinishedSnapshots:
    """The records in a folder, by name; no two workers write the same name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, record: CheckpointRecord) -> None:
        """Write a record; raises `StorageFullError` if no space is left."""
        with atomic_write(self._path(name)) as stream:
            stream.write(record_line(record))

    def read(self, name: str) -> CheckpointRecord | None:
        """Give a record; None if it is absent or damaged."""
        path = self._path(name)
        try:
            return parse_line(read_file(path, MAX_STATE_BYTES), 1, path)
        except (FileNotFoundError, IrregularFileError, CheckpointError):
            return None

    def enter(self, name: str, store: CheckpointStore) -> CheckpointRecord | None:
        """Enter a record in a store's manifest, durably, and remove it here; None if it cannot be read."""
        record = self.read(name)
        if record is not None:
            store.enter(record)
            store.flush()
            self._path(name).unlink()
        return record

    def recover(self, store: CheckpointStore) -> int:
        """Enter the records that a killed driver left and whose files are intact; remove the others. Gives a count."""
        count = 0
        for path in sorted(self._folder.glob("*.json")):
            name = path.name.removesuffix(".json")
            record = self.read(name)
            if record is not None and _is_whole(store.root / record.file, record.sha256):
                self.enter(name, store)
                count += 1
            else:
                path.unlink()
        return count

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _is_whole(path: Path, sha256: str) -> bool:
    try:
        return sha256_of(path) == sha256
    except OSError:
        return False
