"""What one sample takes of memory while it goes through a compiled network. Plain Python, no torch."""

_FLOAT_BYTES = 4
_FORWARD_MAPS = 8
_BACKWARD_MAPS = 4
_STAGE_WEIGHTS = 1 + 1 / 2 + 1 / 4
_REDUCTION_MAPS = 1 + 1 / 2 + 1 / 2 + 1 / 4


def network_bytes(channels: int, cells: int, image_size: int, *, gradient: bool) -> int:
    """Estimate from above what one sample takes while it goes through an inference network of any cell.

    The unit is a feature map of the first stage, 4 * channels * image_size**2 bytes; each later stage's is half of the
    one before. A forward pass holds up to eight of them: the nodes of one cell, as they are and after their ReLUs, and
    what a kernel writes. The way back needs the ReLUs' outputs, up to three a cell and two a reduction, from where they
    are made to where they are used: that is nearly all of it at the published depth. A test compares both numbers with
    what a pass really allocates.
    """
    image = 3 * _FLOAT_BYTES * image_size**2
    feature_map = channels * _FLOAT_BYTES * image_size**2
    if not gradient:
        return _FORWARD_MAPS * feature_map + image
    remembered = 3 * cells * _STAGE_WEIGHTS + _REDUCTION_MAPS
    return round((remembered + _BACKWARD_MAPS) * feature_map) + 3 * image
