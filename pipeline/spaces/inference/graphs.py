"""CUDA graphs of an inference network's forward pass at a few fixed batch sizes.

Small batches on a fast device wait for kernels to be launched; a graph launches all of them at once. Written without a
GPU at hand: unmeasured, and tested nowhere yet (docs/performance.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pipeline.spaces.inference.network import InferenceNetwork

BUCKETS = (256, 1024, 4096)
"""Batch sizes that get a graph; a batch is filled up to the next one."""

_WARM_UP_PASSES = 3


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    pixels: torch.Tensor
    logits: torch.Tensor


class CapturedNetwork:
    """An inference network on CUDA whose forward pass is replayed from graphs; gradients run as they are.

    Args:
        network: the compiled network, on a CUDA device.
        buckets: batch sizes that get a graph. Each holds its feature maps for as long as this object lives.
    """

    def __init__(self, network: InferenceNetwork, buckets: Sequence[int] = BUCKETS) -> None:
        self.network = network
        self._buckets = sorted(buckets)
        self._captured: dict[tuple[int, ...], _Captured] = {}

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify (see `InferenceNetwork.logits`); batches above the largest bucket are cut."""
        largest = self._buckets[-1]
        pieces = [self._replay(pixels[start : start + largest]) for start in range(0, len(pixels), largest)]
        return torch.cat(pieces) if pieces else self.network.logits(pixels)

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Classify and differentiate (see `InferenceNetwork.loss_and_gradient`)."""
        return self.network.loss_and_gradient(pixels, labels)

    def _replay(self, pixels: torch.Tensor) -> torch.Tensor:
        size = next(bucket for bucket in self._buckets if bucket >= len(pixels))
        shape = (size, *pixels.shape[1:])
        if shape not in self._captured:
            self._captured[shape] = self._capture(shape)
        captured = self._captured[shape]
        # What lies behind the last image is left from before: images do not see each other.
        captured.pixels[: len(pixels)].copy_(pixels)
        captured.graph.replay()
        return captured.logits[: len(pixels)].clone()

    def _capture(self, shape: tuple[int, ...]) -> _Captured:
        """Record the kernels of one pass, after passes on a side stream that let the libraries choose theirs."""
        pixels = torch.zeros(shape, device=self.network.device)
        stream = torch.cuda.Stream(self.network.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.network.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_PASSES):
                self.network.logits(pixels)
        torch.cuda.current_stream(self.network.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self.network.logits(pixels)
        return _Captured(graph, pixels, logits)
