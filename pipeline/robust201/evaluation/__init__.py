"""Evaluation of one network on some images: tasks, user-defined functions, measurements, and signs of weak attacks."""
