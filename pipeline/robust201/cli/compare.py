"""`robust201 compare` and `curves`: several networks on the same images."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.evaluate import (
    DATA_HELP,
    KEYS_HELP,
    NETWORK_HELP,
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
from robust201.cli.options import AsJson, TableFile, explicit_options, print_json, split_names
from robust201.core.errors import ConfigError
from robust201.core.files import write_csv
from robust201.core.memory import restore_gc_thresholds

if TYPE_CHECKING:
    from torch import nn

    from robust201.analysis.evaluation import Evaluation
    from robust201.analysis.named_networks import UserNetwork
    from robust201.figures.security_curves import SecurityCurves

    _Networks = Mapping[str, nn.Module | Evaluation | UserNetwork]

_NETWORKS_HELP = (
    f"Networks, each with an optional name: plain=NETWORK. A network is a folder of --save, or {NETWORK_HELP}"
)
_PARAMETERS_OF_SAVED = ("networks", "data", "keys", "out", "as_json")
"""Parameters that are allowed if all networks have saved results."""


def compare(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="NETWORK...",
            help=f"{_NETWORKS_HELP} Or DATASET:ARCHITECTURE[@WEIGHTS], a network of a dataset with per-image outcomes.",
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
            help=f"{KEYS_HELP} Default: keys of the first saved or DATASET network, if any; else clean,fgsm,pgd."
        ),
    ] = None,
    settings: Settings = None,
    images: Images = None,
    resize: ResizeRule = None,
    seed: Seed = 0,
    device: Device = "auto",
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare networks image by image, with intervals and tests.

    Python files are executed.
    """
    from robust201.analysis.evaluation import Evaluation
    from robust201.analysis.requested_keys import parse_keys
    from robust201.comparing import compare as compare_networks
    from robust201.comparing import find_names, name_networks

    if out is not None:
        check_table_file(out)
    compared_keys: Any = find_names(split_names(keys))
    networks_by_name = name_networks(networks, compared_keys, data)
    arguments = _image_arguments(context, networks_by_name, data, resize, images, seed, device)
    if "images" in arguments:
        parsed_keys = read_keys(keys or "clean,fgsm,pgd", settings or [])
        parse_keys(parsed_keys, "fused")  # before the user's files are executed
        compared_keys = parsed_keys if keys or settings else None
    with calling_user_code(", ".join(networks_by_name)):
        comparison = compare_networks(_with_announcements(networks_by_name), keys=compared_keys, **arguments)
    if out is not None:
        write_table(out, comparison)
    if as_json:
        print_json({"summary": comparison.summary.splitlines(), "comparisons": comparison.table.to_dict("records")})
    else:  # warnings about networks that this command evaluated have already been printed
        notices = {
            name: texts for name, texts in comparison.notices.items() if isinstance(networks_by_name[name], Evaluation)
        }
        typer.echo(replace(comparison, notices=notices))


def curves(
    networks: Annotated[list[str], typer.Argument(metavar="NETWORK...", help=_NETWORKS_HELP)],
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help=DATA_HELP)] = None,
    keys: Annotated[str, typer.Option(help="Minimum-norm attacks in one norm: fmn (Linf), fmn_l2 or fmn_l1.")] = "fmn",
    settings: Settings = None,
    images: Images = None,
    resize: ResizeRule = None,
    seed: Seed = 0,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the figure (.pdf, .svg, .png) or the distances (.csv) to this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the accuracy of networks at every epsilon.

    Minimum-norm attacks find the smallest perturbation of each image. Python files are executed.
    """
    from robust201.comparing import curves as compute_curves
    from robust201.comparing import name_networks, parse_attacks
    from robust201.figures.formats import FIGURE_FORMATS, check_figure_name

    if out is not None:
        check_figure_name(out, FIGURE_FORMATS)
    parsed_keys = read_keys(keys, settings or [])
    parse_attacks(parsed_keys)  # before the user's files are executed
    networks_by_name = name_networks(networks)
    arguments = _image_arguments(context, networks_by_name, data, resize, images, seed, device)
    with calling_user_code(", ".join(networks_by_name)):
        security_curves = compute_curves(_with_announcements(networks_by_name), keys=parsed_keys, **arguments)
    if out is not None and out.suffix == ".csv":
        write_csv(out, security_curves.distances.reset_index())
    elif out is not None:
        security_curves.save(out)
    if out is not None:
        console.say(f"Wrote {out}.")
    if as_json:
        print_json({"summary": security_curves.summary.splitlines(), "networks": to_json_rows(security_curves.table)})
    else:
        _show_curves(security_curves)


def _image_arguments(
    context: typer.Context,
    networks_by_name: "_Networks",
    data: str | None,
    resize: str | None,
    count: int | None,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """Return the arguments of the API; if all networks have saved results, only `data` may be among them."""
    from robust201.analysis.named_networks import UserNetwork

    user_networks = [network for network in networks_by_name.values() if isinstance(network, UserNetwork)]
    if not user_networks:
        for name, option in explicit_options(context).items():
            if name not in _PARAMETERS_OF_SAVED:
                raise ConfigError(
                    f"Reading the command line failed for {option}: it applies only to FILE:FUNCTION, because networks "
                    "with saved results are not evaluated again. Remove the option."
                )
        return {} if data is None else {"data": data}  # only networks in datasets accept it
    if data is None:
        raise ConfigError(
            "Reading the command line failed for --data: FILE:FUNCTION needs images. Add --data, such as --data digits."
        )
    image_set = load_data(data, resize=resize, channels=count_channels(user_networks), count=count, seed=seed)
    restore_gc_thresholds()
    return {"images": image_set, "count": count, "seed": seed, "device": choose_device(device), "progress": True}


def _with_announcements(networks_by_name: "_Networks") -> "_Networks":
    """Return the networks, set to announce the execution of users' files."""
    from robust201.analysis.named_networks import UserNetwork

    return {
        name: network._replace(report=console.say) if isinstance(network, UserNetwork) else network
        for name, network in networks_by_name.items()
    }


def _show_curves(security_curves: "SecurityCurves") -> None:
    typer.echo(security_curves.summary)
    rows = [
        (
            row["network"],
            f"{row['median_distance']:.4g} [{row['median_low']:.4g}, {row['median_high']:.4g}]",
            f"{row['half_distance']:.4g}",
            f"{row['never_fooled']:.1%}",
        )
        for row in security_curves.table.to_dict("records")
    ]
    title = f"{console.format_count(len(security_curves.distances), 'image')}, {security_curves.constraint.name}"
    console.show_table(title, ("network", "median distance [95% interval]", "half distance", "never fooled"), rows)
