"""`robust201 curves`: accuracy of the user's own networks at every epsilon; a table, a figure, a CSV."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.compare import name_networks
from robust201.cli.evaluate import (
    DATA,
    BatchSize,
    Channels,
    Count,
    Device,
    Engine,
    ImageSize,
    Mean,
    Quiet,
    ResizeRule,
    Seed,
    Settings,
    Std,
    build_module,
    calling_user_code,
    load_data,
    read_keys,
    read_normalisation,
)
from robust201.cli.monitoring import AsJson, print_json
from robust201.core.csv_files import write_csv
from robust201.core.files import check_output_file
from robust201.core.memory import collect_as_usual

if TYPE_CHECKING:
    from robust201.figures.security_curves import SecurityCurves


def curves(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE:FUNCTION...", help="One or more Python files, each with its function that returns a network."
        ),
    ],
    data: Annotated[str, DATA],
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of a state_dict, safetensors or PyTorch, for each network in their order. Repeatable."
        ),
    ] = None,
    norm: Annotated[str, typer.Option(help="Norm of the perturbations: Linf, L2, L1 or L0.")] = "Linf",
    attacks: Annotated[
        str | None,
        typer.Option(
            help="Attacks for the smallest perturbation in this norm, separated by commas, such as fmn_l2,ddn_l2; each "
            "image counts at its smallest distance. [default: fmn in the norm; L2: also ddn_l2; L0: sigma_zero_l0]"
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
    quiet: Quiet = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Draw the curves into this file (.pdf, .svg, .png), or write distances (.csv)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the accuracy of your own networks at every epsilon, by one run of each attack. The files are executed.

    One file with several --weights shows these weights.
    """
    from robust201.figures.security_curves import check_figure_name
    from robust201.security import DEFAULT_ATTACKS, parse_attacks
    from robust201.security import curves as compute_curves

    if out is not None and out.suffix == ".csv":
        check_output_file(out)
    elif out is not None:
        check_figure_name(out)
    named = name_networks(networks, weights or [], command="curves", fewest=1)
    normalisation = read_normalisation(mean, std)
    chosen = read_keys(attacks or ",".join(DEFAULT_ATTACKS.get(norm, ())) or None, settings or [])
    if chosen is not None:
        parse_attacks(norm, chosen)  # before the user's files are executed
    images = load_data(data, image_size=image_size, resize=resize, channels=channels, count=count, seed=seed)
    modules = {name: build_module(network, file) for name, (network, file) in named.items()}
    collect_as_usual()
    with calling_user_code(", ".join(named)):
        found = compute_curves(
            modules,
            images,
            None,
            norm,
            chosen,
            count=count,
            normalisation=normalisation,
            seed=seed,
            engine=engine,
            device=device,
            batch_size=batch_size,
            progress=not quiet,
        )
    if out is not None and out.suffix == ".csv":
        write_csv(out, found.distances.reset_index())
    elif out is not None:
        found.save(out)
    if as_json:
        # JSON has no infinity and no NaN: null.
        plain = found.replace([math.inf, -math.inf], math.nan).astype(object)
        rows = plain.where(plain.notna(), None).to_dict("records")
        print_json({"summary": found.summary.splitlines(), "networks": rows})
    else:
        _show(found, f"{console.show_count(len(found.distances), 'image')} of {data}, {norm}")


def _show(found: "SecurityCurves", title: str) -> None:
    for line in found.summary.splitlines():
        typer.echo(line)
    numbers = ("clean accuracy", "median distance", "95% interval", "half distance", "never fooled", "passes")
    rows = [
        (
            row["network"],
            f"{row['clean_accuracy']:.4f}",
            f"{row['median_distance']:.4g}",
            f"{row['median_low']:.4g} to {row['median_high']:.4g}",
            f"{row['half_distance']:.4g}",
            f"{row['never_fooled']:.1%}",
            f"{row['passes']:.0f}",
        )
        for row in found.to_dict("records")
    ]
    console.show_table(title, ("network", *numbers), rows)
