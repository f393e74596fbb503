"""NAS-Bench-201 as a `Space`: cells in a macro skeleton."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from robust201.core.errors import ConfigError
from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, Normalisation
from robust201.networks.nb201 import cells, drawing
from robust201.networks.space import Space

if TYPE_CHECKING:
    import torch
    from torch import nn

    from robust201.networks.model import CompiledNetwork


class NasBench201(Space):
    """The cells of NAS-Bench-201 in a macro skeleton.

    The published skeleton has 16 `channels` in the first stage, and 5 `cells` per stage. Isomorphic cells compute the
    same function, so only one cell of each isomorphism class is evaluated.

    Attributes:
        title: name of the space in reports.
        about: sentence in reports that describes the space's networks.
        max_kernel_parameters: the largest number of kernel parameters of a cell.
        reference_kernel_parameters: number of kernel parameters for figures that compare cells of equal size.
    """

    name = cells.SPACE
    has_text_ids = False
    is_sized = True
    is_batch_invariant = True

    title = "NAS-Bench-201"
    about = (
        "A NAS-Bench-201 network repeats one cell: four nodes (in, 1, 2, out), and on each of its six edges one of "
        f"five operations, which makes {cells.N_ARCHITECTURES:,} cells."
    )
    operations = cells.OPERATIONS
    operation_labels = drawing.OPERATION_LABELS
    operation_colours = drawing.OPERATION_COLOURS
    edges = cells.EDGES
    edge_labels = cells.EDGE_LABELS
    specs = staticmethod(cells.specs)
    isomorphs = staticmethod(cells.isomorphs)
    parse = staticmethod(cells.parse)
    kernel_parameters = staticmethod(cells.kernel_parameters)
    max_kernel_parameters = 54
    # There are 408 cells with this number of kernel parameters (Jung, Lukasik and Keuper, ICLR 2023, section 4.3).
    reference_kernel_parameters = 18
    edit_distance = staticmethod(cells.edit_distance)
    neighbours = staticmethod(cells.neighbours)
    draw_cell = staticmethod(drawing.draw_cell)

    def __init__(self, channels: int = 16, cells: int = 5) -> None:
        self.channels = channels
        self.cells_per_stage = cells

    def with_size(self, *, channels: int, cells: int) -> "NasBench201":
        return NasBench201(channels, cells)

    def spec(self, architecture: ArchitectureId) -> str:
        return cells.specs()[cells.resolve(architecture)]

    def identity(self) -> dict[str, Any]:
        return {"channels": self.channels, "cells": self.cells_per_stage}

    def select(self, selection: str | Sequence[int | str]) -> tuple[int, ...]:
        """Resolve indices, cell strings, and ranges such as ``0-99`` (see `Space`).

        A range selects the evaluated indices in it. An index or cell string selects the lowest index of its isomorphism
        class.
        """
        evaluated = cells.evaluated_indices()
        if selection == "evaluated":
            return evaluated
        names = self._split_names(selection)
        indices: set[int] = set()
        for name in names:
            bounds = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", name) if isinstance(name, str) else None
            if bounds:
                first, last = map(cells.resolve, bounds.groups())
                indices.update(index for index in evaluated if first <= index <= last)
            else:
                indices.add(self.resolve(name))
        if not indices:
            raise ConfigError(
                f"Selecting architectures failed for {', '.join(map(str, names))}: this selects no evaluated "
                "architecture. List indices, ranges such as 0-99, or cell strings."
            )
        return tuple(sorted(indices))

    def resolve(self, name: int | str) -> int:
        return cells.isomorphs()[cells.resolve(name)]

    def parameter_count(self, architecture: ArchitectureId, *, n_classes: int) -> int:
        """Return the number of trainable parameters."""
        return cells.parameter_count(self.spec(architecture), n_classes=n_classes, **self.identity())

    def tensor_shapes(self, architecture: ArchitectureId, *, n_classes: int) -> dict[str, tuple[int, ...]]:
        return cells.tensor_shapes(self.spec(architecture), n_classes=n_classes, **self.identity())

    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> int:
        """Return the multiply-accumulates of convolutions and the linear layer (see `Space`)."""
        spec = self.spec(architecture)
        return cells.multiply_accumulates(spec, n_classes=n_classes, image_size=image_size, **self.identity())

    def build(self, architecture: ArchitectureId, *, n_classes: int) -> "nn.Module":
        from robust201.networks.nb201.network import Network

        return Network(self.spec(architecture), n_classes=n_classes, **self.identity())

    def compile(
        self,
        architecture: ArchitectureId,
        network: "nn.Module",
        normalisation: Normalisation,
        *,
        device: "torch.device",
        precision: Precision,
    ) -> "CompiledNetwork":
        from robust201.networks.nb201.compiled import compile_network
        from robust201.networks.nb201.network import Network

        spec = self.spec(architecture)
        return compile_network(cast("Network", network), spec, normalisation, device=device, precision=precision)
