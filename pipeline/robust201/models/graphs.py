"""CUDA graphs, which record the kernels of a pass once and then launch them together.

For small batches on a fast device, launching kernels one by one takes most of the time; a graph launches them at once.
The speed has not been measured on a GPU (docs/internals/performance.md). `tests/runtime/test_gpu.py` tests the results.

Source: PyTorch's notes on CUDA semantics, "CUDA Graphs" and "Graph memory management".
"""

from functools import cache

import torch

from robust201.models.buckets import PassFunction

_WARM_UP_PASSES = 2


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for the warm-up and capture of all graphs of this process.

    With one stream, cuBLAS allocates its workspace only once, and from the ordinary pool instead of a graph's pool.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class GraphCapture:
    """Records passes as CUDA graphs that share one memory pool (see `models.buckets.Preparation`).

    Graphs of one pool may overwrite each other's results. That is safe here, because a result is copied on the same
    stream before another graph is replayed. Sharing limits the pool to the memory of the largest pass.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _side_stream(device)
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def __call__(self, compute: PassFunction) -> PassFunction:
        """Record a pass.

        Args:
            compute: pass that reads fixed memory and never synchronises with the host. It is called a few times before
                it is recorded, so that libraries choose their kernels, and constant feature maps are created, outside
                the graph.

        Returns:
            A function that replays the pass.
        """
        # The caller may be in inference mode, but the results are used inside and outside of it.
        with torch.cuda.device(self._device), torch.inference_mode(mode=False), torch.no_grad():
            caller_stream = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(caller_stream)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UP_PASSES):
                    compute()
            caller_stream.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Entering the context frees the memory that the warm-up left in the cache.
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    outputs = compute()
            finally:
                torch.cuda.set_stream(caller_stream)  # if ending a capture fails, torch leaves its stream current
        self._graphs.append(graph)

        def replay() -> tuple[torch.Tensor, ...]:
            graph.replay()
            return outputs

        return replay

    def release(self) -> None:
        """Free the graphs and their pool. Prepared passes must not be called afterwards."""
        if self._graphs:
            torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        # PyTorch frees a pool that no graph uses any more, so its handle must not be reused.
        self._pool = torch.cuda.graph_pool_handle()
