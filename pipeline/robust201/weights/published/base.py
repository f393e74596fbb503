"""Shared parts of the readers of published weights: members of a source, selection of trials, weights.

Missing, truncated, damaged, unknown or non-finite weights raise `CheckpointError`.
"""

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from robust201.core.errors import CheckpointError, RobustWarning
from robust201.core.files import read_file
from robust201.core.records import ArchitectureId, show_architecture

if TYPE_CHECKING:
    import torch

StateDict = Mapping[str, "torch.Tensor"]

_Entry = TypeVar("_Entry")
_Id = TypeVar("_Id", int, str)

DEFAULT_DATASETS = ("cifar10", "cifar100", "ImageNet16-120")
"""Default datasets. `cifar10-valid` (trained on half of CIFAR-10) is imported only if named."""

DEFAULT_HP = "200"
DEFAULT_SEED = 777

_BUFFER_KEY = re.compile(r"(?:^|\.)(?:running_mean|running_var|num_batches_tracked)$")

MAX_WEIGHTS_BYTES = 8 << 30
"""Maximum size of one network's weights file: two billion parameters."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of a network's trials.

    Attributes:
        datasets: names that must all exist; None takes those of `DEFAULT_DATASETS` that exist.
        hp: training length, ``"200"`` or ``"12"`` epochs, as in the published records.
        seed: preferred training seed; a network without it uses its lowest seed. None takes every seed.
    """

    datasets: tuple[str, ...] | None = None
    hp: str = DEFAULT_HP
    seed: int | None = DEFAULT_SEED


@dataclass(frozen=True, eq=False)
class SourceWeights:
    """The weights of one trial in a published source.

    Attributes:
        index: id of the architecture in the source.
        spec: cell string in the source, or None.
        seed: seed of the training; differs from the requested seed if the source lacks it.
        channels: channels of the first stage (C, 16 as published); None in spaces without sizes.
        cells: cells per stage (N, 5 as published), like `channels`.
        state_dict: CPU tensors by name, without a ``module.`` prefix.
        source_sha256: 64 hex digits of the file or archive member.
        test_accuracy: accuracy on the whole test split according to the source, as a fraction; None if unknown.
    """

    index: ArchitectureId
    spec: str | None
    dataset: str
    epochs: int
    seed: int
    n_classes: int
    channels: int | None
    cells: int | None
    state_dict: StateDict = field(repr=False)
    source: str
    source_sha256: str
    test_accuracy: float | None = None

    @property
    def label(self) -> str:
        return f"{show_architecture(self.index)} {self.dataset} seed {self.seed} in {self.source}"


Member = Callable[[Selection], Iterator[SourceWeights]]
"""One network of a source, which is opened only when its weights are read; a stream must be read in order."""


@dataclass(frozen=True)
class WeightsFormat:
    """One published storage format of networks.

    Attributes:
        name: name on the command line.
        description: short description of its files.
        matches: returns whether a path looks like this format.
        members: returns the networks in a path: all in ascending order, or the given ones; reading an absent one raises
            `CheckpointError`.
    """

    name: str
    description: str
    matches: Callable[[Path], bool]
    members: Callable[[Path, Collection[int] | None], Iterable[Member]]


def absent_member(message: str) -> Member:
    """Return a placeholder for a requested but absent network: reading it raises `CheckpointError`."""

    def reject(_selection: Selection) -> Iterator[SourceWeights]:
        raise CheckpointError(message)

    return reject


def make_members(
    entries: Mapping[_Id, _Entry],
    indices: Collection[_Id] | None,
    read: Callable[[_Id, _Entry, Selection], Iterator[SourceWeights]],
    absent: Callable[[_Id], str],
) -> list[Member]:
    """Return the members of a source's entries by id; `absent` returns the message for a missing id."""
    return [
        partial(read, index, entries[index]) if index in entries else absent_member(absent(index))
        for index in sorted(entries if indices is None else set(indices))
    ]


