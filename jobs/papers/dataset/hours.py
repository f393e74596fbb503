"""Print the time of each key per cell, in seconds of one core, from the shards of a sweep.

python -m jobs.papers.dataset.hours runs/cells-cifar10/results
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq


def read_seconds(results: Path) -> tuple[Counter[str], int]:
    """Return the seconds by key (over all corruptions together), and the number of cells."""
    seconds, cells = Counter[str](), set()
    for path in results.glob("shards/*/*/*.parquet"):
        shard = pq.read_table(path, columns=["seconds"])
        unit = json.loads(shard.schema.metadata[b"robust201"])["unit"]
        is_corruption = not unit["columns"] and unit["strengths"] == [1.0, 2.0, 3.0, 4.0, 5.0]
        seconds["15 corruptions" if is_corruption else unit["key"]] += sum(shard["seconds"].to_pylist())
        cells.add(unit["architecture"])
    return seconds, len(cells)


def main() -> None:
    seconds, n_cells = read_seconds(Path(sys.argv[1]))
    print("| key | seconds per cell | fraction |\n|---|--:|--:|")
    for key, total in seconds.most_common():
        print(f"| {key} | {total / n_cells:.1f} | {total / seconds.total():.0%} |")
    print(f"| all keys, {n_cells} cells | {seconds.total() / n_cells:.1f} | |")


if __name__ == "__main__":
    main()
