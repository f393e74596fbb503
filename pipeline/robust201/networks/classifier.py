"""Make any network a `Model`: normalise pixels in [0, 1], and compute logits, and gradients by autograd."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from robust201.core.errors import EvaluationError, NetworkError
from robust201.core.precision import Precision
from robust201.core.records import Normalisation
from robust201.networks.batch_sizes import BatchSizes
from robust201.networks.device import check_device, feature_map_dtype
from robust201.networks.model import CompiledNetwork, Objective
from robust201.networks.watch import Watch, is_transformed

_Network = TypeVar("_Network", bound=nn.Module)

_PROBE_STEP = 8 / 255
"""Change of each pixel towards grey, to compare the change of the logits with their gradient."""

_MAX_CHANGE_RATIO = 100.0
"""Maximum change of the logits relative to the change that the gradient predicts. Kinks of ReLUs cause far less."""

_MIN_CHANGE = 1e-3
"""Change, relative to the largest logit, that is too large to be caused by rounding in float32."""


def cast_convolutions(network: _Network, dtype: torch.dtype) -> _Network:
    """Copy a network and convert the parameters of its 2D convolutions, and only these, to another dtype.

    This implements ``bf16`` in the reference engine. Autocast is not used for three reasons: it also computes the
    classifier's matrix product in bfloat16, its lists of operations differ between CPU and CUDA and between versions of
    PyTorch, and it is a setting of the thread. Here, the arithmetic follows from the dtypes of the tensors.

    Args:
        network: a network with float32 weights.
        dtype: dtype of the convolutions' parameters; each parameter is rounded once.

    Returns:
        The copy. Its BatchNorm layers return the dtype of their inputs and use float32 statistics.
    """
    network_copy = copy.deepcopy(network)
    for module in network_copy.modules():
        if isinstance(module, nn.Conv2d):
            module.to(dtype)
    return network_copy


def network_logits(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the logits (B, C) of normalised images.

    Raises:
        NetworkError: the output is not a dense tensor with values. No tensor is picked from a tuple or dictionary,
            because a wrong choice gives wrong numbers.
    """
    output = network(images)
    if not isinstance(output, torch.Tensor):
        got = f"an object of type {type(output).__name__}"
    elif output.is_meta:
        got = "a tensor without values (device meta)"
    elif output.layout is not torch.strided:
        got = f"a sparse tensor ({output.layout})"
    else:
        return output
    raise NetworkError(
        f"Reading the network's output failed for {type(network).__name__}: expected a dense tensor of logits (images, "
        f"classes), got {got}. Wrap the network in a torch.nn.Module whose forward returns the logits alone."
    )


