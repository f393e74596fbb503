"""The store of finished evaluations: immutable Parquet shards named by their content.

A shard under its final name is the record that its evaluations are done. `store` is the face of the room; below it are
`folder` (names), `backends` and `object_store` (where bytes lie), `parquet` (the form of a shard) and `row_identity`
(what it says of its rows), `scan`, `catalogue`, `index` and `inventory` (what is there), `row_reader` (values),
`verification`, `compaction` and `merging`.
"""

from robust201.shards.compaction import CompactReport
from robust201.shards.inventory import Inventory
from robust201.shards.merging import MergeReport, merge_folders
from robust201.shards.row_reader import RowBatch, RowSelection
from robust201.shards.store import ShardStore
from robust201.shards.verification import ShardFinding, requeue_shards

__all__ = [
    "CompactReport",
    "Inventory",
    "MergeReport",
    "RowBatch",
    "RowSelection",
    "ShardFinding",
    "ShardStore",
    "merge_folders",
    "requeue_shards",
]
