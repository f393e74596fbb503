"""Datasets: reading, export and verification.

Reading: `reader` has the class `Dataset`, whose one table is in `merged_folders`. `folder` describes one folder;
`json_rows` and `parquet_rows` read its files as blocks of rows (`row_block`), `table` caches them, and `values` checks
them.

Writing: `export` writes an export. `export_source` reads a results folder, `groups` describes what is exported and how,
`key_files` writes all files of one key in batches (`row_batch`) with `json_writer`, `number_text` and `parquet_writer`;
`side_files`, `card` and `image_table` write all other files. `export_folder` replaces an earlier export.

Checking: `shard_rows` reads the shards of a key, `shard_check` and `verify_results` check a results folder and its
export, `verify_dataset` a dataset without its results, and `diff` compares two sets of results.
"""
