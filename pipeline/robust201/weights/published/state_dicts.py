"""Reader of a folder of state_dicts with one file per network: ``{index:06d}.pth``, ``.pt`` or ``.safetensors``.

In spaces other than NAS-Bench-201, files are named after the architecture, such as ``resnet18.safetensors``. Files
contain only tensors, so the caller specifies the dataset, length and seed of the training.
"""

import hashlib
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath
from shlex import quote
from typing import TYPE_CHECKING

from robust201.core.errors import CheckpointError, one_line
from robust201.core.records import ArchitectureId
from robust201.core.unpickling import TORCH_MAGIC_BYTES, is_torch_file, load_torch
from robust201.weights.published.base import (
    DEFAULT_SEED,
    NetworkReader,
    Selection,
    SourceWeights,
    check_finite,
    find_state_dict,
    infer_size,
    make_network_readers,
    matching_files,
    numbered_format,
    read_network_file,
)

if TYPE_CHECKING:
    import torch

_NAMED_FILE = re.compile(r"([A-Za-z][\w.-]*)\.(?:pth|pt|safetensors)")
_FILE_NAME = re.compile(r"(\d{1,6})\.(?:pth|pt|safetensors)")


def read_shapes(path: Path, name: str, advice: str) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a safetensors file, by name. Only the header is read.

    `name` and `advice` are the name of the file and the remedy in error messages.

    Raises:
        OSError: the file cannot be read.
        CheckpointError: the file is truncated or not safetensors.
    """
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as stream:
        reject_torch_file(stream.read(TORCH_MAGIC_BYTES), str(path))
    try:
        with safe_open(path, framework="np") as file:
            return {tensor: tuple(file.get_slice(tensor).get_shape()) for tensor in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a safetensors file, got a truncated or damaged file "
            f"({one_line(error)}). {advice}"
        ) from error


def parse_safetensors(raw: bytes, name: str) -> dict[str, "torch.Tensor"]:
    """Return the tensors in the bytes of a safetensors file, by name, finite and on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    reject_torch_file(raw, name)
    try:
        tensors: dict[str, torch.Tensor] = load(raw)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        got = f"a truncated or damaged file ({error})" if raw else "an empty file"
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a complete safetensors file, got {got}. Get or save the file "
            "again."
        ) from error
    check_finite(tensors, name)
    return tensors


def reject_torch_file(beginning: bytes, name: str) -> None:
    """Reject a PyTorch file by its first bytes, because it is a pickle and workers never open pickles."""
    if is_torch_file(beginning[:TORCH_MAGIC_BYTES]):
        # If the file already has the suffix .safetensors, the new file must have another name.
        path = PurePath(name)
        target = str(path.with_suffix(".converted.safetensors" if path.suffix == ".safetensors" else ".safetensors"))
        program = (
            "from safetensors.torch import save_file; from robust201.weights.loading import read_weights; "
            f"save_file(read_weights({name!r}), {target!r})"
        )
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a safetensors file, got a PyTorch file, which is a pickle. "
            f"Convert the file, and use the new file: python -c {quote(program)}"
        )


def parse_weights(raw: bytes, name: str, print_line: Callable[[str], None]) -> dict[str, "torch.Tensor"]:
    """Return the tensors in the bytes of a safetensors or PyTorch file, by name (see `find_state_dict`)."""
    is_pickle = is_torch_file(raw[:TORCH_MAGIC_BYTES])
    content = load_torch(io.BytesIO(raw), name) if is_pickle else parse_safetensors(raw, name)
    # The tensors are cloned, because tensors of a pickle may share memory, which safetensors cannot write.
    state_dict = {key: tensor.clone() for key, tensor in find_state_dict(content, name, print_line).items()}
    check_finite(state_dict, name)
    return state_dict


def _read_state_dict(
    index: ArchitectureId, path: Path, selection: Selection, *, n_classes: int | None = None
) -> Iterator[SourceWeights]:
    """Read one network. Without `n_classes`, infer the size and number of classes from the tensors."""
    if selection.datasets is None or len(selection.datasets) != 1:
        got = "none" if selection.datasets is None else ", ".join(selection.datasets)
        raise CheckpointError(
            f"Reading weights failed for {path.parent}: expected the one dataset that these networks were trained on, "
            f"got {got}. Set the dataset with --datasets."
        )
    name, raw = str(path), read_network_file(path)
    state_dict = parse_weights(raw, name, lambda _line: None)
    channels = cells = None
    if n_classes is None:
        channels, cells, n_classes = infer_size(state_dict, name)
    yield SourceWeights(
        index=index,
        spec=None,
        dataset=selection.datasets[0],
        epochs=int(selection.hp),
        seed=DEFAULT_SEED if selection.seed is None else selection.seed,
        n_classes=n_classes,
        channels=channels,
        cells=cells,
        state_dict=state_dict,
        source=name,
        source_sha256=hashlib.sha256(raw).hexdigest(),
    )


def open_named_networks(path: Path, names: Collection[str] | None, n_classes: int) -> list[NetworkReader]:
    """Return readers of the files at a path that are named after networks. `names` selects networks (None: all)."""
    files = {match[1]: file for file, match in matching_files(path, _NAMED_FILE)}
    if not files:
        raise CheckpointError(
            f"Finding weights failed for {path}: there are no files named after networks, such as "
            "resnet18.safetensors. Check the path."
        )

    def absent_message(name: str) -> str:
        return (
            f"Finding weights failed for {name} in {path}: there is no file {name}.safetensors, only files of "
            f"{', '.join(sorted(files)[:4])}. Add the file, or exclude the network."
        )

    return make_network_readers(files, names, partial(_read_state_dict, n_classes=n_classes), absent_message)


STATE_DICTS = numbered_format(
    "state-dicts", "{index:06d}.pth, .pt or .safetensors, one dataset", _FILE_NAME, _read_state_dict
)
