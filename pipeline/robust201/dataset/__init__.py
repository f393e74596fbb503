"""Datasets: reading, export and verification.

Reading: `reader` has the class `Dataset`; `merged_folders` builds its table. `folder` describes one folder;
`json_rows` and `parquet_rows` read its files as blocks of rows (`row_block`), `table` caches them, and `values` checks
them.

Writing: `export` chooses what is exported (described by `groups`). `key_files` writes all files of one key from batches
that `shard_rows` reads from the shards; `number_text` and `parquet_writer` encode numbers. `side_files` and `card`
write all other files, `listing` hashes files, and `export_folder` replaces an earlier export.

Checking: `shard_check` and `verify_results` check a results folder and its export, `verify_dataset` a dataset without
its results, and `diff` compares two sets of results.
"""
