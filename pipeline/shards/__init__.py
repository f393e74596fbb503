"""The store of finished evaluations: immutable Parquet shards named by their content.

A shard under its final name is the record that its evaluations are done. `store` is the face of the room; below it are
`folder` (names and paths), `parquet` (columns and footer), `scan` and `inventory` (what is there), `reading` and
`selection` (values), `verification`, `compaction` and `merging`.
"""

from pipeline.shards.compaction import CompactReport
from pipeline.shards.inventory import Inventory
from pipeline.shards.merging import MergeReport, merge
from pipeline.shards.selection import Selection
from pipeline.shards.store import ShardStore
from pipeline.shards.verification import Finding

__all__ = ["CompactReport", "Finding", "Inventory", "MergeReport", "Selection", "ShardStore", "merge"]
