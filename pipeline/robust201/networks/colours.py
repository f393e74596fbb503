"""Colours of drawings and figures that report pages replace with their own."""

INK = "#22272e"
"""Colour of text and lines in drawings and figures; report pages replace it with their text colour."""

PAPER = "#ffffff"
"""Background colour of labels and nodes; report pages replace it with their background colour."""