def matching_files(path: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    """Return the sorted files of a folder, or the file itself, whose full name matches; empty for a missing path."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [(file, match) for file in files if (match := pattern.fullmatch(file.name))]


def numbered_format(
    name: str,
    description: str,
    pattern: re.Pattern[str],
    read: Callable[[int, Path, Selection], Iterator[SourceWeights]],
) -> WeightsFormat:
    """Return the format of a folder with one file per network; its index is the pattern's first group."""

    def members(path: Path, indices: Collection[int] | None) -> list[Member]:
        files: dict[int, Path] = {}
        for file, match in matching_files(path, pattern):
            files.setdefault(int(match[1]), file)  # prefer the zero-padded name, like the official reader

        def absent(index: int) -> str:
            return (
                f"Finding weights failed for #{index} in {path}: expected a file of network #{index}, got {len(files)} "
                "files of others. Add the file or leave it out."
            )

        return make_members(files, indices, read, absent)

    return WeightsFormat(name, description, lambda path: bool(matching_files(path, pattern)), members)


def read_network_file(path: Path) -> bytes:
    """Read the file of one network."""
    try:
        return read_file(path, MAX_WEIGHTS_BYTES)
    except OSError as error:
        raise CheckpointError(
            f"Reading weights failed for {path}: expected a readable file of one network, got {error.strerror}. "
            "Correct the path, or get the file again from its publisher."
        ) from error


def choose_seeds(present: Collection[int], preferred: int | None) -> list[int]:
    """Return the preferred seed if present, else the lowest; for None, all ascending."""
    if preferred is None:
        return sorted(present)
    return [preferred] if preferred in present else [min(present)]


_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
"""Name prefixes added by `DataParallel` and `torch.compile`."""

_STATE_DICT_ENTRIES = ("state_dict", "model_state_dict", "model", "net", "network")
"""Usual names of the state_dict in a training checkpoint, in order of preference."""


def wrapper_prefix(names: Iterable[str]) -> str:
    """Return the longest wrapper prefix that all names have, such as ``module.``."""
    names, prefix = list(names), ""
    while names and (step := _common_step(names, prefix)):
        prefix += step
    return prefix


def _common_step(names: list[str], prefix: str) -> str:
    steps = (step for step in _WRAPPER_PREFIXES if all(name.startswith(prefix + step) for name in names))
    return next(steps, "")


def _is_state_dict(value: Any) -> bool:
    import torch

    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(key, str) and isinstance(tensor, torch.Tensor) for key, tensor in value.items())
    )


def find_state_dict(content: Any, name: str, say: Callable[[str], None]) -> dict[str, "torch.Tensor"]:
    """Return the state_dict in a file's content, which is the content itself or an entry, without wrapper prefixes.

    An entry with a usual name is preferred; otherwise it must be the only state_dict. `say` receives a line if an entry
    is used or a prefix removed.

    Warns:
        RobustWarning: there are several state_dicts; the warning names the used one and the others.

    Raises:
        CheckpointError: there is no state_dict, several have unknown names, or it has unsupported tensors.
    """
    entry, others = None, []
    if isinstance(content, Mapping) and not _is_state_dict(content):
        entries = [key for key, value in content.items() if _is_state_dict(value)]
        usual = [key for key in _STATE_DICT_ENTRIES if key in entries]
        if len(entries) > 1 and not usual:
            raise CheckpointError(
                f"Reading weights failed for {name}: expected one state_dict, got {len(entries)}, such as "
                f"{', '.join(map(repr, entries[:4]))}. Save the network's one in a separate file."
            )
        entry = next(iter([*usual, *entries]), None)
        others = [key for key in entries if key != entry]
    if entry is not None:
        content = content[entry]
    state_dict = require_state_dict(content, name)
    if others:
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        warnings.warn(
            f"{name} contains several state_dicts: using {entry!r}, not {', '.join(map(repr, others[:4]))}{more}. To "
            "use another one, save it in a separate file.",
            RobustWarning,
            stacklevel=2,
        )
    notes = [] if entry is None else [f"the entry {entry!r}"]
    notes += [f"names without {prefix!r}"] if (prefix := wrapper_prefix(content)) else []
    if notes:
        say(f"Using weights of {name}: {'; '.join(notes)}.")
    return state_dict


