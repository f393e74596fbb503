"""`robust201 compare` and `curves`: several networks on the same images."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.evaluate import (
    DATA_HELP,
    KEYS_HELP,
    NETWORK_HELP,
    BatchSize,
    Device,
    Images,
    ResizeRule,
    Seed,
    Settings,
    calling_user_code,
    check_table_file,
    choose_device,
    count_channels,
    load_data,
    read_keys,
    to_json_rows,
    write_table,
)
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import TableFile, explicit_options, split_names
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file, write_csv
from robust201.core.memory import restore_gc_thresholds

if TYPE_CHECKING:
    from torch import nn

    from robust201.analysis.comparison import Comparison
    from robust201.analysis.evaluation import Evaluation
    from robust201.analysis.named_networks import UserNetwork
    from robust201.core.records import ImageSet
    from robust201.figures.security_curves import SecurityCurves

_NETWORKS_HELP = (
    f"Networks, each with an optional name: plain=NETWORK. A network is a folder of --save, or {NETWORK_HELP}"
)
_SAVED_PARAMETERS = ("networks", "keys", "out", "as_json")
"""Parameters that may be set if all networks have saved results."""


def compare(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK...",
            help=f"{_NETWORKS_HELP} Or DATASET:ARCHITECTURE, a network of a dataset with outcomes by image (add "
            "@WEIGHTS if it has several).",
        ),
    ],
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Option(help=f"{DATA_HELP} For DATASET:ARCHITECTURE: one of its image datasets."),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help=f"{KEYS_HELP} Default: clean,fgsm,pgd; all saved keys; or every key of DATASET at one strength."
        ),
    ] = None,
    settings: Settings = None,
    images: Images = None,
    resize: ResizeRule = None,
    seed: Seed = 0,
    batch_size: BatchSize = 250,
    device: Device = "auto",
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare networks on the same images: accuracy differences with intervals and tests. Files are executed."""
    from robust201.analysis.evaluation import Evaluation
    from robust201.analysis.requested_keys import parse_keys
    from robust201.comparing import compare as compare_networks
    from robust201.comparing import find_names, name_networks

    if out is not None:
        check_table_file(out)
    names = find_names(split_names(keys))
    named = name_networks(networks, names, data)
    if not _user_networks(named):
        in_dataset = any(isinstance(network, Evaluation) and not network.network_sha256 for network in named.values())
        _reject_options(context, *(["data"] if in_dataset else []))
        _report_comparison(compare_networks(named, keys=names), out, as_json)
        return
    parsed_keys = read_keys(keys or "clean,fgsm,pgd", settings or []) or {}
    parse_keys(parsed_keys, "fused")  # before the user's files are executed
    image_set = _load_images(named, data, resize, images, seed)
    with calling_user_code(", ".join(named)):
        comparison = compare_networks(
            _reporting(named),
            image_set,
            None,
            parsed_keys if keys or settings else None,
            count=images,
            seed=seed,
            device=choose_device(device),
            batch_size=batch_size,
            progress=True,
        )
    _report_comparison(comparison, out, as_json)


def curves(
    networks: Annotated[list[str], typer.Argument(metavar="NETWORK...", help=_NETWORKS_HELP)],
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help=DATA_HELP)] = None,
    keys: Annotated[str, typer.Option(help="Minimum-norm attacks in one norm: fmn (Linf), fmn_l2 or fmn_l1.")] = "fmn",
    settings: Settings = None,
    images: Images = None,
    resize: ResizeRule = None,
    seed: Seed = 0,
    batch_size: BatchSize = 250,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the figure (.pdf, .svg, .png) or the distances (.csv) to this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the accuracy of networks at every epsilon, with minimum-norm attacks. Python files are executed."""
    from robust201.comparing import curves as compute_curves
    from robust201.comparing import name_networks, parse_attacks
    from robust201.figures.formats import check_figure_name

    if out is not None and out.suffix == ".csv":
        check_output_file(out)
    elif out is not None:
        check_figure_name(out)
    parsed_keys = read_keys(keys, settings or []) or {}
    parse_attacks(parsed_keys)  # before the user's files are executed
    named = name_networks(networks)
    if not _user_networks(named):
        _reject_options(context)
        security_curves = compute_curves(named, keys=parsed_keys)
    else:
        image_set = _load_images(named, data, resize, images, seed)
        with calling_user_code(", ".join(named)):
            security_curves = compute_curves(
                _reporting(named),
                image_set,
                None,
                parsed_keys,
                count=images,
                seed=seed,
                device=choose_device(device),
                batch_size=batch_size,
                progress=True,
            )
    if out is not None and out.suffix == ".csv":
        write_csv(out, security_curves.distances.reset_index())
    elif out is not None:
        security_curves.save(out)
    if as_json:
        print_json({"summary": security_curves.summary.splitlines(), "networks": to_json_rows(security_curves.table)})
    else:
        _show_curves(security_curves)


def _user_networks(named: "Mapping[str, nn.Module | Evaluation | UserNetwork]") -> "list[UserNetwork]":
    from robust201.analysis.named_networks import UserNetwork

    return [network for network in named.values() if isinstance(network, UserNetwork)]


def _reject_options(context: typer.Context, *allowed: str) -> None:
    for name, option in explicit_options(context).items():
        if name not in (*_SAVED_PARAMETERS, *allowed):
            raise ConfigError(
                f"Reading the command line failed for {option}: it applies only to FILE:FUNCTION, because networks "
                "with saved results are not evaluated again. Remove the option."
            )


def _load_images(
    named: "Mapping[str, nn.Module | Evaluation | UserNetwork]",
    data: str | None,
    resize: str | None,
    count: int | None,
    seed: int,
) -> "ImageSet":
    if data is None:
        raise ConfigError(
            "Reading the command line failed for --data: FILE:FUNCTION needs images. Add --data, such as --data digits."
        )
    channels = count_channels(_user_networks(named))
    return load_data(data, resize=resize, channels=channels, count=count, seed=seed)


def _reporting(
    named: "Mapping[str, nn.Module | Evaluation | UserNetwork]",
) -> "dict[str, nn.Module | Evaluation | UserNetwork]":
    """Return the networks so that the execution of a user's file is announced."""
    from robust201.analysis.named_networks import UserNetwork

    restore_gc_thresholds()
    return {
        name: network._replace(report=console.say) if isinstance(network, UserNetwork) else network
        for name, network in named.items()
    }


def _report_comparison(comparison: "Comparison", out: Path | None, as_json: bool) -> None:
    if out is not None:
        write_table(out, comparison)
    if as_json:
        print_json({"summary": comparison.summary.splitlines(), "comparisons": comparison.table.to_dict("records")})
        return
    typer.echo(comparison)


def _show_curves(security_curves: "SecurityCurves") -> None:
    typer.echo(security_curves.summary)
    statistics = ("clean accuracy", "median distance", "95% interval", "half distance", "never fooled")
    rows = [
        (
            row["network"],
            f"{row['clean_accuracy']:.4f}",
            f"{row['median_distance']:.4g}",
            f"{row['median_low']:.4g} to {row['median_high']:.4g}",
            f"{row['half_distance']:.4g}",
            f"{row['never_fooled']:.1%}",
        )
        for row in security_curves.table.to_dict("records")
    ]
    title = f"{console.format_count(len(security_curves.distances), 'image')}, {security_curves.constraint.name}"
    console.show_table(title, ("network", *statistics), rows)
