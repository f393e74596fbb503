"""Benchmarks that compare the running time of a user's loop over attacks with the running time of `robust201 run`."""
