"""Figures of a dataset, as files and on the page of the report."""
