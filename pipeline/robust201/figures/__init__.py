"""Figures, as files and on the report page.

`table` lists the figures of a dataset. `figure_data` computes their numbers, and `specifications` draws them with
Vega-Lite, from the elements in `marks` and `panels`. `plots` writes the figures to files, and `report` writes the page.
Figures of studies and searches are drawn with Matplotlib (`matplotlib_parts`).
"""
