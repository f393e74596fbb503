"""Analyses of a dataset's results: rankings, means, comparisons, correlations with measures, effects of operations."""
