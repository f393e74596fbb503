"""Well-known networks outside search spaces, by name."""
