"""Benchmarks: a user's loop over attacks, and a comparison of its time with that of `robust201 run`."""
