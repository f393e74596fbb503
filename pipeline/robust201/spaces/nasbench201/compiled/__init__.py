"""The inference network: a checkpoint compiled to fewer and faster kernels that compute the same numbers.

`program` plans a cell without weights or torch, `folding` turns weights and BatchNorm statistics into convolutions,
`kernels` holds the operations, `blocks` runs a program forward and backward, `network` puts the skeleton around it.
`local` computes only what a window changes. On a CPU with AVX-512, `lowering` writes the blocks as a list of
operations, `arena` gives their maps memory, and native.c runs them, with the same bits (`native_network`,
`native_search`). For a GPU, `capacity` chooses batch sizes, `buckets` shows a network no others, and `graphs` records
the kernels of a size. What each trick is worth and why it is exact stands in docs/internals/engine.md.
"""

from robust201.spaces.nasbench201.compiled.network import CPU_CHUNK, MIN_BATCH, InferenceNetwork, compile_network

__all__ = ["CPU_CHUNK", "MIN_BATCH", "InferenceNetwork", "compile_network"]
