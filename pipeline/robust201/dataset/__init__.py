"""Export: finished evaluations to a dataset that others download, in the layout of the published one.

`dataset` is the face of the room; below it are `folder` (whole files, journal and listing), `files` (one file of
results, written by one process), `pool` (the processes), `number_text` (arrays to JSON text), `compression` and
`side_files` (what lies beside the results).
"""

from robust201.dataset.export import ExportReport, export_dataset
from robust201.dataset.side_files import KeyStyle, meta_text, parse_key_style

__all__ = ["ExportReport", "KeyStyle", "export_dataset", "meta_text", "parse_key_style"]
