"""Images read at any points, bilinearly, with black outside: what `grid_sample` computes, by matrix products.

`grid_sample` has no second derivative, which some measures take, and on a GPU its first is not deterministic.
"""

import torch


def pixel_centres(length: int, like: torch.Tensor) -> torch.Tensor:
    """Give the coordinates of the pixels of an axis, whose ends are at -1 and 1: (length,)."""
    return (2 * torch.arange(length, dtype=like.dtype, device=like.device) + 1) / length - 1


def image_points(height: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Give the coordinates (x, y) of all pixels, row by row: (height * width, 2)."""
    y, x = torch.meshgrid(pixel_centres(height, like), pixel_centres(width, like), indexing="ij")
    return torch.stack((x, y), dim=-1).flatten(0, 1)


def _shares(coordinates: torch.Tensor, length: int) -> torch.Tensor:
    """Share points (B, N) among the pixels of an axis: (B, N, length)."""
    position = ((coordinates + 1) * length - 1) / 2
    below = position.floor()
    share = (position - below).unsqueeze(-1)
    offset = torch.arange(length, dtype=below.dtype, device=below.device) - below.unsqueeze(-1)
    # Not max(0, 1 - |distance|): its derivative vanishes at pixel centres, where a transformer that starts as the
    # identity reads, and would never learn.
    return (offset == 0) * (1 - share) + (offset == 1) * share


def sample(images: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Read images at points.

    Args:
        images: (B, C, H, W).
        points: (B, N, 2), (x, y) with -1 and 1 at the outer edges, x to the right and y down.

    Returns:
        (B, C, N) in the type of the points.
    """
    height, width = images.shape[-2:]
    by_row = images.to(points.dtype).transpose(1, 2).flatten(2)  # (B, H, C W)
    rows = torch.unflatten(_shares(points[..., 1], height) @ by_row, 2, (-1, width))  # (B, N, C, W)
    read = torch.matmul(rows, _shares(points[..., 0], width).unsqueeze(-1))
    return read.squeeze(-1).transpose(1, 2)
