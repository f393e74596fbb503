"""The zoo: well-known networks that do not belong to a search space."""
