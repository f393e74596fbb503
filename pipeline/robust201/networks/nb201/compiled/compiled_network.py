"""The compiled form of a NAS-Bench-201 network, for faster attacks.

Its logits and input gradients equal those of the uncompiled network up to rounding.
"""

import ctypes
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from robust201.core.memory import keep_freed_memory
from robust201.core.precision import Precision
from robust201.core.records import Normalisation
from robust201.networks.batch_sizes import CPU_SAMPLES, Batch, BatchSizes
from robust201.networks.classifier import cast_convolutions
from robust201.networks.device import check_device, feature_map_dtype, has_avx512
from robust201.networks.model import Objective, differentiate_objective
from robust201.networks.nb201.compiled import kernels, native
from robust201.networks.nb201.compiled.blocks import Block, CellBlock, NeededForms, ReductionBlock, Tape, Value
from robust201.networks.nb201.compiled.folding import batch_norm_affine, fold
from robust201.networks.nb201.compiled.kernels import Convolution, Linear, transpose_kernel
from robust201.networks.nb201.compiled.lowering import fits_structures
from robust201.networks.nb201.compiled.native_network import NativeNetwork
from robust201.networks.nb201.compiled.native_search import NativeSearch
from robust201.networks.nb201.compiled.program import CellProgram, plan_cell
from robust201.networks.nb201.network import Network

MIN_BATCH = 8
"""Minimum number of images per pass. An image's logits must not depend on the batch size, but libraries use different
kernels, which round differently, for one to three images."""


