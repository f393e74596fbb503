"""`robust201 compare`: two or more networks on the same images, or of a dataset; a sentence, a table, a CSV."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.estimates import say_unused_in
from robust201.cli.evaluate import (
    DATA,
    KEYS_HELP,
    BatchSize,
    Channels,
    Count,
    Device,
    Engine,
    ImageSize,
    Mean,
    Quiet,
    Randomised,
    ResizeRule,
    Seed,
    Settings,
    Std,
    build_module,
    calling_user_code,
    check_table_file,
    load_data,
    read_keys,
    read_normalisation,
    write_table,
)
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import explicit_options, split_names
from robust201.core.csv_files import write_csv
from robust201.core.errors import ConfigError
from robust201.core.memory import collect_as_usual

if TYPE_CHECKING:
    from robust201.analysis.evaluation import Comparison


_OF_STORED_NETWORKS = ("networks", "dataset", "keys", "out", "as_json", "quiet", "estimates")
"""Parameters of `compare` that have an effect on networks of a dataset, or hide what these do not show."""


def compare(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK...",
            help="Two or more Python files, each with its function that returns a network, as FILE:FUNCTION; or two or "
            "more networks of datasets that have outcomes by image, as DATASET:ARCHITECTURE or, of several trainings, "
            "DATASET:ARCHITECTURE@WEIGHTS.",
        ),
    ],
    context: typer.Context,
    data: Annotated[str | None, DATA] = None,
    dataset: Annotated[
        str | None,
        typer.Option("--dataset", help="Of networks of a DATASET: which dataset, if it has several."),
    ] = None,
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of a state_dict, safetensors or PyTorch, for each network in their order. Repeatable."
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help=f"{KEYS_HELP} Default: clean,fgsm,pgd. Of networks of a DATASET: also at a strength, such as pgd:8; "
            "default: every key at one strength."
        ),
    ] = None,
    settings: Settings = None,
    mean: Mean = None,
    std: Std = None,
    count: Count = None,
    image_size: ImageSize = None,
    resize: ResizeRule = None,
    channels: Channels = 3,
    seed: Seed = 0,
    engine: Engine = "fused",
    batch_size: BatchSize = 250,
    device: Device = "cpu",
    randomised: Randomised = False,
    quiet: Quiet = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the table to this file: CSV, or LaTeX (.tex).")
    ] = None,
    estimates: Annotated[
        bool,
        typer.Option(
            "--estimates",
            help="Of networks of a DATASET: compare estimates from samples with each other and with counts.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare networks on the same images: differences with intervals, and a test. Python files are executed.

    One file with several --weights compares these weights.
    """
    from robust201.analysis.stored_evaluations import split_network
    from robust201.api import compare as compare_networks
    from robust201.api import parse_keys

    if out is not None:
        check_table_file(out)
    folders = {divided[0] for network in networks if (divided := split_network(network)) is not None}
    if estimates:
        _compare_estimates(context, networks, keys, dataset, out, as_json=as_json)
        return
    if folders:
        _refuse_options_of_files(context)
        say_unused_in(folders, "comparisons use")
        found = compare_networks(networks, keys=split_names(keys), data=dataset)
        _report(found, out, as_json, "images of the dataset")
        return
    if dataset is not None:
        raise ConfigError(
            "Reading the command line failed for --dataset: it is an option of networks of a dataset. Name images for "
            "FILE:FUNCTION with --data."
        )
    if data is None:
        raise ConfigError(
            "Reading the command line failed for robust201 compare: expected --data with images for FILE:FUNCTION, got "
            "none. Name some, such as --data cifar10."
        )
    named = name_networks(networks, weights or [], command="compare")
    normalisation = read_normalisation(mean, std)
    chosen = read_keys(keys or "clean,fgsm,pgd", settings or []) or {}
    parse_keys(chosen, engine, randomised=randomised)  # before the user's files are executed
    images = load_data(data, image_size=image_size, resize=resize, channels=channels, count=count, seed=seed)
    modules = {name: build_module(network, file) for name, (network, file) in named.items()}
    collect_as_usual()
    with calling_user_code(", ".join(named)):
        found = compare_networks(
            modules,
            images,
            None,
            chosen,
            count=count,
            normalisation=normalisation,
            seed=seed,
            engine=engine,
            device=device,
            batch_size=batch_size,
            randomised=randomised,
            progress=not quiet,
        )
    n_images = len(images) if count is None else count
    _report(found, out, as_json, f"{console.show_count(n_images, 'image')} of {data}")


