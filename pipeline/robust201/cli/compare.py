"""`robust201 compare`: compare networks on the same images, from Python files or from a dataset's stored outcomes."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.evaluate import (
    DATA_HELP,
    KEYS_HELP,
    BatchSize,
    ClassOrderName,
    Device,
    Images,
    Mean,
    ResizeRule,
    Seed,
    Settings,
    Std,
    WeightsFiles,
    build_module,
    calling_user_code,
    check_table_file,
    choose_device,
    load_data,
    read_keys,
    read_normalisation,
    write_table,
)
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import TableFile, explicit_options, split_names
from robust201.core.errors import ConfigError
from robust201.core.memory import restore_gc_thresholds

if TYPE_CHECKING:
    from robust201.analysis.evaluation import Comparison


_DATASET_NETWORK_PARAMETERS = ("networks", "data", "keys", "out", "as_json")
"""Parameters of `compare` that may be set for networks of a dataset (DATASET:ARCHITECTURE)."""


def compare(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK...",
            help="Two or more networks: FILE:FUNCTION (a Python file and its function that returns a network), or "
            "DATASET:ARCHITECTURE (a network of a dataset with per-image outcomes; add @WEIGHTS if it has several).",
        ),
    ],
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Option(help=f"{DATA_HELP} For DATASET:ARCHITECTURE: one of its image datasets."),
    ] = None,
    weights: WeightsFiles = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help=f"{KEYS_HELP} For DATASET:ARCHITECTURE also keys at a strength, such as pgd:8. Default: "
            "clean,fgsm,pgd, or every key of DATASET at one strength."
        ),
    ] = None,
    settings: Settings = None,
    mean: Mean = None,
    std: Std = None,
    images: Images = None,
    resize: ResizeRule = None,
    class_order: ClassOrderName = None,
    seed: Seed = 0,
    batch_size: BatchSize = 250,
    device: Device = "auto",
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare networks on the same images: accuracy differences with intervals and a test. Python files are executed.

    To compare several weights of one architecture, give FILE:FUNCTION once, and --weights for each file.
    """
    from robust201.analysis.stored_evaluations import split_network
    from robust201.api import compare as compare_networks
    from robust201.api import parse_keys

    if out is not None:
        check_table_file(out)
    if any(split_network(network) is not None for network in networks):
        _reject_file_options(context)
        comparison = compare_networks(networks, keys=split_names(keys), data=data)
        _report(comparison, out, as_json, "images of the dataset")
        return
    if data is None:
        raise ConfigError(
            "Reading the command line failed for robust201 compare: FILE:FUNCTION needs images. Add --data, such as "
            "--data cifar10."
        )
    files_by_name = name_networks(networks, weights or [], command="compare")
    normalisation = read_normalisation(mean, std)
    parsed_keys = read_keys(keys or "clean,fgsm,pgd", settings or []) or {}
    parse_keys(parsed_keys, "fused")  # before the user's files are executed
    image_set = load_data(
        data, resize=resize, normalisation=normalisation, class_order=class_order, count=images, seed=seed
    )
    modules = {name: build_module(network, file) for name, (network, file) in files_by_name.items()}
    restore_gc_thresholds()
    with calling_user_code(", ".join(files_by_name)):
        comparison = compare_networks(
            modules,
            image_set,
            None,
            parsed_keys,
            count=images,
            normalisation=normalisation,
            seed=seed,
            device=choose_device(device),
            batch_size=batch_size,
            progress=True,
        )
    _report(comparison, out, as_json, f"{console.format_count(len(image_set), 'image')} of {data}")


def _reject_file_options(context: typer.Context) -> None:
    for name, option in explicit_options(context).items():
        if name not in _DATASET_NETWORK_PARAMETERS:
            raise ConfigError(
                f"Reading the command line failed for {option}: it applies only to FILE:FUNCTION, because networks of "
                "a dataset are not evaluated again. Remove the option."
            )


def _report(comparison: "Comparison", out: Path | None, as_json: bool, title: str) -> None:
    if out is not None:
        write_table(out, comparison)
    if as_json:
        print_json({"summary": comparison.summary.splitlines(), "comparisons": comparison.to_dict("records")})
    else:
        _show(comparison, title)


def name_networks(
    networks: list[str], weights: list[Path], *, command: str, min_networks: int = 2
) -> dict[str, tuple[str, Path | None]]:
    """Return each network (FILE:FUNCTION) and its weights file, by a unique display name.

    The display name is the FILE:FUNCTION of the network. If these are not unique, it is instead the path of the weights
    file without the folders that all paths share.
    """
    if len(networks) == 1 and len(weights) > 1:
        networks = networks * len(weights)
    if len(networks) < min_networks or (weights and len(weights) != len(networks)):
        minimum = "two networks" if min_networks == 2 else "one network"
        raise ConfigError(
            f"Reading the command line failed for robust201 {command}: it needs {minimum} or more, and either no "
            f"--weights or one per network, but got {console.format_count(len(networks), 'network')} and "
            f"{len(weights)} --weights. List each network as FILE:FUNCTION, or one network with several --weights."
        )
    weights_files: list[Path | None] = [*weights] or [None] * len(networks)
    names = _strip_common_folder(weights) if weights and len({*networks}) < len(networks) else list(networks)
    if len({*names}) < len(names):
        raise ConfigError(
            f"Reading the command line failed for robust201 {command}: a network is listed more than once: "
            f"{', '.join(names)}. List each network once, or with different --weights."
        )
    return dict(zip(names, zip(networks, weights_files, strict=True), strict=True))


def _strip_common_folder(files: list[Path]) -> list[str]:
    """Return the paths of files relative to the deepest folder that contains all of them."""
    folder = os.path.commonpath([file.absolute().parent for file in files])
    return [file.absolute().relative_to(folder).as_posix() for file in files]


def _show(comparison: "Comparison", title: str) -> None:
    for line in comparison.summary.splitlines():
        typer.echo(line)
    console.show_table(title, _HEADINGS, [_table_row(row) for row in comparison.to_dict("records")])


_HEADINGS = ("first", "second", "key", "strength", "accuracies", "difference", "95% interval", "adjusted p")


def _table_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the row of the printed table for one comparison."""
    accuracies = [f"{row[f'{network}_accuracy']:.4f}" for network in ("first", "second")]
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
