"""Batch sizes that fit into a GPU's memory, measured with passes of a few samples."""

import copy
from functools import partial

import torch

from robust201.core.errors import EvaluationError
from robust201.networks.batch_sizes import SIZES, Maxima
from robust201.networks.device import is_out_of_memory, peak_bytes
from robust201.networks.model import Model

USED_FRACTION = 0.8
"""Fraction of a GPU's memory to use. The rest is for memory that is not measured: fragmentation, test images, and CUDA
itself."""

_TRIAL_SAMPLES = 8
"""Number of samples in the smaller of two trial passes, which measure the memory per sample."""


def fit_memory(
    model: Model,
    image_shape: tuple[int, ...],
    device: torch.device,
    memory: tuple[int, int],
    *,
    share: float,
    attack_bytes: int,
) -> None:
    """Set a model's batch sizes to padded sizes that fit into a GPU's memory, measured with passes of a few samples.

    If no size of `SIZES` fits, the maximum is the smallest size, which can be halved if memory runs out.

    Args:
        model: the model, on the device.
        image_shape: channels, height and width of an image.
        device: the GPU.
        memory: bytes that are free or used by this process, and total bytes of the GPU.
        share: fraction of the GPU's memory that this process may use, in (0, 1].
        attack_bytes: bytes that an attack needs for each sample outside the network.
    """
    model = copy.copy(model)  # a `Classifier` remembers its first gradient check, which black images could fail
    usable_bytes = USED_FRACTION * min(memory[0], share * memory[1])

    def compute(n_samples: int, *, gradient: bool) -> None:
        pixels = torch.zeros(n_samples, *image_shape, device=device)
        if gradient:
            model.loss_and_gradient(pixels, torch.zeros(n_samples, dtype=torch.int64, device=device))
        else:
            model.logits(pixels)

    def largest_size(*, gradient: bool) -> int:
        compute(_TRIAL_SAMPLES, gradient=gradient)  # allocates memory that does not depend on the number of samples
        few_bytes, many_bytes = (
            peak_bytes(device, partial(compute, n_samples, gradient=gradient))
            for n_samples in (_TRIAL_SAMPLES, 2 * _TRIAL_SAMPLES)
        )
        n_samples = usable_bytes / (attack_bytes + (many_bytes - few_bytes) / _TRIAL_SAMPLES)
        return max((size for size in SIZES if size <= n_samples), default=SIZES[0])

    sizes = model.batch_sizes
    sizes.maxima, sizes.is_padded = None, False
    maxima = Maxima(SIZES[0], SIZES[0])
    try:
        n_logits = largest_size(gradient=False)
        maxima = Maxima(n_logits, SIZES[0])
        maxima = Maxima(n_logits, largest_size(gradient=True))
    except EvaluationError:  # the network has no gradient, which later passes with gradients will report
        pass
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    sizes.maxima, sizes.is_padded = maxima, True
