"""Detection of NaN and infinity in the logits and gradients that a network returns to an attack or a measure.

An attack cannot follow a gradient with NaN: the sign of NaN is 0, and a step of length NaN is undone or clipped. The
image would stay where it is, and the network would look robust. A `Watch` therefore counts such results on the device,
without waiting for it, while `WatchedModel` and `Classifier` pass them on unchanged.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from robust201.networks.model import Model, Objective, WindowModel, WindowSearch

NOT_FINITE_ADVICE = (
    "Add a small constant inside square roots and logarithms, and to norms and standard deviations that the network "
    "divides by, or remove these images; if all images fail, check the weights and the normalisation."
)

_MAX_NAMED_IMAGES = 5


def name_images(numbers: Sequence[int]) -> str:
    """Return text such as ``images 3, 17`` or ``images 3, 5, 6, 9, 17 and 8 more``."""
    named_numbers = ", ".join(str(number) for number in numbers[:_MAX_NAMED_IMAGES])
    n_more = len(numbers) - _MAX_NAMED_IMAGES
    return f"image{'s' if len(numbers) > 1 else ''} {named_numbers}{f' and {n_more:,} more' if n_more > 0 else ''}"


def is_transformed() -> bool:
    """Return whether the caller is inside a transform of `torch.func`, such as `vmap` or `jacrev`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class Watch:
    """Counts results of a network that are not finite, and keeps one of the images that caused them.

    Args:
        device: device of the network.
        on_passes: called after each pass with its cost in forward passes of one image: 1 per image, and 2 per gradient.
    """

    def __init__(self, device: torch.device, on_passes: Callable[[int], None] | None = None) -> None:
        self._on_passes = on_passes
        # Tensors created in inference mode could not be updated outside of it.
        with torch.inference_mode(mode=False):
            self._n_faults = torch.zeros((), dtype=torch.int64, device=device)
        self._first_image: torch.Tensor | None = None

    def record(
        self,
        pixels: torch.Tensor,
        logits: torch.Tensor,
        gradient: torch.Tensor | None = None,
        is_defined: torch.Tensor | None = None,
        *,
        cost: int = 1,
    ) -> None:
        """Record a pass.

        Args:
            pixels: (B, C, H, W). Results for images that are not finite themselves do not count.
            logits: (B, C).
            gradient: (B, C, H, W) gradient of the attack's objective with respect to the pixels, if it was computed.
            is_defined: (B,) whether the objective's gradient with respect to the logits is finite. If it is not, the
                attack's objective is at fault, not the network. None means that all are finite.
            cost: cost per image in forward passes.
        """
        if self._on_passes is not None:
            self._on_passes(cost * len(_unwrap(pixels)))
        if is_transformed():
            self._count_transformed(pixels, logits if gradient is None else gradient, is_defined)
            return
        if not len(pixels):
            return
        pixels = pixels.detach()
        is_fault = ~_have_finite_rows(logits)
        if gradient is not None:
            has_gradient_fault = ~_have_finite_rows(gradient)
            is_fault = is_fault | (has_gradient_fault if is_defined is None else has_gradient_fault & is_defined)
        is_fault = is_fault & pixels.flatten(1).sum(dim=1).isfinite()  # pixels in [0, 1] cannot overflow
        candidate = pixels.index_select(0, is_fault.to(torch.uint8).argmax().view(1))
        if self._first_image is None:
            self._first_image = candidate
        else:
            self._first_image = torch.where(self._n_faults > 0, self._first_image, candidate)
        self._n_faults = self._n_faults + is_fault.sum()

    def _count_transformed(self, pixels: torch.Tensor, values: torch.Tensor, is_defined: torch.Tensor | None) -> None:
        """Count a pass inside a transform of `torch.func`, whose tensors have other axes and must not be kept."""
        tensors = [_unwrap(tensor) for tensor in (values, pixels, is_defined) if tensor is not None]
        with temporarily_clear_interpreter_stack():
            is_finite, *conditions = [
                tensor.isfinite().all() if tensor.is_floating_point() else tensor.all() for tensor in tensors
            ]
            self._n_faults = self._n_faults + (~is_finite & torch.stack(conditions).all())

    def observe(self, compute: Callable[[torch.Tensor], torch.Tensor], pixels: torch.Tensor) -> torch.Tensor:
        """Call a differentiable function from pixels to logits; record its logits now and its gradients when computed.

        Args:
            compute: (B, C, H, W) → (B, C).
            pixels: (B, C, H, W).
        """
        if not (torch.is_grad_enabled() and pixels.requires_grad):
            logits = compute(pixels)
            self.record(pixels, logits)
            return logits
        observed = pixels.view_as(pixels)  # the gradient of this view is from this pass only
        logits = compute(observed)
        self.record(pixels, logits)
        finite_rows: list[torch.Tensor] = []
        _call_on_gradient(logits, lambda gradient: finite_rows.append(_have_finite_rows(gradient)))
        _call_on_gradient(observed, lambda gradient: self.record(pixels, logits, gradient, finite_rows[-1], cost=2))
        return logits

    @property
    def n_faults(self) -> torch.Tensor:
        """Number of recorded results that were not finite: () int64, on the device."""
        return self._n_faults

    def describe_faults(
        self, model: Model, images: torch.Tensor, labels: torch.Tensor, numbers: NDArray[np.int64]
    ) -> str:
        """Return text that names the faulty images, with advice; call this only if `n_faults` is not 0.

        Args:
            model: the network.
            images: (N, C, H, W) float32 in [0, 1], the images before the attack.
            labels: (N,) int64.
            numbers: (N,) numbers of the images.
        """
        first_image = images[:1] if self._first_image is None else self._first_image
        is_in_gradient = bool(model.logits(first_image).isfinite().all())
        is_fault = ~torch.cat(
            [
                # Compute only logits if they are faulty, because the network may have no gradient.
                _have_finite_rows(model.loss_and_gradient(*batch)[2] if is_in_gradient else model.logits(batch[0]))
                for batch in zip(*(torch.split(rows, _DIAGNOSIS_BATCH_SIZE) for rows in (images, labels)), strict=True)
            ]
        )
        faulty_numbers = numbers[is_fault.cpu().numpy()].tolist()
        if faulty_numbers:
            location = name_images(faulty_numbers)
        else:
            distances = (images - first_image).flatten(1).norm(dim=1)
            nearest = name_images([int(numbers[int(distances.argmin())])])
            location = f"a perturbed image (nearest original: {nearest})"
        return (
            f"the network's {'gradient is' if is_in_gradient else 'logits are'} NaN or infinite for {location}. "
            f"{NOT_FINITE_ADVICE}"
        )


