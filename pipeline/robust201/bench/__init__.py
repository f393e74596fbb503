"""How much faster than a user's own loop: the loop itself, and whole processes timed in turn."""