def require_state_dict(value: Any, name: str) -> dict[str, "torch.Tensor"]:
    """Check that a value is a state_dict of dense CPU tensors, and return it without wrapper prefixes."""
    import torch

    if not _is_state_dict(value):
        got = f"a {type(value).__name__}"
        if isinstance(value, Mapping):
            got = f"a dictionary of {', '.join(map(repr, list(value)[:4])) or 'nothing'}"
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a state_dict of named tensors, got {got}. "
            "Get or save the file again, with the network's state_dict()."
        )
    for key, tensor in value.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(
                f"Reading weights failed for {name}: expected dense tensors on the CPU, got {key!r}, which is "
                f"{tensor.dtype}, {tensor.layout} on {tensor.device}. Save the network's float weights."
            )
    # A view may repeat a few bytes of a file indefinitely.
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in value.values())
    if n_bytes > MAX_WEIGHTS_BYTES:
        raise CheckpointError(
            f"Reading weights failed for {name}: expected tensors of at most {MAX_WEIGHTS_BYTES:,} bytes, got "
            f"{n_bytes:,}. Get the file again from its publisher."
        )
    prefix = wrapper_prefix(value)
    return {key.removeprefix(prefix): tensor.detach() for key, tensor in value.items()}


def read_test_accuracy(percents: Any, epochs: int) -> float | None:
    """Return the accuracy on the whole test split after the last epoch, as a fraction, from a trial's percentages.

    Their names are as in ``{"ori-test@199": 93.43}``; "ori-test" are 10,000 images of the CIFAR datasets and 6,000 of
    ImageNet16-120. Returns None if the trial has no such number.
    """
    percent = percents.get(f"ori-test@{epochs - 1}") if isinstance(percents, Mapping) else None
    return float(percent) / 100 if isinstance(percent, int | float) and 0 <= percent <= 100 else None


def infer_size(state_dict: StateDict, name: str) -> tuple[int, int, int]:
    """Return (channels C, cells per stage N, number of classes), inferred from a network's tensors.

    Names are as in the published `TinyNetwork` (xautodl 1.0.0, models/cell_infers/tiny_network.py): the first residual
    block follows the N cells of the first stage.

    Raises:
        CheckpointError: the tensors do not belong to such a network.
    """
    blocks = [int(match.group(1)) for key in state_dict if (match := re.match(r"cells\.(\d+)\.conv_a\.", key))]
    stem, classifier = state_dict.get("stem.0.weight"), state_dict.get("classifier.weight")
    if not blocks or stem is None or classifier is None or stem.ndim != 4 or classifier.ndim != 2:
        names = ", ".join(list(state_dict)[:3])
        raise CheckpointError(
            f"Reading weights failed for {name}: expected the tensors of a NAS-Bench-201 network (stem.0.weight, "
            f"cells.N.conv_a…, classifier.weight), got {names}, …. Import a network of this space."
        )
    return int(stem.shape[0]), min(blocks), int(classifier.shape[0])


def count_parameters(state_dict: StateDict) -> int:
    """Return the number of trainable parameters of a state_dict: all but the running statistics of BatchNorm."""
    return sum(tensor.numel() for key, tensor in state_dict.items() if not _BUFFER_KEY.search(key))


def check_finite(state_dict: StateDict, name: str) -> None:
    """Check that weights contain neither NaN nor infinity."""
    for key, tensor in state_dict.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"Reading weights failed for {name}: expected finite numbers, got {bad} NaN or infinite values in "
                f"{key}. Get the weights again, or train the network again."
            )
