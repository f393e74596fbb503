"""Inference networks: trained networks compiled to fewer and faster kernels, with equal results up to rounding.

- `program` simplifies a cell, without using weights. `folding` folds BatchNorm statistics into convolution weights.
- `kernels` contains the operations. `blocks` runs a program forward and backward. `compiled_network` adds the stem, the
  classifier, and the division of images into batches.
- On a CPU with AVX-512, in float32 and with 16 channels, `lowering` converts the blocks to a list of operations,
  `arena` allocates memory for their maps, and native.c runs them (`native_network`). Its results are bit-identical to
  PyTorch's. In the leading blocks, `native_search` recomputes only what a change in one window affects.
- For a GPU, see `batch_sizes`, `graphed_model` and `device` in `networks`.

docs/internals/engine.md describes the speed and exactness of each optimisation.
"""

from robust201.networks.nb201.compiled.compiled_network import MIN_BATCH, InferenceNetwork, compile_network

__all__ = ["MIN_BATCH", "InferenceNetwork", "compile_network"]