def _compare_estimates(
    context: typer.Context,
    networks: list[str],
    keys: str | None,
    dataset: str | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Compare networks of a dataset some of whose accuracies are estimates."""
    from robust201.analysis.estimated_comparison import compare_estimated

    _refuse_options_of_files(context)
    if out is not None and out.suffix != ".csv":
        raise ConfigError(
            f"Writing a table failed for {out}: expected a name that ends in .csv with --estimates, got "
            f"{out.suffix or 'none'}. Rename it."
        )
    found = compare_estimated(networks, keys=split_names(keys), data=dataset)
    rows = found.table.to_dict("records")
    if out is not None:
        write_csv(out, found.table)
    if as_json:
        print_json({"summary": found.summary.splitlines(), "comparisons": rows})
        return
    for line in found.summary.splitlines():
        typer.echo(line)
    console.show_table("estimates for all images of the dataset", _HEADINGS, [_cells(row) for row in rows])


def _refuse_options_of_files(context: typer.Context) -> None:
    for name, option in explicit_options(context).items():
        if name not in _OF_STORED_NETWORKS:
            raise ConfigError(
                f"Reading the command line failed for {option}: it is an option of networks from Python files; those "
                "of a dataset were evaluated before. Leave it out."
            )


def _report(found: "Comparison", out: Path | None, as_json: bool, title: str) -> None:
    if out is not None:
        write_table(out, found)
    if as_json:
        print_json({"summary": found.summary.splitlines(), "comparisons": found.to_dict("records")})
    else:
        _show(found, title)


def name_networks(
    networks: list[str], weights: list[Path], *, command: str, fewest: int = 2
) -> dict[str, tuple[str, Path | None]]:
    """Pair networks with their weights, by names that differ: the network's, its weights', or both."""
    if len(networks) == 1 and len(weights) > 1:
        networks = networks * len(weights)
    if len(networks) < fewest or (weights and len(weights) != len(networks)):
        several = "two networks" if fewest == 2 else "one network"
        raise ConfigError(
            f"Reading the command line failed for robust201 {command}: expected {several} or more, and no --weights "
            f"or one for each, got {console.show_count(len(networks), 'network')} and {len(weights)} --weights. "
            "Name FILE:FUNCTION of each network, or one with several --weights."
        )
    files: list[Path | None] = [*weights] or [None] * len(networks)
    names = list(networks) if len({*networks}) == len(networks) else [str(file) for file in files]
    if len({*names}) < len(names):
        raise ConfigError(
            f"Reading the command line failed for robust201 {command}: expected different networks, got "
            f"{', '.join(names)}. Name each once, with weights of its own."
        )
    return dict(zip(names, zip(networks, files, strict=True), strict=True))


def _show(found: "Comparison", title: str) -> None:
    for line in found.summary.splitlines():
        typer.echo(line)
    console.show_table(title, _HEADINGS, [_cells(row) for row in found.to_dict("records")])


_HEADINGS = ("first", "second", "key", "strength", "accuracies", "difference", "95% interval", "adjusted p")


def _cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the cells of a row; estimates get a tilde."""
    accuracies = [
        ("~" if row.get(f"{place}_estimated") else "") + f"{row[f'{place}_accuracy']:.4f}"
        for place in ("first", "second")
    ]
    return (
        row["first"],
        row["second"],
        row["key"],
        f"{row['strength']:g}",
        ", ".join(accuracies),
        f"{row['difference']:+.4f}",
        f"{row['low']:+.4f} to {row['high']:+.4f}",
        f"{row['adjusted_p_value']:.2g}",
    )
