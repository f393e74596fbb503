"""Figures, as files and on the report page.

`table` lists the figures. Each is a row (`definition`) beside its data and its drawing, in a module of similar figures
such as `boxes`, and uses the marks in `drawings`. `plots` writes figures to files, and `report` writes the page.
"""
