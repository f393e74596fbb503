"""Writing of results in the published JSON layout: ``<dataset>/<key>_<measurement>.json``."""

import json
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from robust201.core.errors import IncompleteError, InputError, RobustWarning
from robust201.core.files import atomic_write
from robust201.dataset.rows import KeyRows
from robust201.export.json_files import iter_unit_texts
from robust201.shards import RowBatch
from robust201.store.folder import ResultsFolder
from robust201.sweep.parts import compare, describe_missing
from robust201.sweep.plan import Plan


def write_published(plan: Plan, folder: ResultsFolder, out: Path) -> list[Path]:
    """Write the results of a plan, in full precision, and return the paths of the files.

    Equal results give equal bytes, however they were computed.

    Raises:
        InputError: networks have several sets of weights, for which the layout has no place; nothing is written.
        IncompleteError: parts of the plan are missing, or files contradict each other.
        ShardDamagedError: a shard is damaged.

    Warns:
        RobustWarning: a key has chosen images, so it is not written.
    """
    if len({network.name for key in plan.keys for network in key.networks}) > 1:
        raise InputError(
            f"Exporting failed for {out}: expected one set of weights per network, got several. Export each set from "
            "a sweep that selects it."
        )
    listing = folder.list()
    missing = describe_missing(compare(plan, listing, folder.read_tuple))
    if missing:
        counts = ", ".join(f"{dataset} {key} {count:,}" for (dataset, key), count in missing.items())
        raise IncompleteError(f"Exporting failed for {out}: parts are missing ({counts}). Run the sweep again.")
    paths = []
    for key in plan.keys:
        if key.has_chosen_images:
            message = f"{key.dataset} {key.key} is not exported, since it has chosen images. See docs/sampling.md."
            warnings.warn(message, RobustWarning, stacklevel=2)
            continue
        measurements = key.task.columns or plan.config.measurements
        paths += _write_key(KeyRows(folder, key, listing), measurements, out)
    return paths


def _write_key(rows: KeyRows, measurements: tuple[str, ...], out: Path) -> list[Path]:
    """Write one file per measurement in one pass over the rows."""
    key = rows.key
    paths = [out / key.dataset / f"{key.key}_{measurement}.json" for measurement in measurements]
    with ExitStack() as stack:
        streams: list[BinaryIO] = [stack.enter_context(atomic_write(path)) for path in paths]
        for stream, measurement in zip(streams, measurements, strict=True):
            names = (key.dataset, key.key, measurement)
            stream.write(("{" + "".join(f"{json.dumps(name)}: {{" for name in names)).encode())
        separator = b""
        for unit, columns in rows:
            batch = RowBatch.of_unit(unit, columns)
            for stream, measurement in zip(streams, measurements, strict=True):
                (text,) = iter_unit_texts(measurement, batch)
                stream.write(b'%s"%s": %s' % (separator, str(unit.architecture).encode(), text))
            separator = b", "
        for stream in streams:
            stream.write(b"}}}}")
    return paths
