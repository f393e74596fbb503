"""Datasets: finished evaluations to files that others download, in the layout of the published one, and back.

`export` is the way out; below it are `groups` (what is exported, and what is missing), `written_file`, `json_files` and
`parquet_files` (whole files, of results in two forms), `published_layout` (its columns, and how architectures are named
of), `pool` (processes that write them), `folder` (an older export is replaced), `listing` (the files' hashes),
`side_files` and `card` (what lies beside the results). `json_import` reads datasets in, `conversion` gives them Parquet
files, `verify` checks, `compare` compares.
"""

from robust201.dataset.export import ExportReport, export_dataset
from robust201.dataset.groups import KeyStyle, parse_key_style
from robust201.dataset.side_files import meta_file_text

__all__ = ["ExportReport", "KeyStyle", "export_dataset", "meta_file_text", "parse_key_style"]
