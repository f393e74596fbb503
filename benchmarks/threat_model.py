"""Evaluate three networks by every attack and corruption, and ten by each other's adversarial images.

    export ROBUST201_DATA=FOLDER
    robust201 train jobs/train-resnet18-cifar10.yaml
    python -m benchmarks.threat_model --page docs/threat-model.md

The data folder holds `cifar10/train.parquet` and `test.parquet`, and trained NAS-Bench-201 networks in
`checkpoints/NATS-tss-v1_0-3ffb9-full`. Three sweeps, each of which resumes where it was stopped: the two networks of
`jobs/threat-model.yaml`; the same tasks on the ResNet-18 that the first command trained; and PGD on ten of the networks
trained on digits that ship with robust201, whose images are shown to all ten. The tables are printed and, with
`--page`, replace those of the page.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robust201.core.files import write_text
from robust201.core.records import ArchitectureId, show_architecture
from robust201.dataset.compare import read_result_set
from robust201.engine.arithmetic import configure_torch
from robust201.planning.config import SweepConfig
from robust201.planning.loading import load_config, load_training, parse_config
from robust201.planning.sweep_yaml import read_fields
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep
from robust201.statistics.intervals import accuracy_intervals
from robust201.weights.importing import import_weights
from robust201.weights.manifest import CheckpointRecord
from robust201.weights.store import CheckpointStore

JOB = Path("jobs/threat-model.yaml")
TRAINING = Path("jobs/train-resnet18-cifar10.yaml")
ARCHIVE = Path("checkpoints") / "NATS-tss-v1_0-3ffb9-full"
TEN = (0, 3, 9, 21, 41, 50, 123, 309, 991, 1462)
EPSILON_255 = 16.0

Found = Mapping[tuple[str, float], Mapping[ArchitectureId, float]]
"""Accuracies by key and strength, then by network."""


def cells_sweep(folder: Path, out: Path, execution: Mapping[str, Any]) -> SweepConfig:
    """Make the sweep of the job's two networks, and import their weights."""
    store_path = out / "checkpoints"
    os.environ["ROBUST201_CHECKPOINTS"] = str(store_path)
    config = load_config(JOB, results=str(out / "nasbench201"), execution=dict(execution))
    with CheckpointStore(store_path) as store:
        import_weights(folder / ARCHIVE, store, indices=[int(one) for one in config.selected_architectures])
    return config


def resnet_sweep(cells: SweepConfig, record: CheckpointRecord, store: Path, out: Path) -> SweepConfig:
    """Make the sweep of the ResNet-18: the job's, but for the space, the weights and its transfers."""
    fields = read_fields(JOB)
    del fields["checkpoints"]
    keys = {key: given for key, given in fields["keys"].items() if "source" not in given}
    fields |= {
        "results": str(out / "resnet18"),
        "space": record.space,
        "architectures": [record.index],
        "weights": {"path": str(store), "recipe": record.recipe},
        "keys": keys,
        "execution": cells.execution.model_dump(),
    }
    return parse_config(fields, str(JOB))


def find_resnet() -> tuple[CheckpointRecord, Path]:
    """Find the weights that the training's job left, and their store.

    Raises:
        SystemExit: there are none.
    """
    config = load_training(TRAINING)
    with CheckpointStore(config.store) as store:
        found = [record for record in store.records() if record.is_end] if store.manifest.exists() else []
    if len(found) != 1:
        raise SystemExit(
            f"Reading the ResNet-18 failed for {config.store}: expected the last weights of one training, got "
            f"{len(found)}. Run `robust201 train {TRAINING}`."
        )
    return found[0], config.store


def describe_resnet(record: CheckpointRecord) -> str:
    """Say what was trained, how long, and how well."""
    accuracy = record.recorded_accuracy
    measured = "" if accuracy is None else f" It classifies {100 * accuracy:.1f} % of the whole test split correctly."
    return (
        f"The ResNet-18 is `{record.index}` ({record.parameters:,} parameters), trained for {record.epochs} epochs "
        f"with seed {record.seed}.{measured}"
    )


def digits_sweep(out: Path, execution: Mapping[str, Any]) -> SweepConfig:
    """Make the sweep of ten networks that are shown each other's images."""
    attack = {"epsilons_255": [EPSILON_255], "steps": 10, "rel_stepsize": 0.1}  # the demo's
    fields = {
        "name": "transfer-matrix",
        "results": str(out / "digits"),
        "network": {"channels": 4, "cells": 1},
        "checkpoints": {"path": "bundled:benchmark_data/demo"},
        "architectures": list(TEN),
        "datasets": {"digits": {}},
        "images": {"count": 200, "seed": 0},
        "keys": {"clean": {}, "pgd": attack, "transfer": {"source": list(TEN), "key": "pgd", **attack}},
        "execution": execution,
    }
    return parse_config(fields, "the transfer matrix")


