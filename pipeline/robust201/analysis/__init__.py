"""What the results of a dataset say together: rankings and means, measures against accuracies, the design of cells."""
