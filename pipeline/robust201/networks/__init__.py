"""The interface of networks for attacks and measures: logits, gradients, precision and batch sizes."""
