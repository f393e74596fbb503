"""Intervals, tests, resampling and derived metrics: pure functions of arrays, without files and without torch.

Outcomes of single images are packed, eight per byte (see `statistics.outcomes`). docs/statistics.md explains each
number and the source of its formula; `reader.derived` and `reader.rankings` compute them from a dataset.
"""
