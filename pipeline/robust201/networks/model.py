"""The interface of networks for attacks and measures: logits of pixels, and gradients of functions of the logits."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import torch

from robust201.networks.batch_sizes import BatchSizes

Objective: TypeAlias = Callable[[torch.Tensor, slice], torch.Tensor]
"""Function that returns one value per image (b,), given logits (b, C) float32 and the slice of their images.

Autograd must be able to differentiate it, and each value must depend only on its own row of the logits. It is called
outside inference mode, so it must clone tensors that were created in inference mode."""


class Model(Protocol):
    """A frozen network that computes logits and gradients from pixels.

    Pixels are (B, channels, H, W) float32 in [0, 1], labels (B,) int64 and logits (B, C) float32. All methods work
    inside and outside `torch.inference_mode`, and none changes torch's settings or random state.
    """

    @property
    def batch_sizes(self) -> BatchSizes:
        """Numbers of images per pass."""
        ...

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logits, (B, C)."""
        ...

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the logits, the cross-entropies, and the gradient of their sum with respect to the pixels.

        Returns:
            Logits (B, C), each image's cross-entropy (B,) and the gradient (B, channels, H, W).
        """
        ...

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the logits, the objective's values, and the gradient of their sum with respect to the pixels.

        Args:
            pixels: (B, channels, H, W).
            objective: function to differentiate. A model that splits images into batches calls it once per batch.

        Returns:
            Logits (B, C), the objective's values (B,) and the gradient (B, channels, H, W).
        """
        ...


class CompiledNetwork(Model, Protocol):
    """A network rewritten for speed, whose results equal those of the original within rounding.

    `device` is the device of the network.
    """

    device: torch.device

    @property
    def is_constant(self) -> bool:
        """Whether the output does not depend on the input, so that passes compute nothing."""
        ...


def differentiate_objective(
    objective: Objective, logits: torch.Tensor, rows: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values of an objective, and the gradient of their sum with respect to the logits.

    Args:
        objective: function to differentiate.
        logits: (b, C) float32, without a graph.
        rows: slice of the images that the logits belong to.

    Returns:
        Values (b,) and gradient (b, C), neither with a graph.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        leaf = logits.detach().clone().requires_grad_()
        values = objective(leaf, rows)
        (gradient,) = torch.autograd.grad(values.sum(), [leaf])
    return values.detach(), gradient


class WindowSearch(Protocol):
    """A random search, such as Square Attack, that changes one window of the images in each step.

    It evaluates proposals, which differ from the accepted images in one window, at the same position for all images.
    """

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        """Return the logits of the accepted images with a window replaced.

        Args:
            row: first row of the window.
            column: first column of the window.
            window: (B, channels, h, w) float32 in [0, 1].

        Returns:
            Logits (B, C) float32, equal to `Model.logits` of the full images within rounding.
        """
        ...

    def accept(self, accepted: torch.Tensor) -> None:
        """Accept the last window for some images.

        Args:
            accepted: (B,) bool, whether the window is accepted for each image.
        """
        ...


@runtime_checkable
class WindowModel(Protocol):
    """`Model` that can recompute only the affected activations if one window of the images changes."""

    def window_search(self, pixels: torch.Tensor, sides: Sequence[int]) -> WindowSearch | None:
        """Start a search (see `WindowSearch`).

        Args:
            pixels: (B, channels, H, W) float32 in [0, 1], the accepted images.
            sides: side length of the window in each of the following queries.

        Returns:
            The search; None if `Model.logits` of the full images is as fast.
        """
        ...


class _FullSearch:
    """`WindowSearch` that evaluates full images.

    Args:
        model: the model.
        proposals: (B, channels, H, W) float32, which the caller updates before each query.
    """

    def __init__(self, model: Model, proposals: torch.Tensor) -> None:
        self._model = model
        self._proposals = proposals

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        return self._model.logits(self._proposals)

    def accept(self, accepted: torch.Tensor) -> None:
        """Do nothing, because the caller updates the images."""


def start_search(model: Model, pixels: torch.Tensor, sides: Sequence[int]) -> WindowSearch:
    """Start a search. If the model supports it, each query recomputes only what the window affects.

    Args:
        model: the model.
        pixels: (B, channels, H, W) float32, the accepted images; the caller writes each proposal into this tensor.
        sides: side length of the window in each of the following queries.
    """
    search = model.window_search(pixels, sides) if isinstance(model, WindowModel) else None
    return _FullSearch(model, pixels) if search is None else search
