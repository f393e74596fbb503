"""Well-known networks that do not belong to a search space, by name."""
