"""Evaluations of networks, and analyses of results: rankings, comparisons, correlations, effects of operations."""
