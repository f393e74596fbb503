"""A plain folder of state_dicts, one file a network: ``{index:06d}.pth``, ``.pt`` or ``.safetensors``.

Such files say nothing but the tensors: the dataset, the length and the seed of the training are what the caller says.
"""

import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from robust201.core.errors import CheckpointError
from robust201.core.unpickling import load_torch
from robust201.weights.published.base import (
    DEFAULT_SEED,
    Member,
    NumberedFile,
    Selection,
    SourceWeights,
    WeightsFormat,
    has_numbered_files,
    infer_size,
    no_records,
    numbered_files,
    require_state_dict,
)

_FILE_NAME = re.compile(r"(\d{1,6})\.(?:pth|pt|safetensors)")
_MAX_HEADER_BYTES = 100 << 20  # as safetensors itself allows


def safetensors_size(stream: BinaryIO) -> int | None:
    """Tell how long a safetensors file should be from its header (eight bytes of length, then JSON with offsets).

    Args:
        stream: the file, at its beginning.

    Returns:
        Bytes; None where there is no such header.
    """
    length = int.from_bytes(stream.read(8), "little")
    if length > _MAX_HEADER_BYTES:
        return None
    try:
        tensors = json.loads(stream.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return 8 + length + int(max(ends, default=0))


def parse_safetensors(raw: bytes, name: str) -> dict[str, Any]:
    """Read the bytes of a safetensors file.

    Args:
        raw: the file's bytes.
        name: file for messages.

    Returns:
        CPU tensors by name.

    Raises:
        CheckpointError: they are truncated or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors: dict[str, Any] = load(raw)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"Reading weights failed for {name}: expected a whole safetensors file, got a truncated or damaged one "
            f"({error}). Import the weights again."
        ) from error
    return tensors


def _member(file: NumberedFile) -> Member:
    name = str(file.path)

    def weights(selection: Selection) -> Iterator[SourceWeights]:
        if selection.datasets is None or len(selection.datasets) != 1:
            got = "none" if selection.datasets is None else ", ".join(selection.datasets)
            raise CheckpointError(
                f"Reading weights failed for {file.path.parent}: expected the one dataset that these networks were "
                f"trained on, got {got}. Name it with --datasets."
            )
        raw, sha256 = file.read()
        content = parse_safetensors(raw, name) if name.endswith(".safetensors") else load_torch(io.BytesIO(raw), name)
        if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
            content = content["state_dict"]
        state_dict = require_state_dict(content, name)
        channels, cells, n_classes = infer_size(state_dict, name)
        yield SourceWeights(
            index=file.index,
            spec=None,
            dataset=selection.datasets[0],
            epochs=int(selection.hp),
            seed=DEFAULT_SEED if selection.seed is None else selection.seed,
            n_classes=n_classes,
            channels=channels,
            cells=cells,
            state_dict=state_dict,
            source=name,
            source_sha256=sha256,
        )

    return Member(file.index, name, weights, no_records)


def _members(path: Path, indices: Collection[int] | None) -> list[Member]:
    return numbered_files(path, _FILE_NAME, indices, _member)


STATE_DICTS = WeightsFormat(
    name="state-dicts",
    description="{index:06d}.pth, .pt or .safetensors, one dataset",
    matches=lambda path: has_numbered_files(path, _FILE_NAME),
    members=_members,
)
