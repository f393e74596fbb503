"""The inference network: a checkpoint compiled to fewer and faster kernels that compute the same numbers.

`program` plans a cell without weights or torch, `folding` turns weights and BatchNorm statistics into convolutions,
`kernels` holds the operations, `blocks` runs a program forward and backward, `network` puts the skeleton around it.
What each trick is worth and why it is exact stands in docs/engine.md.
"""

from pipeline.spaces.inference.network import CPU_CHUNK, InferenceNetwork, compile_network

__all__ = ["CPU_CHUNK", "InferenceNetwork", "compile_network"]
