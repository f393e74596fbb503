"""Types and functions that the readers of published weights share.

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
from robust201.core.records import ArchitectureId, format_architecture

if TYPE_CHECKING:
    import torch

StateDict = Mapping[str, "torch.Tensor"]

_Entry = TypeVar("_Entry")
_Id = TypeVar("_Id", int, str)

DEFAULT_DATASETS = ("cifar10", "cifar100", "ImageNet16-120")
"""Datasets that are imported by default. `cifar10-valid` (trained on half of CIFAR-10) is imported only on request."""

DEFAULT_HP = "200"
"""Default training length in epochs; published records call it ``hp``."""

DEFAULT_SEED = 777
"""Seed of the training runs that are preferred by default."""

_BUFFER_KEY = re.compile(r"(?:^|\.)(?:running_mean|running_var|num_batches_tracked)$")
"""Pattern of the names of BatchNorm's running statistics, which are not parameters."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of a network's trials. A trial is a training run on one dataset, with a length and a seed.

    Attributes:
        datasets: names of datasets whose weights must all exist; None selects those of `DEFAULT_DATASETS` that exist.
        hp: training length, ``"200"`` or ``"12"`` epochs, as in the published records.
        seed: preferred training seed; a network without it uses its lowest seed. None selects every seed.
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
        seed: seed of the training run; it differs from the requested seed if the source lacks that seed.
        channels: channels of the first stage (C; 16 in published networks); None in spaces without sizes.
        cells: cells per stage (N; 5 in published networks); None like `channels`.
        state_dict: CPU tensors by name, without a ``module.`` prefix.
        source_sha256: SHA-256 of the file or archive member, 64 hex digits.
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
        return f"{format_architecture(self.index)} {self.dataset} seed {self.seed} in {self.source}"


NetworkReader = Callable[[Selection], Iterator[SourceWeights]]
"""Function that yields the selected weights of one network of a source.

The network's file is opened only when the function is called. For a tar archive, functions must be called in order."""


@dataclass(frozen=True)
class WeightsFormat:
    """One published file format of networks' weights.

    Attributes:
        name: name on the command line.
        description: short description of the files.
        matches: function that returns whether the file names at a path match this format.
        make_readers: function that returns readers of the networks at a path. Its second argument selects networks
            (None: all). Reading an absent network raises `CheckpointError`.
    """

    name: str
    description: str
    matches: Callable[[Path], bool]
    make_readers: Callable[[Path, Collection[int] | None], Iterable[NetworkReader]]


def absent_network_reader(message: str) -> NetworkReader:
    """Return a reader for a network that is requested but absent; it raises `CheckpointError` with this message."""

    def reject(_selection: Selection) -> Iterator[SourceWeights]:
        raise CheckpointError(message)

    return reject


def make_network_readers(
    entries: Mapping[_Id, _Entry],
    indices: Collection[_Id] | None,
    read: Callable[[_Id, _Entry, Selection], Iterator[SourceWeights]],
    absent_message: Callable[[_Id], str],
) -> list[NetworkReader]:
    """Return readers of the networks of a source, in ascending order.

    `entries` are the source's entries by id, `indices` the requested ids (None: all), `read` reads an entry, and
    `absent_message` returns the error message for a missing id.
    """
    return [
        partial(read, index, entries[index]) if index in entries else absent_network_reader(absent_message(index))
        for index in sorted(entries if indices is None else set(indices))
    ]


def matching_files(path: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    """Return the sorted files in a folder whose full names match, and the matches.

    If `path` is a file, only this file is considered. If it does not exist, the list is empty.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return [(file, match) for file in files if (match := pattern.fullmatch(file.name))]


def numbered_format(
    name: str,
    description: str,
    pattern: re.Pattern[str],
    read: Callable[[int, Path, Selection], Iterator[SourceWeights]],
) -> WeightsFormat:
    """Return the format of folders with one file per network. The pattern's first group is the network's index."""

    def make_readers(path: Path, indices: Collection[int] | None) -> list[NetworkReader]:
        files: dict[int, Path] = {}
        # If a network has several files, the zero-padded name is kept, as in the official reader.
        for file, match in sorted(matching_files(path, pattern), key=lambda item: -len(item[1][1])):
            files.setdefault(int(match[1]), file)

        def absent_message(index: int) -> str:
            return (
                f"Finding weights failed for #{index} in {path}: there is no file of network #{index}, only "
                f"{len(files)} files of other networks. Add the file, or exclude the network."
            )

        return make_network_readers(files, indices, read, absent_message)

    return WeightsFormat(name, description, lambda path: bool(matching_files(path, pattern)), make_readers)


def read_network_file(path: Path) -> bytes:
    """Read the file of one network."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"Reading weights failed for {path}: {error.strerror}. "
            "Correct the path, or get the file again from its publisher."
        ) from error


def choose_seeds(seeds: Collection[int], preferred: int | None) -> list[int]:
    """Return the preferred seed, or the lowest one if it does not exist. If `preferred` is None, return all seeds."""
    if preferred is None:
        return sorted(seeds)
    return [preferred] if preferred in seeds else [min(seeds)]


_WRAPPER_PREFIXES = ("module.", "_orig_mod.")
"""Prefixes that `DataParallel` and `torch.compile` add to the names of tensors."""

_STATE_DICT_ENTRIES = ("state_dict", "model_state_dict", "model", "net", "network")
"""Usual names of the state_dict in a training checkpoint, in order of preference."""


def wrapper_prefix(names: Iterable[str]) -> str:
    """Return the longest wrapper prefix that all names have, such as ``module.`` or ``module._orig_mod.``."""
    names, prefix = list(names), ""
    while wrapper := next((wrapper for wrapper in _WRAPPER_PREFIXES if _have_prefix(names, prefix + wrapper)), ""):
        prefix += wrapper
    return prefix


