"""The zoo: well-known networks that do not belong to a search space."""


def scale_count(published: int, width: int, published_width: int) -> int:
    """Scale a published number of channels or units in proportion to the width, rounding up."""
    return -(-published * width // published_width)
