"""What attacks and measures ask of a network: logits of pixels, and the gradient of any function of the logits."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import torch

Objective: TypeAlias = Callable[[torch.Tensor, slice], torch.Tensor]
"""(logits (b, C) float32, which rows of the pixels they are of) → one value per image (b,), differentiable by autograd,
each from its own row alone. It is called outside of inference mode: tensors made inside of it must be cloned there."""


class Model(Protocol):
    """A frozen network that answers pixels with logits and with gradients.

    Pixels are (B, 3, H, W) float32 in [0, 1], labels (B,) int64, logits (B, C) float32. All methods work inside and
    outside of `torch.inference_mode`, and change no state of torch.
    """

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify: (B, C)."""
        ...

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Classify, and differentiate the sum of the cross-entropies with respect to the pixels.

        Returns:
            Logits (B, C), each image's cross-entropy (B,) and the gradient (B, 3, H, W).
        """
        ...

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Classify, and differentiate the sum of an objective with respect to the pixels.

        Args:
            pixels: (B, 3, H, W).
            objective: what is differentiated. A model that shows images in several batches calls it once per batch.

        Returns:
            Logits (B, C), the objective's values (B,) and the gradient (B, 3, H, W).
        """
        ...


class CompiledNetwork(Model, Protocol):
    """A network rewritten for speed, which equals the plain one within rounding.

    Attributes:
        device: where it computes.
        chunk: maximum number of images per pass; None for no limit.
        shown: images that the last call sent through it at once.
        min_batch: images that go through it together, at least: smaller batches are filled up.
    """

    device: torch.device
    chunk: int | None
    shown: int
    min_batch: int

    @property
    def is_constant(self) -> bool:
        """Whether its output does not depend on its input, so that nothing is computed."""
        ...

    def sample_bytes(self, image_size: int, *, gradient: bool) -> int:
        """Estimate from above the memory that one sample takes on its way."""
        ...


def differentiate_objective(
    objective: Objective, logits: torch.Tensor, rows: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Evaluate an objective, and differentiate its sum with respect to the logits.

    Args:
        objective: what is differentiated.
        logits: (b, C) float32; they are not part of any graph.
        rows: of which pixels they are.

    Returns:
        Values (b,) and gradient (b, C), both without a graph.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        leaf = logits.detach().clone().requires_grad_()
        values = objective(leaf, rows)
        (gradient,) = torch.autograd.grad(values.sum(), [leaf])
    return values.detach(), gradient


class WindowSearch(Protocol):
    """Answers proposals that change accepted images in one window, at the same place in each."""

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        """Classify the accepted images with a window replaced.

        Args:
            row: the window's first row.
            column: the window's first column.
            window: (B, 3, h, w) float32 in [0, 1].

        Returns:
            (B, C) float32: what `Model.logits` answers to the whole images, within rounding.
        """
        ...

    def accept(self, accepted: torch.Tensor) -> None:
        """Make the last window a part of some images.

        Args:
            accepted: (B,) bool.
        """
        ...


@runtime_checkable
class WindowModel(Protocol):
    """A `Model` that can do better than to look at whole images where only a window changes."""

    def window_search(self, pixels: torch.Tensor, sides: Sequence[int]) -> WindowSearch | None:
        """Prepare to answer proposals.

        Args:
            pixels: (B, 3, H, W) float32 in [0, 1], the accepted images.
            sides: rows and columns of the window in each query to come.

        Returns:
            The search; None where `Model.logits` is as fast.
        """
        ...


class _WholeSearch:
    """A search that shows whole images.

    Args:
        model: the model.
        proposals: (B, 3, H, W), which the caller changes before each query.
    """

    def __init__(self, model: Model, proposals: torch.Tensor) -> None:
        self._model = model
        self._proposals = proposals

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        return self._model.logits(self._proposals)

    def accept(self, accepted: torch.Tensor) -> None:
        """Do nothing: the caller's images are all there is."""


def start_search(model: Model, pixels: torch.Tensor, sides: Sequence[int]) -> WindowSearch:
    """Prepare to answer proposals, as locally as the model can.

    Args:
        model: the model.
        pixels: (B, 3, H, W) float32, the accepted images; the caller writes each proposal into them, too.
        sides: rows and columns of the window in each query to come.
    """
    search = model.window_search(pixels, sides) if isinstance(model, WindowModel) else None
    return _WholeSearch(model, pixels) if search is None else search
