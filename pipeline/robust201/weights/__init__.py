"""Weights: readers of every published format, and the safetensors store that workers read."""
