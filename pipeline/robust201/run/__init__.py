"""Runs of a sweep: workers, which write results, and a driver, which distributes parts and counts."""
