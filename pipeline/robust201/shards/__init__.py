"""The store of finished evaluations: immutable Parquet files, called shards.

A shard's name contains the hash of its content. Evaluations are complete if their shard exists under its final name.
`store` is the interface of this package. Its other modules are `folder` (paths and names), `backends` and
`object_store` (storage of bytes), `parquet` (file format), `row_identity` (identity of rows), `scan`, `catalogue`,
`index` and `inventory` (available evaluations), `row_reader` (values), `verification`, `compaction` and `merging`.
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
