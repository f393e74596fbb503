"""Figures, as files and on the report page.

`table` lists the figures of a dataset. `figure_data` computes their numbers. `drawings` has the drawings, and
`variants` the panels of each figure. `plots` writes figures to files, and `report` writes the page.
"""
