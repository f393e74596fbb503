"""The store of finished evaluations: immutable Parquet shards named by their content.

A shard under its final name is the record that its evaluations are done. `store` is the face of the room; below it are
`folder` (names), `places` and `object_place` (where bytes lie), `parquet` (the form of a shard) and `facts` (what it
says of its rows), `scan`, `catalogue`, `index` and `inventory` (what is there), `covering` (which rows make a whole),
`reading` and `selection` (values), `verification`, `requeue`, `compaction` and `merging`, `imported` (results read from
a dataset's files).
"""

from pipeline.shards.compaction import CompactReport
from pipeline.shards.inventory import Inventory
from pipeline.shards.merging import MergeReport, merge
from pipeline.shards.selection import Selection
from pipeline.shards.store import ShardStore
from pipeline.shards.verification import Finding

__all__ = ["CompactReport", "Finding", "Inventory", "MergeReport", "Selection", "ShardStore", "merge"]
