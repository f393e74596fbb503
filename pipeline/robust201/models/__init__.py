"""The interface between networks and attacks or measures: logits, gradients, precision, and batch sizes."""
