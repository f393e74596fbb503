"""Runs of a sweep or training YAML: workers, which write results, and a driver, which distributes parts."""