def compute(config: SweepConfig) -> tuple[Found, int]:
    """Run a sweep, and read its accuracies and the number of its images."""
    counted: list[int] = []
    tally = run_sweep(
        config,
        make_executor,
        on_preview=lambda preview: counted.append(preview.plan.facts.datasets[preview.plan.datasets[0]].n_images),
        say=lambda line: print(line, file=sys.stderr),
    )
    if not tally.complete:
        messages = [failure.message for failure in tally.failures]
        raise SystemExit(f"Running {config.results} failed: {messages[0] if messages else 'stopped'}")
    (held,) = read_result_set(config.results).by_weights.values()
    return {(key, strength): dict(found) for (_, key, strength), found in held.items()}, counted[0]


def task_table(columns: Mapping[str, tuple[Found, ArchitectureId]], n_images: int) -> str:
    """Accuracy and its 95 % interval, or a measure, by task and network; a task that a network lacks is left empty."""
    places = sorted({place for found, _ in columns.values() for place in found}, key=_order(columns))
    lines = [f"| task | strength | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for key, strength in places:
        # Of a measure, a result set names the column, too: it is no share of the images.
        of = None if " " in key else n_images
        cells = [_cell(found.get((key, strength), {}).get(name), of) for found, name in columns.values()]
        lines.append(f"| `{key}` | {strength:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _order(columns: Mapping[str, tuple[Found, ArchitectureId]]) -> Any:
    keys: dict[str, int] = {}
    for found, _ in columns.values():
        for key, _ in found:
            keys.setdefault(key, len(keys))
    return lambda place: (keys[place[0]], place[1])


def _cell(value: float | None, n_images: int | None) -> str:
    """Write an accuracy over some images with its interval, or a measure, which has none."""
    if value is None:
        return ""
    if n_images is None:
        return f"{value:.3g}"
    low, high = (float(bound) for bound in accuracy_intervals(value, n_images))
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def matrix_table(found: Found, names: Sequence[int]) -> str:
    """Accuracy of each network (row) under images that were made on each (column)."""
    lines = [
        f"| shown to | clean | {' | '.join(f'made on {show_architecture(name)}' for name in names)} |",
        "|---|---|" + "---|" * len(names),
    ]
    for name in names:
        cells = [f"{found[f'transfer_{source}', EPSILON_255][name]:.2f}" for source in names]
        cells[names.index(name)] = f"**{cells[names.index(name)]}**"
        lines.append(f"| {show_architecture(name)} | {found['clean', 0.0][name]:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(folder: Path, out: Path, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Compute everything, table by table: its name and text."""
    execution = {"executor": options.executor, "threads": 1, "gmacs_per_second": 30}
    digits, n_digits = compute(digits_sweep(out, execution))
    said = f"PGD at {EPSILON_255:g}/255, 10 steps, {n_digits} digits; columns: the network that was attacked."
    yield "transfer", f"{said}\n\n{matrix_table(digits, TEN)}"
    if options.only_matrix:
        return
    cells = cells_sweep(folder, out, execution)
    record, store = find_resnet()
    of_cells, n_images = compute(cells)
    of_resnet, _ = compute(resnet_sweep(cells, record, store, out))
    columns: dict[str, tuple[Found, ArchitectureId]] = {
        show_architecture(name): (of_cells, name) for name in cells.selected_architectures
    }
    columns["ResNet-18"] = of_resnet, record.index
    said = f"Accuracy on {n_images} CIFAR-10 images, and its 95 % interval. {describe_resnet(record)}"
    yield "tasks", f"{said}\n\n{task_table(columns, n_images)}"


def replace_tables(text: str, found: Mapping[str, str]) -> str:
    """Put tables between their marks on a page.

    Raises:
        ValueError: it has no such marks.
    """
    for name, table in found.items():
        begin, end = (f"<!-- {name}: {what} -->\n" for what in ("begin", "end"))
        before, first, rest = text.partition(begin)
        _, last, after = rest.partition(end)
        if not first or not last:
            raise ValueError(f"expected the marks {begin.strip()} and {end.strip()}, got a page without.")
        text = f"{before}{begin}\n{table}\n\n{end}{after}"
    return text


def main() -> None:
    """Run the sweeps, and print or keep the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/threat-model"), help="folder of results")
    parser.add_argument("--executor", choices=("inline", "ray"), default="ray")
    parser.add_argument("--only-matrix", action="store_true", help="only the ten networks of digits: needs no data")
    parser.add_argument("--page", type=Path, help="page whose tables are replaced")
    options = parser.parse_args()
    configure_torch(threads=1)
    found = dict(tables(Path(os.environ.get("ROBUST201_DATA", "data")), options.out, options))
    print("\n\n".join(found.values()))
    if options.page is not None:
        write_text(options.page, replace_tables(options.page.read_text(encoding="utf-8"), found))


if __name__ == "__main__":
    main()
