"""CUDA graphs: the kernels of one pass recorded once and launched together ever after.

A small batch on a fast device waits for its kernels to be launched one by one; a graph launches them all at once.
Written without a GPU at hand: unmeasured (docs/internals/performance.md). `tests/runtime/test_gpu.py` runs it where
there is one.

Source: PyTorch's notes on CUDA semantics, "CUDA Graphs" and "Graph memory management".
"""

from functools import cache

import torch

from robust201.models.buckets import Compute

_WARM_UP_PASSES = 2


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that every graph of this process is warmed up and captured on.

    What cuBLAS allocates once a stream then comes from the ordinary pool, keeps no graph's pool alive, and is one.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class GraphCapture:
    """Makes passes ready as CUDA graphs that share one pool of memory (see `models.buckets`).

    Graphs of one pool may overwrite each other's results. That is safe here because a result is copied on the same
    stream before any other graph is replayed, and it bounds the pool by what the largest pass needs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = _side_stream(device)
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def __call__(self, compute: Compute) -> Compute:
        """Record a pass.

        Args:
            compute: reads fixed memory and waits for nothing on the host. It is called a few times before it is
                recorded, so that libraries choose their kernels and constant maps are made outside of the graph.

        Returns:
            What replays it.
        """
        # Outside of inference mode whatever the caller's mode is: the results are read in both.
        with torch.cuda.device(self._device), torch.inference_mode(mode=False), torch.no_grad():
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UP_PASSES):
                    compute()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            # Entering frees what warming up left in the allocator's cache, so only one copy of the memory is held.
            try:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    answers = compute()
            finally:
                torch.cuda.set_stream(current)  # if ending a capture fails, torch leaves its stream current
        self._graphs.append(graph)

        def replay() -> tuple[torch.Tensor, ...]:
            graph.replay()
            return answers

        return replay

    def release(self) -> None:
        """Give the graphs and their pool back. What was made ready must not be called any more."""
        if self._graphs:
            torch.cuda.synchronize(self._device)
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        # A pool that no graph uses any more is freed; its name must not be used again.
        self._pool = torch.cuda.graph_pool_handle()