class InferenceNetwork:
    """A network compiled for inference with `compile_network`.

    Its outputs equal those of the uncompiled network of the same precision up to rounding, but not bit by bit, because
    folded weights are rounded differently.

    Args:
        library: the native library, which runs the passes that it supports, on a CPU in float32; None to use PyTorch.

    Attributes:
        is_constant: whether the logits are the same for all images.
        batch_sizes: numbers of images per pass.
    """

    def __init__(
        self,
        network: Network,
        program: CellProgram,
        normalisation: Normalisation,
        device: torch.device,
        dtype: torch.dtype,
        library: ctypes.CDLL | None = None,
    ) -> None:
        self.device = device
        self.n_classes = network.classifier.out_features
        self._classes = torch.arange(self.n_classes, device=device)
        self.batch_sizes = BatchSizes.on(device, cpu_samples=CPU_SAMPLES, minimum=MIN_BATCH)
        self._dtype = dtype
        self._uncompiled = network
        self._channels = network.classifier.in_features // 4  # in the first stage; each reduction doubles them
        self.is_constant = program.output_node is None
        self._classifier = Linear(network.classifier.weight, network.classifier.bias, device=device)
        self._constant_logits: dict[tuple[int, ...], torch.Tensor] = {}
        if self.is_constant:
            return
        self._blocks, needed_forms = _build_blocks(network, program, device, dtype)
        self._stem_forms = needed_forms
        self._mean = torch.tensor(normalisation.mean, device=device).view(1, 3, 1, 1)
        std = torch.tensor(normalisation.std, dtype=torch.float64, device=network.classifier.weight.device)
        weight, bias = fold(network.stem[0], network.stem[1])  # type: ignore[arg-type]
        weight = weight / std.view(1, 3, 1, 1)
        self._stem = Convolution(weight, bias, device=device, dtype=dtype)
        self._stem_gradient = _StemGradient(weight, device=device, dtype=dtype)
        scale, shift = batch_norm_affine(network.lastact[0])  # type: ignore[arg-type]
        self._scale = scale.to(device, torch.float32).view(1, -1, 1, 1)
        self._shift = shift.to(device, torch.float32).view(1, -1, 1, 1)
        self._native: NativeNetwork | None = None
        if device.type == "cpu" and dtype is torch.float32:
            stem_gradient = self._stem_gradient.block_convolution
            # Use the library only if PyTorch would use oneDNN's fused kernels, which give bit-identical results.
            is_supported = self._channels == native.LANES and fits_structures(self._blocks)
            if library is not None and is_supported and kernels.has_fused_convolution():
                self._native = NativeNetwork(
                    self._blocks, self._stem, needed_forms, stem_gradient, self._mean, self._channels, library
                )

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return logits (B, C) of pixels (B, 3, H, W) in [0, 1], both float32. H and W are multiples of 4."""
        if self.is_constant:
            return self._constant_output(pixels)
        # Create the result outside inference mode, so that callers may write to it and use it with autograd.
        logits = torch.empty(len(pixels), self.n_classes, device=self.device)
        with torch.inference_mode():
            for batch in self.batch_sizes.split(len(pixels)):
                activations = self._activations(self._forward(batch.rows(pixels), None))
                logits[batch.slice] = batch.without_padding(self._classify(activations))
        return logits

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        def cross_entropy(logits: torch.Tensor, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
            log_probabilities = functional.log_softmax(logits, dim=1)
            loss = -log_probabilities.gather(1, labels[rows, None])[:, 0]
            # Compare instead of scattering, which is not deterministic on every device.
            is_label = (labels[rows, None] == self._classes).to(log_probabilities.dtype)
            # Use autograd's formula, because torch.exp would call MKL, which rounds differently on AMD processors.
            return loss, torch.ops.aten._log_softmax_backward_data(-is_label, log_probabilities, 1, is_label.dtype)

        return self._differentiate(pixels, cross_entropy)

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self._differentiate(pixels, functools.partial(differentiate_objective, objective))

    def _differentiate(
        self, pixels: torch.Tensor, evaluate_logits: Callable[[torch.Tensor, slice], tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the forward and backward pass.

        `evaluate_logits` maps logits (b, C) and the slice of their images to values (b,) and the gradient (b, C) of
        their sum.
        """
        n_images = len(pixels)
        if self.is_constant:
            logits = self._constant_output(pixels)
            return logits, evaluate_logits(logits, slice(0, n_images))[0], torch.zeros_like(pixels)
        logits = torch.empty(n_images, self.n_classes, device=self.device)
        values = torch.empty(n_images, device=self.device)
        gradient = torch.empty_like(pixels)
        with torch.inference_mode():
            native_network = self._native_for(pixels)
            max_images = None if native_network is None else native_network.max_gradient_images()
            for batch in self.batch_sizes.split(n_images, gradient=True, maximum=max_images):
                batch_pixels, rows = batch.rows(pixels), batch.slice
                tapes: list[Tape] = [{} for _ in self._blocks]
                activations = self._activations(self._forward(batch_pixels, tapes))
                logits[rows] = batch.without_padding(self._classify(activations))
                values[rows], logit_gradient = evaluate_logits(logits[rows], rows)
                padding = logit_gradient.new_zeros(batch.size - len(logit_gradient), self.n_classes)
                padded_gradient = torch.cat([logit_gradient, padding]) if len(padding) else logit_gradient
                gradient[rows] = batch.without_padding(
                    self._backward(batch_pixels, padded_gradient, activations, tapes)
                )
        return logits, values, gradient

    def window_search(self, pixels: torch.Tensor, sides: Sequence[int]) -> NativeSearch | None:
        """Start a search whose proposals change one window of an image at a time.

        `sides` contains the side length of the window in each upcoming query. The search returns the same logits as
        `logits`. Return None if a search would not be faster than `logits`: for large windows, few queries, networks in
        which changes spread quickly, and more images than fit into one batch. Without the native library, always return
        None. The choice never depends on the values of pixels.
        """
        max_images = max(self.batch_sizes.maximum() or 0, MIN_BATCH)
        if self.is_constant or not 0 < len(pixels) <= max_images:
            return None
        native_network = self._native_for(pixels)
        depth = 0 if native_network is None else native_network.choose_search_depth(sides, *pixels.shape[2:])
        if native_network is None or depth == 0:
            return None
        pixels = Batch(0, len(pixels), max(len(pixels), MIN_BATCH)).rows(pixels)
        return native_network.search(pixels, depth, self._classify_features, max_images)

    def _native_for(self, pixels: torch.Tensor) -> NativeNetwork | None:
        """Return the native network if there is one and it supports this image size; otherwise None."""
        return self._native if self._native is not None and self._native.supports(pixels) else None

    def _forward(self, pixels: torch.Tensor, tapes: list[Tape] | None) -> torch.Tensor:
        """Return the last block's output (b, 4 * channels, H / 4, W / 4) for pixels (b, 3, H, W) float32."""
        native_network = self._native_for(pixels)
        if native_network is not None:
            return native_network.forward(pixels, keep=tapes is not None)
        # Subtract the mean from the pixels instead of folding it into the bias: the stem pads the normalised image with
        # zeros, which correspond to pixels with the mean colour.
        centred = (pixels - self._mean).to(self._dtype).contiguous(memory_format=torch.channels_last)
        if self._stem_forms.raw:
            value = Value.of(self._stem(centred), self._stem_forms)
        else:
            value = Value(None, self._stem(centred, rectify=True))
        for position, block in enumerate(self._blocks):
            value = block.forward(value, None if tapes is None else tapes[position])
        return value.raw

    def _activations(self, features: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(self._shift, features.to(torch.float32), self._scale).relu_()

    def _classify_features(self, features: torch.Tensor) -> torch.Tensor:
        return self._classify(self._activations(features))

    def _classify(self, activations: torch.Tensor) -> torch.Tensor:
        return self._classifier(activations.mean(dim=(2, 3)))

    def _backward(
        self, pixels: torch.Tensor, logit_gradient: torch.Tensor, activations: torch.Tensor, tapes: list[Tape]
    ) -> torch.Tensor:
        """Return the gradient of the pixels (b, 3, H, W), given the gradient of the logits (b, C) float32."""
        n_pixels = activations.shape[2] * activations.shape[3]
        feature_gradient = self._classifier.backward(logit_gradient).div_(n_pixels)[:, :, None, None] * self._scale
        gradient = feature_gradient * (activations > 0)
        gradient = gradient.to(self._dtype).contiguous(memory_format=torch.channels_last)
        native_network = self._native_for(pixels)
        if native_network is not None:
            return native_network.backward(gradient)
        for block in reversed(self._blocks):
            gradient = block.backward(gradient, tapes.pop())
        return self._stem_gradient(gradient)

    def _constant_output(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logits of a network whose output is independent of its input."""
        size = tuple(pixels.shape[1:])
        if size not in self._constant_logits:
            with torch.no_grad():
                parameter = self._uncompiled.classifier.weight
                uncompiled = (
                    self._uncompiled
                    if self._dtype is torch.float32
                    else cast_convolutions(self._uncompiled, self._dtype)
                )
                features = uncompiled.features(torch.zeros(1, *size, device=parameter.device, dtype=self._dtype))
            self._constant_logits[size] = self._classifier(features.to(self.device, torch.float32))
        return self._constant_logits[size].repeat(len(pixels), 1)


class _StemGradient:
    """Input gradient of the stem. It is a 3x3 convolution with three output channels.

    oneDNN computes sixteen output channels at a time, so three channels take as long as sixteen. The gradient is
    therefore computed as a 4x4 convolution with stride 2, whose twelve output channels are 2x2 pixels of the gradient.
    """

    def __init__(self, weight: torch.Tensor, *, device: torch.device, dtype: torch.dtype) -> None:
        kernel = transpose_kernel(weight)
        colours, width = kernel.shape[:2]
        blocks = kernel.new_zeros(colours, 2, 2, width, 4, 4)
        for row in range(2):
            for column in range(2):
                blocks[:, row, column, :, row : row + 3, column : column + 3] = kernel
        self.block_convolution = Convolution(
            blocks.reshape(4 * colours, width, 4, 4), None, device=device, dtype=dtype, stride=2, padding=1
        )

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return functional.pixel_shuffle(self.block_convolution(gradient), 2)


def _build_blocks(
    network: Network, program: CellProgram, device: torch.device, dtype: torch.dtype
) -> tuple[list[Block], NeededForms]:
    """Return the blocks, and the forms of the stem's output that the first block reads.

    Blocks are built from last to first, because the next block determines the forms of a block's output.
    """
    blocks: list[Block] = []
    needed_forms = NeededForms(raw=True, rectified=False)
    width = network.classifier.in_features
    for module in reversed(network.cells):
        block: Block
        if hasattr(module, "downsample"):
            block = ReductionBlock(module, device=device, dtype=dtype, output_forms=needed_forms)
            width //= 2
        elif program.output_node == 0:
            continue
        else:
            layers = cast("nn.ModuleList", module.layers)
            block = CellBlock(program, layers, width, device=device, dtype=dtype, output_forms=needed_forms)
        blocks.append(block)
        needed_forms = block.needed_forms
    return blocks[::-1], needed_forms


def compile_network(
    network: Network,
    spec: str,
    normalisation: Normalisation,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
) -> InferenceNetwork:
    """Compile a network for inference.

    Args:
        network: the network with loaded weights. Its weights are not changed, and must not be changed later.
        spec: cell string of the network.
        normalisation: per-channel mean and standard deviation of pixels in [0, 1].
        device: device for the computation.
        precision: the arithmetic (`core.precision.PRECISIONS`). Weights are folded in float64 and rounded once,
            directly to the precision's dtype. ``tf32`` requires `networks.device.configure_torch`.

    Raises:
        ArchitectureError: the string is not a cell.
        ConfigError: the precision is unknown, or the device does not support it.
    """
    device = torch.device(device)
    check_device(device, precision)
    if device.type == "cpu":
        keep_freed_memory()
    dtype = feature_map_dtype(precision)
    library = usable_library() if device.type == "cpu" and dtype is torch.float32 else None
    return InferenceNetwork(network.eval(), plan_cell(spec), normalisation, device, dtype, library)


_TEST_CELL = "|nor_conv_3x3~0|+|avg_pool_3x3~0|nor_conv_1x1~1|+|skip_connect~0|nor_conv_3x3~1|avg_pool_3x3~2|"
"""A cell with every operation except `none`."""


@functools.cache
def usable_library() -> ctypes.CDLL | None:
    """Return the native library if its results are bit-identical to the installed PyTorch's; otherwise None.

    The library sums in the order of the oneDNN version for which it was written. Other versions of PyTorch may sum in a
    different order, but results must not depend on whether a machine has the library. Therefore, the library's results
    for a small network are compared with PyTorch's once per process. If the library exists and the processor supports
    it, but it cannot be used, a warning is issued.
    """
    reason = native.unavailable_reason()
    if reason is None:
        library = native.open_library()
        if all(_matches_pytorch(library, image_size) for image_size in (16, 32)):
            return library
        reason = "its results differ from those of PyTorch"
    if native.LIBRARY.is_file() and has_avx512():
        warnings.warn(
            f"Using the native library failed for PyTorch {torch.__version__}: {reason}. PyTorch is used instead, "
            "which is slower.",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


def _matches_pytorch(library: ctypes.CDLL, image_size: int) -> bool:
    """Return whether a small network's logits, gradients and search are bit-identical with the library and PyTorch."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        network = Network(_TEST_CELL, channels=native.LANES, cells=1, n_classes=10).eval()
        pixels = torch.rand(MIN_BATCH, 3, image_size, image_size)
    labels = torch.arange(MIN_BATCH)
    normalisation = Normalisation(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    library_network, torch_network = (
        InferenceNetwork(network, plan_cell(_TEST_CELL), normalisation, torch.device("cpu"), torch.float32, candidate)
        for candidate in (library, None)
    )
    outputs, expected_outputs = (
        network.loss_and_gradient(pixels, labels) for network in (library_network, torch_network)
    )
    if not all(map(torch.equal, outputs, expected_outputs)):
        return False
    native_network = library_network._native_for(pixels)
    if native_network is None:
        return True
    search = native_network.search(pixels, len(library_network._blocks), library_network._classify_features, MIN_BATCH)
    changed = pixels.clone()
    changed[:, :, 2:5, 1:4] = pixels[:, :, :3, :3]
    return torch.equal(search.logits(2, 1, pixels[:, :, :3, :3]), torch_network.logits(changed))
