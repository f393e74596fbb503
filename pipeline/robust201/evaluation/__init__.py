"""Evaluation of one network on one part of the images: measurements and their sums, user-defined tasks."""
