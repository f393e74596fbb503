"""How far a sweep is, who works on it, what happened, and what a machine lacks for it."""
