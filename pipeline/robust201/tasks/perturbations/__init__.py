"""Perturbations of images. Each kind has a module, which several keys can share."""
