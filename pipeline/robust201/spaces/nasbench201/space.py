"""NAS-Bench-201 as a `Space`: cells in a macro skeleton."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ConfigError
from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, Normalisation
from robust201.spaces.base import Space
from robust201.spaces.nasbench201 import cells

if TYPE_CHECKING:
    import torch
    from torch import nn

    from robust201.engine.model import CompiledNetwork


class NasBench201(Space):
    """The cells of NAS-Bench-201 in a skeleton of C `channels` (published: 16) and N `cells` a stage (published: 5)."""

    name = cells.SPACE

    def __init__(self, channels: int = 16, cells: int = 5) -> None:
        self.channels = channels
        self.cells = cells

    def identity(self) -> dict[str, Any]:
        """The skeleton (see `Space`)."""
        return {"channels": self.channels, "cells": self.cells}

    def select(self, selection: str | Sequence[int | str]) -> tuple[int, ...]:
        """Resolve indices, ranges such as ``0-99`` (those evaluated in it) and cell strings (see `Space`).

        A single architecture stands for its isomorphism class: its lowest index is taken.
        """
        evaluated = cells.evaluated_indices()
        if selection == "evaluated":
            return evaluated
        names = self._names(selection)
        indices: set[int] = set()
        for name in names:
            bounds = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", name) if isinstance(name, str) else None
            if bounds:
                first, last = (cells.resolve(int(bound)).index for bound in bounds.groups())
                indices.update(index for index in evaluated if first <= index <= last)
            else:
                indices.add(cells.resolve(name).isomorph)
        if not indices:
            raise ConfigError(
                f"Selecting architectures failed for {', '.join(map(str, names)) or 'an empty list'}: expected at "
                "least one evaluated index, got none. "
                "Name indices, ranges such as 0-99, or cell strings."
            )
        return tuple(sorted(indices))

    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> int:
        """Count multiply-accumulates of convolutions and the linear layer (see `Space`)."""
        return cells.multiply_accumulates(
            self._spec(architecture),
            channels=self.channels,
            cells=self.cells,
            n_classes=n_classes,
            image_size=image_size,
        )

    def build(self, architecture: ArchitectureId, *, n_classes: int) -> "nn.Module":
        """Build the published network (see `Space`)."""
        from robust201.spaces.nasbench201.network import build_network

        return build_network(self._spec(architecture), channels=self.channels, cells=self.cells, n_classes=n_classes)

    def compile(
        self,
        architecture: ArchitectureId,
        network: "nn.Module",
        normalisation: Normalisation,
        *,
        n_classes: int,
        device: "torch.device",
        precision: Precision,
    ) -> "CompiledNetwork":
        """Fold and merge what can be (see `Space` and `compiled.compile_network`)."""
        from robust201.spaces.nasbench201.compiled import compile_network

        return compile_network(
            network, self._spec(architecture), normalisation, n_classes=n_classes, device=device, precision=precision
        )

    @staticmethod
    def _spec(architecture: ArchitectureId) -> str:
        return cells.resolve(architecture).spec
