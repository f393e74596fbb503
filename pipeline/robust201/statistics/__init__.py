"""Intervals, tests, resampling and derived metrics: pure functions of arrays, without files and without torch.

Outcomes of single images are packed, eight to a byte (see `statistics.outcomes`). docs/statistics.md says what each
number means and where its formula comes from; `reader.derived` and `reader.rankings` compute them from a dataset.
"""
