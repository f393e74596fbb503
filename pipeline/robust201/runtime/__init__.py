"""Execution of runs: drivers, workers, scheduling, recovery from failures, progress and logs."""
