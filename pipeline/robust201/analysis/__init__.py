"""Analyses of a dataset's results: rankings, means, comparisons, measures against accuracies, the design of cells."""
