"""Weights: readers of all published formats, and the safetensors store for workers."""
