"""`robust201 metrics`: rankings and derived metrics of a dataset, with their uncertainty."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import Dataset, Datasets, Keys, WeightsName, split_names
from robust201.core.errors import ConfigError
from robust201.core.records import format_architecture

if TYPE_CHECKING:
    from robust201.reader.dataset import RobustnessDataset

_MAX_PRINTED_ROWS = 10


def metrics(
    dataset: Dataset,
    datasets: Datasets = None,
    keys: Keys = None,
    reference: Annotated[
        str | None, typer.Option(help="Reference architecture for corruption errors: an index or a name.")
    ] = None,
    ties: Annotated[float, typer.Option(help="Significance level for ties with the best network.")] = 0.05,
    bootstrap: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Number of bootstrap samples, for intervals of medians, ranks and Kendall's tau.",
        ),
    ] = 0,
    weights: WeightsName = None,
    worst_case: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=STRENGTH,...",
            help="Only print worst-case accuracies: an image counts if it is classified correctly under all listed "
            "keys, such as pgd=8,fog=3,clean=0. Needs per-image outcomes.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print rankings with intervals and ties, and derived metrics such as robustness R."""
    from robust201.reader.dataset import RobustnessDataset

    reader = RobustnessDataset(dataset, weights=weights)
    if worst_case is not None:
        _show_worst_case(reader, split_names(datasets) or reader.data, _read_tasks(worst_case), as_json=as_json)
        return
    derived_metrics = reader.metrics(
        split_names(datasets),
        split_names(keys),
        reference=int(reference) if reference is not None and reference.isdecimal() else reference,
        ties=ties,
        n_draws=bootstrap,
    )
    if as_json:
        print_json(derived_metrics.to_payload())
    else:
        console.show_metrics(derived_metrics)


def _read_tasks(text: str) -> list[tuple[str, float]]:
    """Parse KEY=STRENGTH pairs; the strength defaults to 0."""
    tasks = []
    for pair in split_names(text) or ():
        key, _, strength = pair.partition("=")
        try:
            tasks.append((key.strip(), float(strength or 0)))
        except ValueError as error:
            raise ConfigError(
                f"Reading the command line failed for --worst-case {pair!r}: it is not of the form KEY=STRENGTH, such "
                "as pgd=8. Correct the option."
            ) from error
    return tasks


def _show_worst_case(
    reader: "RobustnessDataset", datasets: Sequence[str], tasks: Sequence[tuple[str, float]], *, as_json: bool
) -> None:
    payload = []
    for dataset_name in datasets:
        table = reader.worst_case(dataset_name, tasks, intervals=True).sort_values(
            "accuracy", ascending=False, kind="stable"
        )
        payload += [
            {"dataset": dataset_name, "architecture": architecture, **row}
            for architecture, row in zip(table.index.tolist(), table.to_dict("records"), strict=True)
        ]
        if not as_json:
            rows = [
                (format_architecture(architecture), f"{accuracy:.4f}", f"[{low:.4f}, {high:.4f}]")
                for architecture, (accuracy, low, high) in zip(
                    table.index, table.head(_MAX_PRINTED_ROWS).to_numpy().tolist(), strict=False
                )
            ]
            ranking_note = f", the best {_MAX_PRINTED_ROWS} of {len(table):,}" if len(table) > _MAX_PRINTED_ROWS else ""
            label = ", ".join(key if key == "clean" else f"{key} {strength:g}" for key, strength in tasks)
            console.show_table(
                f"{dataset_name}: worst of {label}{ranking_note}", ("", "accuracy", "95% interval"), rows
            )
    if as_json:
        print_json(payload)
