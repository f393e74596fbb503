"""The store of finished evaluations: immutable Parquet shards named by their content.

A shard under its final name is the record that its evaluations are done. `store` is the face of the room; below it are
`folder` (names), `places` and `object_place` (where bytes lie), `parquet` (the form of a shard) and `facts` (what it
says of its rows), `scan`, `catalogue`, `index` and `inventory` (what is there), `covering` (which rows make a whole),
`reading` and `selection` (values), `verification`, `requeue`, `compaction` and `merging`, `imported` (results read from
a dataset's files).
"""

from robust201.shards.compaction import CompactReport
from robust201.shards.inventory import Inventory
from robust201.shards.merging import MergeReport, merge
from robust201.shards.selection import Selection
from robust201.shards.store import ShardStore
from robust201.shards.verification import Finding

__all__ = ["CompactReport", "Finding", "Inventory", "MergeReport", "Selection", "ShardStore", "merge"]
