"""Norms of images in float32, in Foolbox's and AutoAttack's order of operations."""

import torch

DUAL_NORMS = {"Linf": "L1", "L2": "L2", "L1": "Linf"}
"""Norm → its dual norm."""


def norms(images: torch.Tensor, norm: str) -> torch.Tensor:
    """Return the norms (B,) of images or vectors (B, …)."""
    flat = images.flatten(1)
    if norm == "L2":
        return (flat**2).sum(dim=1).sqrt()
    return flat.abs().sum(dim=1) if norm == "L1" else flat.abs().amax(dim=1)


def per_image(values: torch.Tensor) -> torch.Tensor:
    """Reshape values (B,) to (B, 1, 1, 1), which broadcasts over images."""
    return values.view(-1, 1, 1, 1)