_DIAGNOSIS_BATCH_SIZE = 64


def _have_finite_rows(values: torch.Tensor) -> torch.Tensor:
    """Return whether all values of each row (B, …) are finite: (B,).

    A sum is finite only if all its terms are. In float64, finite float32 terms cannot overflow.
    """
    return values.detach().flatten(1).sum(dim=1, dtype=torch.float64).isfinite()


def _unwrap(tensor: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor inside a tensor that transforms of `torch.func` wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach()


def _call_on_gradient(tensor: torch.Tensor, function: Callable[[torch.Tensor], None]) -> None:
    """Call a function with each gradient of a tensor that autograd computes, except for gradients batched by vmap."""

    def call(gradient: torch.Tensor) -> None:
        if not torch._C._functorch.is_legacy_batchedtensor(gradient):  # its values cannot be read
            function(gradient)

    tensor.register_hook(call)  # type: ignore[no-untyped-call]


class WatchedModel:
    """`Model` that passes on the results of another model, and records those that are not finite."""

    def __init__(self, model: Model, watch: Watch) -> None:
        self._model = model
        self._watch = watch
        self.batch_sizes = model.batch_sizes

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        logits = self._model.logits(pixels)
        self._watch.record(pixels, logits)
        return logits

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, loss, gradient = self._model.loss_and_gradient(pixels, labels)
        self._watch.record(pixels, logits, gradient, cost=3)
        return logits, loss, gradient

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.inference_mode(mode=False):
            is_defined = torch.ones(len(pixels), dtype=torch.bool, device=pixels.device)

        def watched_objective(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            def record_rows(gradient: torch.Tensor) -> None:
                is_defined[rows] = _have_finite_rows(gradient)

            _call_on_gradient(logits, record_rows)
            return objective(logits, rows)

        logits, values, gradient = self._model.value_and_gradient(pixels, watched_objective)
        self._watch.record(pixels, logits, gradient, is_defined, cost=3)
        return logits, values, gradient

    def window_search(self, pixels: torch.Tensor, sides: Sequence[int]) -> WindowSearch | None:
        search = self._model.window_search(pixels, sides) if isinstance(self._model, WindowModel) else None
        return None if search is None else _WatchedSearch(search, pixels, self._watch)


class _WatchedSearch:
    """`WindowSearch` that records the logits of another search; the caller writes each proposal into `proposals`."""

    def __init__(self, search: WindowSearch, proposals: torch.Tensor, watch: Watch) -> None:
        self._search = search
        self._proposals = proposals
        self._watch = watch

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        logits = self._search.logits(row, column, window)
        self._watch.record(self._proposals, logits)
        return logits

    def accept(self, accepted: torch.Tensor) -> None:
        self._search.accept(accepted)
