"""Export: finished evaluations to files that others download, in the layout of the published ones; their checks.

`writing` is the way out; below it are `groups` (what is exported, and what is missing), `written_file`, `json_files`
and `parquet_files` (whole files, of results in two forms), `published_layout` (its columns, and how architectures are
named of), `pool` (processes that write them), `folder` (an older export is replaced), `listing` (the files' hashes),
`side_files` and `card` (what lies beside the results). `key_rows` reads a dataset's files back, `conversion` gives them
Parquet files, `verify` checks results and `verify_dataset` a dataset, `diff` compares two sets.
"""

from robust201.export.groups import KeyStyle
from robust201.export.side_files import meta_file_text
from robust201.export.writing import ExportReport, export_dataset

__all__ = ["ExportReport", "KeyStyle", "export_dataset", "meta_file_text"]