def _have_prefix(names: list[str], prefix: str) -> bool:
    return bool(names) and all(name.startswith(prefix) for name in names)


def _is_state_dict(value: Any) -> bool:
    import torch

    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(key, str) and isinstance(tensor, torch.Tensor) for key, tensor in value.items())
    )


def find_state_dict(content: Any, name: str, print_line: Callable[[str], None]) -> dict[str, "torch.Tensor"]:
    """Return the state_dict in the content of a file, without wrapper prefixes.

    The content may be the state_dict itself or contain it as an entry. An entry with a usual name is preferred. An
    entry with another name must be the only state_dict. `print_line` is called with a message if an entry is used or a
    prefix removed.

    Warns:
        RobustWarning: there are several state_dicts. The warning names the one that is used and the others.

    Raises:
        CheckpointError: there is no state_dict, several have unusual names, or the state_dict has unsupported tensors.
    """
    note_texts = []
    if isinstance(content, Mapping) and not _is_state_dict(content):
        entries = {key: value for key, value in content.items() if _is_state_dict(value)}
        chosen = next((key for key in _STATE_DICT_ENTRIES if key in entries), None)
        others = [repr(key) for key in entries if key != chosen]
        if chosen is None and len(entries) > 1:
            raise CheckpointError(
                f"Reading weights failed for {name}: expected one state_dict, got {len(entries)}, such as "
                f"{', '.join(others[:4])}. Save the state_dict of the network in a separate file."
            )
        if chosen is not None and others:
            warnings.warn(
                f"{name} contains several state_dicts: using {chosen!r}, not {', '.join(others[:4])}. To use another "
                "state_dict, save it in a separate file.",
                RobustWarning,
                stacklevel=2,
            )
        if entries:
            entry_name = next(iter(entries)) if chosen is None else chosen
            content = entries[entry_name]
            note_texts.append(f"from the entry {entry_name!r}")
    state_dict = require_state_dict(content, name)
    note_texts += [f"with the prefix {prefix!r} removed from names"] if (prefix := wrapper_prefix(content)) else []
    if note_texts:
        print_line(f"Using the weights in {name} {', '.join(note_texts)}.")
    return state_dict


def require_state_dict(value: Any, name: str) -> dict[str, "torch.Tensor"]:
    """Check that a value is a state_dict of dense CPU tensors, and return it without wrapper prefixes."""
    import torch

    if not _is_state_dict(value):
        got = f"a {type(value).__name__}"
        if isinstance(value, Mapping):
            keys = ", ".join(map(repr, list(value)[:4]))
            got = f"a dictionary with the keys {keys}" if keys else "an empty dictionary"
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a state_dict of named tensors, got {got}. "
            "Get the file again, or save it again with the network's state_dict()."
        )
    for key, tensor in value.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(
                f"Reading weights failed for {name}: expected dense tensors on the CPU, got {key!r}, which is "
                f"{tensor.dtype}, {tensor.layout} on {tensor.device}. Save the floating-point weights of the network."
            )
    prefix = wrapper_prefix(value)
    return {key.removeprefix(prefix): tensor.detach() for key, tensor in value.items()}


def read_test_accuracy(percents: Any, epochs: int) -> float | None:
    """Return the test accuracy of a trial after the last epoch, as a fraction; None if it is not recorded.

    `percents` are the trial's percentages, such as ``{"ori-test@199": 93.43}``; "ori-test" means the whole test split
    of 10,000 images (CIFAR datasets) or 6,000 images (ImageNet16-120).
    """
    percent = percents.get(f"ori-test@{epochs - 1}") if isinstance(percents, Mapping) else None
    return float(percent) / 100 if isinstance(percent, int | float) and 0 <= percent <= 100 else None


def infer_size(state_dict: StateDict, name: str) -> tuple[int, int, int]:
    """Infer (channels C, cells per stage N, number of classes) from the tensors of a network.

    The tensors have the names of the published `TinyNetwork` (xautodl 1.0.0, models/cell_infers/tiny_network.py), where
    the first residual block follows the N cells of the first stage.

    Raises:
        CheckpointError: the tensors do not belong to such a network.
    """
    blocks = [int(match.group(1)) for key in state_dict if (match := re.match(r"cells\.(\d+)\.conv_a\.", key))]
    stem, classifier = state_dict.get("stem.0.weight"), state_dict.get("classifier.weight")
    if not blocks or stem is None or classifier is None or stem.ndim != 4 or classifier.ndim != 2:
        first_names = ", ".join(list(state_dict)[:3])
        raise CheckpointError(
            f"Reading weights failed for {name}: expected the tensors of a NAS-Bench-201 network (stem.0.weight, "
            f"cells.N.conv_a…, classifier.weight), got {first_names}, …. Import a network of this space."
        )
    return int(stem.shape[0]), min(blocks), int(classifier.shape[0])


def count_parameters(state_dict: StateDict) -> int:
    """Return the number of parameters in a state_dict, without the running statistics of BatchNorm."""
    return sum(tensor.numel() for key, tensor in state_dict.items() if not _BUFFER_KEY.search(key))


def check_finite(state_dict: StateDict, name: str) -> None:
    """Check that weights contain neither NaN nor infinity."""
    for key, tensor in state_dict.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            n_not_finite = int((~tensor.isfinite()).sum())
            raise CheckpointError(
                f"Reading weights failed for {name}: {key} has {n_not_finite} NaN or infinite values. "
                "Get the weights again, or train the network again."
            )
