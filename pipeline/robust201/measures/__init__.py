"""Measures: numbers about the network itself, independent of its accuracy; one module per measure."""
