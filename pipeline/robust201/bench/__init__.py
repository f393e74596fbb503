"""Benchmarks that compare the time of a user's loop over attacks with that of `robust201 run`."""
