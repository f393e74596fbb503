"""Export finished evaluations as a dataset in the published layout; verify, convert, compare and upload datasets.

`writing` writes an export. It uses `groups` (which units are exported, and what they lack), `json_files` and
`parquet_files` (the two file formats), `written_file` (what both formats share), `published_layout` (Parquet columns
and names of architectures), `pool` (processes that write files), `folder` (replaces an earlier export), `listing`
(SHA256SUMS), and `side_files` and `card` (the files beside the results). `key_rows` reads a dataset's files as rows,
`conversion` writes Parquet files for a JSON dataset, `verify` checks a results folder and `verify_dataset` a dataset,
`diff` compares two result sets, `hub` uploads a dataset.
"""

from robust201.export.groups import KeyStyle
from robust201.export.side_files import meta_file_text
from robust201.export.writing import ExportReport, export_dataset

__all__ = ["ExportReport", "KeyStyle", "export_dataset", "meta_file_text"]
