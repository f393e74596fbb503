"""Generation of corrupted images. Each family of corruptions has a module."""

MIN_IMAGE_SIZE = 8
"""Minimum height and width, in pixels, of images that can be corrupted."""
