"""What readers of published weights share: members of a source, the choice among their trials, weights.

Whatever is missing, truncated, damaged, foreign or not finite is a `CheckpointError`.
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

_Held = TypeVar("_Held")
_Id = TypeVar("_Id", int, str)

DEFAULT_DATASETS = ("cifar10", "cifar100", "ImageNet16-120")
"""Datasets taken where none are named. `cifar10-valid` (trained on half of CIFAR-10) is taken only by name."""

DEFAULT_HP = "200"
DEFAULT_SEED = 777

_BUFFER_KEY = re.compile(r"(?:^|\.)(?:running_mean|running_var|num_batches_tracked)$")

MAX_WEIGHTS_BYTES = 8 << 30
"""Largest file of one network's weights: two billion parameters."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which of a network's trials to take.

    Attributes:
        datasets: names, each of which must be there; None takes those of `DEFAULT_DATASETS` that are there.
        hp: training length, ``"200"`` or ``"12"`` epochs, as the published records name it.
        seed: training seed to prefer; where a network lacks it, the lowest seed it has. None takes every seed.
    """

    datasets: tuple[str, ...] | None = None
    hp: str = DEFAULT_HP
    seed: int | None = DEFAULT_SEED


@dataclass(frozen=True, eq=False)
class SourceWeights:
    """The weights of one trial, as a published source holds them.

    Attributes:
        index: id of the architecture that the source files the weights under.
        spec: cell string that the source gives, or None where it gives none.
        seed: seed of the training; differs from the one asked for where the source lacks that.
        channels: channels of the first stage (C, 16 as published); None in spaces without sizes.
        cells: cells per stage (N, 5 as published), as above.
        state_dict: CPU tensors by name, without a ``module.`` prefix.
        source_sha256: 64 hex digits of that file's (or member's) bytes.
        test_accuracy: fraction of the whole test split that the source says they classify correctly; None without one.
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
"""One network of a source, opened only when its weights are asked for; one of a stream, before the next is."""


@dataclass(frozen=True)
class WeightsFormat:
    """One published way of storing networks.

    Attributes:
        name: how the command line calls it.
        description: what it looks like on disk, in a few words.
        matches: whether a path looks like it.
        members: networks in a path: all of them in ascending order, or the given ones; one that is asked for and absent
            is a member whose reading raises `CheckpointError`.
    """

    name: str
    description: str
    matches: Callable[[Path], bool]
    members: Callable[[Path, Collection[int] | None], Iterable[Member]]


def absent_member(message: str) -> Member:
    """Stand in for a network that was asked for and is not there: reading it raises a `CheckpointError`."""

    def refuse(_selection: Selection) -> Iterator[SourceWeights]:
        raise CheckpointError(message)

    return refuse


def make_members(
    found: Mapping[_Id, _Held],
    indices: Collection[_Id] | None,
    read: Callable[[_Id, _Held, Selection], Iterator[SourceWeights]],
    absent: Callable[[_Id], str],
) -> list[Member]:
    """Make the members of what a source holds by id, `absent` being the message for an id that it lacks."""
    return [
        partial(read, index, found[index]) if index in found else absent_member(absent(index))
        for index in sorted(found if indices is None else set(indices))
    ]


