"""The inference network: a checkpoint compiled to fewer and faster kernels with the same results.

`program` plans a cell without weights or torch, `folding` converts weights and BatchNorm statistics to convolutions,
`kernels` has the operations, `blocks` runs a program forward and backward, and `network` adds the skeleton.
`incremental` recomputes only what a window changes. On a CPU with AVX-512, `lowering` converts the blocks to a list of
operations, `arena` allocates memory for their maps, and native.c runs them with bit-identical results
(`native_network`, `native_search`). For a GPU, see `capacity`, `buckets` and `graphs` in `models`. Speed and exactness
of each optimisation are described in docs/internals/engine.md.
"""

from robust201.spaces.nasbench201.compiled.network import CPU_CHUNK, MIN_BATCH, InferenceNetwork, compile_network

__all__ = ["CPU_CHUNK", "MIN_BATCH", "InferenceNetwork", "compile_network"]