class Classifier(nn.Module):
    """`Model` that computes gradients by autograd: a frozen network in evaluation mode, and its normalisation.

    Args:
        network: module that maps normalised images (B, channels, H, W) float32 to logits (B, C).
        normalisation: per-channel mean and standard deviation.
        n_classes: number of classes C.
        device: device to compute on.
        batch_sizes: numbers of images per pass; None for the device's defaults. They are not part of the protocol (the
            settings that determine a result), because random numbers do not depend on them.
        precision: arithmetic of the network (`core.precision.PRECISIONS`). ``bf16`` uses a copy of the network and
            bfloat16 images; the network must keep this dtype up to its float32 head, as in
            `networks.nb201.network.Network`. ``tf32`` requires `networks.device.configure_torch`.
        dtype: floating-point dtype of the network. Normalised images and gradients are computed in this dtype, but
            logits and gradients are returned as float32.
        channels_last: whether to use the channels_last memory format for images and convolution weights. It is faster
            on a CPU, and results change within rounding. The weights are converted in place, and the network must not
            call `view` on its feature maps (`flatten` and `reshape` are possible).

    Attributes:
        compiler: function that compiles the network in its current state for a device, or returns None if it cannot;
            None for networks without a compiled form.
        notices: warnings that accuracies of the network are doubtful, from `networks.network_check`.
        checked_outputs: images and logits of `network_check.check_network`; evaluations must not change the logits.

    Raises:
        ConfigError: the precision is unknown, or the device does not support it.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        network: nn.Module,
        normalisation: Normalisation,
        n_classes: int,
        *,
        device: torch.device | str = "cpu",
        batch_sizes: BatchSizes | None = None,
        precision: Precision = "fp32",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        check_device(torch.device(device), precision)
        self.precision = precision
        self.dtype = dtype
        self._feature_map_dtype = feature_map_dtype(precision)
        self.network = (
            network if self._feature_map_dtype is torch.float32 else cast_convolutions(network, self._feature_map_dtype)
        )
        if dtype is not torch.float32:
            self._feature_map_dtype = dtype
        self._layout = torch.channels_last if channels_last else torch.preserve_format
        if channels_last:
            # Other modules are not converted, because tensors of five dimensions do not support this format.
            for module in self.network.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.data = module.weight.data.contiguous(memory_format=self._layout)
        self.n_classes = n_classes
        self.batch_sizes = batch_sizes or BatchSizes.on(torch.device(device))
        self.compiler: Callable[[nn.Module, torch.device], CompiledNetwork | None] | None = None
        self.notices: tuple[str, ...] = ()
        self.checked_outputs: tuple[torch.Tensor, torch.Tensor] | None = None
        self._watch: Watch | None = None
        self._is_differentiable: bool | None = None
        self._is_constant: bool | None = None
        self.register_buffer("mean", torch.tensor(normalisation.mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(normalisation.std).view(1, -1, 1, 1))
        self.requires_grad_(requires_grad=False)
        self.eval()
        self.to(device)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def _network_logits(self, pixels: torch.Tensor) -> torch.Tensor:
        normalised = (pixels - self.mean) / self.std
        logits = network_logits(self.network, normalised.to(self._feature_map_dtype, memory_format=self._layout))
        return logits if self.dtype is torch.float32 else logits.float()

    def _logits(self, pixels: torch.Tensor) -> torch.Tensor:
        logits = self._network_logits(pixels)
        if torch.is_grad_enabled() and pixels.requires_grad and self._is_differentiable is False:
            # The logits of a network without a path from input to output do not depend on the pixels. Attacks then need
            # a zero gradient instead of an error. Pixels are finite, so the added term is exactly 0.
            self._reject_hidden_gradient(pixels, logits)
            logits = logits.detach() + 0.0 * pixels.flatten(1).sum(dim=1, keepdim=True)
        return logits

    def _has_gradient(self, pixels: torch.Tensor) -> bool:
        """Return whether the first image's logits have a gradient that explains how they change with the pixels.

        Only computing the gradient tells: `requires_grad` may stem from hidden parameters, and operations without a
        derivative, such as quantised ones, are nodes of autograd's graph. A network that is partly detached has a
        gradient, but its logits change far more than the gradient allows.
        """
        image = pixels[:1].detach().clone().requires_grad_()
        logits = self._network_logits(image)
        weights = torch.linspace(-1, 1, logits.shape[-1], device=logits.device)  # a sum of probabilities is constant
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns about operations without a derivative
            if not logits.requires_grad:
                return False
            gradients = torch.autograd.grad((logits * weights).sum(), [image], allow_unused=True)
        gradient = cast("torch.Tensor | None", gradients[0])
        if gradient is None or self.precision != "fp32" or self.dtype in {torch.float16, torch.bfloat16}:
            return gradient is not None
        with torch.no_grad():
            change = (self._network_logits(image + (0.5 - image).sign() * _PROBE_STEP) - logits).abs().max()
        allowed_change = _MAX_CHANGE_RATIO * _PROBE_STEP * gradient.abs().sum()
        # A gradient of exactly 0 proves nothing, because ReLUs may be inactive. A comparison with NaN is false.
        return not bool((change > allowed_change + _MIN_CHANGE * logits.abs().max()) & (allowed_change > 0))

    def _reject_hidden_gradient(self, pixels: torch.Tensor, logits: torch.Tensor) -> None:
        """Reject a network whose logits depend on the image but have no gradient, because it would seem robust."""
        if self._is_constant is None:
            with torch.no_grad():
                self._is_constant = bool((self._logits(1 - pixels) - logits).abs().max() <= 1e-6)
        if not self._is_constant:
            raise EvaluationError(
                f"Computing a gradient failed for {type(self.network).__name__}: its logits depend on the images, but "
                "have no gradient, or one that is far too small (because of torch.no_grad, detach or another library). "
                "Gradient attacks would make the network look robust. Correct the network, or use only attacks without "
                "gradients."
            )

    def watched(self, watch: Watch) -> "Classifier":
        """Return a copy that shares all tensors, and whose logits and gradients are watched."""
        classifier = copy.copy(self)
        classifier._watch = watch
        return classifier

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logits of images.

        Args:
            pixels: (B, C, H, W) float32 in [0, 1], with as many channels as the normalisation.

        Returns:
            Logits (B, C) float32, differentiable with respect to the pixels.
        """
        if self._watch is not None:
            return self._watch.observe(self._logits_in_batches, pixels)
        return self._logits_in_batches(pixels)

    def _logits_in_batches(self, pixels: torch.Tensor) -> torch.Tensor:
        needs_gradient = torch.is_grad_enabled() and pixels.requires_grad
        # Inside a transform of `torch.func`, the gradient of a pass cannot be computed separately.
        if self._is_differentiable is None and needs_gradient and not is_transformed():
            self._is_differentiable = self._has_gradient(pixels)
        batches = self.batch_sizes.split(len(pixels), gradient=needs_gradient)
        compute: Callable[[torch.Tensor], torch.Tensor] = self._logits
        if needs_gradient and len(batches) > 1:
            # Checkpointing recomputes each batch in the backward pass, so the activations of only one batch are in
            # memory. A network in evaluation mode uses no random numbers, so there is no random state to preserve.
            compute = partial(checkpoint, self._logits, use_reentrant=False, preserve_rng_state=False)
        logits = [batch.without_padding(compute(batch.rows(pixels))) for batch in batches]
        if not logits:
            return self._logits(pixels)
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self(pixels)
        return logits

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        def cross_entropy(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            # Labels created in inference mode cannot be part of an autograd graph, but their copies can.
            return functional.cross_entropy(logits, labels[rows].clone(), reduction="none")

        return self.value_and_gradient(pixels, cross_entropy)

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.inference_mode(mode=False), torch.enable_grad():
            # Tensors created in inference mode cannot be part of an autograd graph, but their copies can.
            pixels = pixels.clone().requires_grad_()
            logits: torch.Tensor = self(pixels)
            values = objective(logits, slice(0, len(pixels)))
            (gradient,) = torch.autograd.grad(values.sum(), [pixels])
        return logits.detach(), values.detach(), gradient
