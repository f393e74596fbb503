"""Perturbations of images: one module per kind; several keys can share a module."""
