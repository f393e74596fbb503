"""Well-known networks beside any search space, by name."""
