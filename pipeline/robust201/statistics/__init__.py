"""Intervals, tests and derived metrics, as pure functions of arrays. They use neither files nor torch.

Per-image outcomes are packed, eight per byte (see `statistics.outcomes`). docs/statistics.md explains each number and
the source of its formula; `dataset.derived` computes the numbers from a dataset.
"""
