"""Export of finished evaluations as a dataset in the published layout, and tools for such datasets.

`writing` writes an export. It uses these modules:

- `source`: facts about a sweep and its results, from a results folder
- `groups`: the units of each dataset and key (a unit is all evaluations of one network under one key)
- `key_files`: all result files of one key; `json_files`, `parquet_files`: their two formats; `row_batch`: their input
- `number_text`: numbers as JSON text
- `written_file`: hashes of files
- `outcome_files`: the evaluated images, and the table that describes them
- `published_layout`: Parquet columns and names of architectures
- `pool`: processes that write files
- `folder`: replacement of an earlier export
- `listing`: the file SHA256SUMS, which lists the files of an export with their hashes
- `side_files`, `card`: all other files

`key_rows` reads a dataset's files as rows, including the `format_variants` that exports do not write. `verify` checks a
results folder and its export, `verify_dataset`
checks a dataset without its results folder, `compare_results` compares two result sets, and `hub` uploads a dataset.
"""

from robust201.export.groups import KeyStyle
from robust201.export.side_files import meta_file_text
from robust201.export.writing import ExportReport, export_dataset

__all__ = ["ExportReport", "KeyStyle", "export_dataset", "meta_file_text"]
