"""Perturbations of images: attacks, corruptions and clean images. Several keys can use the same module."""
