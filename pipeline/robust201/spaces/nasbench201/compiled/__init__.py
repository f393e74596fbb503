"""The inference network: a trained network compiled to fewer and faster kernels, with the same results up to rounding.

- `program` plans a cell, without weights or torch; `folding` folds BatchNorm statistics into convolution weights.
- `kernels` contains the operations, `blocks` runs a program forward and backward, and `network` adds the skeleton.
- `incremental` recomputes only the activations that a change in one window affects.
- On a CPU with AVX-512, `lowering` converts the blocks to a list of operations, `arena` allocates memory for their
  maps, and native.c runs them with bit-identical results (`native_network`, `native_search`).
- For a GPU, see `capacity`, `buckets` and `graphs` in `models`.

docs/internals/engine.md describes the speed and exactness of each optimisation.
"""

from robust201.spaces.nasbench201.compiled.network import CPU_CHUNK, MIN_BATCH, InferenceNetwork, compile_network

__all__ = ["CPU_CHUNK", "MIN_BATCH", "InferenceNetwork", "compile_network"]
