"""Which versions and devices made the results of a folder."""

import json
from collections.abc import Mapping

from robust201.shards.folder import ResultsFolder
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import ShardFile

PROVENANCE_COLUMN = "provenance"


def read_provenances(folder: ResultsFolder, inventory: Inventory) -> list[Mapping[str, str]]:
    """List every different provenance of the rows in an inventory (see `EvaluationResult.provenance`), sorted.

    Raises:
        ShardDamagedError: a shard cannot be read.
    """
    texts: set[str] = set()
    for shard in inventory.shards:
        file = ShardFile(folder.place, shard)
        try:
            for group in range(len(file.first_rows) - 1):
                texts.update(file.read(group, [PROVENANCE_COLUMN])[PROVENANCE_COLUMN].unique().to_pylist())
        finally:
            file.close()
    return [json.loads(text) for text in sorted(texts)]
