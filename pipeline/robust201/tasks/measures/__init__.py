"""Measures of a network itself: numbers that no accuracy is part of, one module per measure."""