def matching_files(path: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    """List the files of a folder, or the one file, whose whole name matches, sorted; none where there is no path."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [(file, match) for file in files if (match := pattern.fullmatch(file.name))]


def numbered_format(
    name: str,
    description: str,
    pattern: re.Pattern[str],
    read: Callable[[int, Path, Selection], Iterator[SourceWeights]],
) -> WeightsFormat:
    """Make the format of a folder with one file per network, which is named by its index: the pattern's first group."""

    def members(path: Path, indices: Collection[int] | None) -> list[Member]:
        found: dict[int, Path] = {}
        for file, match in matching_files(path, pattern):
            found.setdefault(int(match[1]), file)  # of two the zero-padded one, as the official reader does

        def absent(index: int) -> str:
            return (
                f"Finding weights failed for #{index} in {path}: expected a file of network #{index}, got {len(found)} "
                "files of others. Add the file or leave it out."
            )

        return make_members(found, indices, read, absent)

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


def choose_seeds(present: Collection[int], wanted: int | None) -> list[int]:
    """Apply the rule of seeds: the one asked for where there is, else the lowest; all, ascending, for None."""
    if wanted is None:
        return sorted(present)
    return [wanted] if wanted in present else [min(present)]


_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes of names that `DataParallel` and `torch.compile` add."""

_STATE_DICT_ENTRIES = ("state_dict", "model_state_dict", "model", "net", "network")
"""Usual names of the state_dict in a checkpoint of a training, in order of preference."""


def wrapper_prefix(names: Iterable[str]) -> str:
    """Return the longest prefix of wrappers that all names have, such as ``module.``."""
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
    """Find the state_dict in a file's content: the content itself or an entry of it, without prefixes of wrappers.

    An entry with a usual name is preferred; otherwise it must be the only state_dict. `say` receives a line if an entry
    was taken or a prefix dropped.

    Warns:
        RobustWarning: there are several state_dicts; it names the one that is used, and the others.

    Raises:
        CheckpointError: there is no state_dict, several have unknown names, or it has tensors that are not read.
    """
    entry, others = None, []
    if isinstance(content, Mapping) and not _is_state_dict(content):
        entries = [key for key, value in content.items() if _is_state_dict(value)]
        usual = [key for key in _STATE_DICT_ENTRIES if key in entries]
        if len(entries) > 1 and not usual:
            raise CheckpointError(
                f"Reading weights failed for {name}: expected one state_dict, got {len(entries)}, such as "
                f"{', '.join(map(repr, entries[:4]))}. Save the one of the network in a file of its own."
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
            "use another one, save it in a file of its own.",
            RobustWarning,
            stacklevel=2,
        )
    notes = [] if entry is None else [f"the entry {entry!r}"]
    notes += [f"names without {prefix!r}"] if (prefix := wrapper_prefix(content)) else []
    if notes:
        say(f"Using weights of {name}: {'; '.join(notes)}.")
    return state_dict


def require_state_dict(value: Any, name: str) -> dict[str, "torch.Tensor"]:
    """Check that a value is a state_dict of plain CPU tensors, and drop prefixes of wrappers from its names."""
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
                f"Reading weights failed for {name}: expected tensors that hold every number, got {key!r}, which is "
                f"{tensor.dtype}, {tensor.layout} on {tensor.device}. Save the network's float weights."
            )
    # A view may repeat few bytes of a file without end.
    n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in value.values())
    if n_bytes > MAX_WEIGHTS_BYTES:
        raise CheckpointError(
            f"Reading weights failed for {name}: expected tensors of at most {MAX_WEIGHTS_BYTES:,} bytes, got "
            f"{n_bytes:,}. Get the file again from its publisher."
        )
    prefix = wrapper_prefix(value)
    return {key.removeprefix(prefix): tensor.detach() for key, tensor in value.items()}


def read_test_accuracy(percents: Any, epochs: int) -> float | None:
    """Read the accuracy on the whole test split after the last epoch off a trial's percentages, as a fraction.

    Their names are as in ``{"ori-test@199": 93.43}``; "ori-test" are 10,000 images of the CIFAR datasets and 6,000 of
    ImageNet16-120. None where the trial has no such number: weights are of use without it.
    """
    percent = percents.get(f"ori-test@{epochs - 1}") if isinstance(percents, Mapping) else None
    return float(percent) / 100 if isinstance(percent, int | float) and 0 <= percent <= 100 else None


def infer_size(state_dict: StateDict, name: str) -> tuple[int, int, int]:
    """Read (channels C, cells a stage N, number of classes) off a network's tensors.

    Names are as in the published `TinyNetwork` (xautodl 1.0.0, models/cell_infers/tiny_network.py): the first residual
    block follows the N cells of the first stage.

    Raises:
        CheckpointError: the tensors are not those of such a network.
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
    """Count the trainable numbers of a state_dict: all but the running statistics of batch normalisation."""
    return sum(tensor.numel() for key, tensor in state_dict.items() if not _BUFFER_KEY.search(key))


def check_finite(state_dict: StateDict, name: str) -> None:
    """Refuse weights that are not numbers."""
    for key, tensor in state_dict.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"Reading weights failed for {name}: expected finite numbers, got {bad} NaN or infinite values in "
                f"{key}. Get the weights again, or train the network again."
            )
