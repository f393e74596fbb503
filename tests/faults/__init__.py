"""Fault injection: disturbed runs must give the same bytes as an undisturbed run."""
