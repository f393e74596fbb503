"""`robust201 curves`: accuracy of a user's networks at every epsilon, as a table, figure or CSV."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.compare import name_networks
from robust201.cli.evaluate import (
    DATA_OPTION,
    BatchSize,
    ClassOrderName,
    Device,
    Images,
    Mean,
    ResizeRule,
    Seed,
    Std,
    WeightsFiles,
    build_module,
    calling_user_code,
    choose_device,
    load_data,
    read_normalisation,
)
from robust201.cli.monitoring import AsJson, print_json
from robust201.core.csv_files import write_csv
from robust201.core.files import check_output_file
from robust201.core.memory import restore_gc_thresholds

if TYPE_CHECKING:
    from robust201.figures.security_curves import SecurityCurves


def curves(
    networks: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE:FUNCTION...",
            help="Networks: a Python file and its function that returns a network.",
        ),
    ],
    data: Annotated[str, DATA_OPTION],
    weights: WeightsFiles = None,
    norm: Annotated[str, typer.Option(help="Norm of the perturbations: Linf, L2 or L1.")] = "Linf",
    mean: Mean = None,
    std: Std = None,
    images: Images = None,
    resize: ResizeRule = None,
    class_order: ClassOrderName = None,
    seed: Seed = 0,
    batch_size: BatchSize = 250,
    device: Device = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the figure (.pdf, .svg, .png) or the distances (.csv) to this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the accuracy of your own networks at every epsilon, with minimum-norm attacks. The files are executed.

    To compare several weights of one architecture, give FILE:FUNCTION once, and --weights for each file.
    """
    from robust201.figures.formats import check_figure_name
    from robust201.security import curves as compute_curves
    from robust201.security import parse_attacks

    if out is not None and out.suffix == ".csv":
        check_output_file(out)
    elif out is not None:
        check_figure_name(out)
    files_by_name = name_networks(networks, weights or [], command="curves", min_networks=1)
    normalisation = read_normalisation(mean, std)
    parse_attacks(norm, None)  # before the user's files are executed
    image_set = load_data(
        data, resize=resize, normalisation=normalisation, class_order=class_order, count=images, seed=seed
    )
    modules = {name: build_module(network, file) for name, (network, file) in files_by_name.items()}
    restore_gc_thresholds()
    with calling_user_code(", ".join(files_by_name)):
        security_curves = compute_curves(
            modules,
            image_set,
            None,
            norm,
            count=images,
            normalisation=normalisation,
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
        # JSON has no infinity or NaN: write null.
        finite_curves = security_curves.replace([math.inf, -math.inf], math.nan).astype(object)
        rows = finite_curves.where(finite_curves.notna(), None).to_dict("records")
        print_json({"summary": security_curves.summary.splitlines(), "networks": rows})
    else:
        _show(security_curves, f"{console.format_count(len(security_curves.distances), 'image')} of {data}, {norm}")


def _show(security_curves: "SecurityCurves", title: str) -> None:
    for line in security_curves.summary.splitlines():
        typer.echo(line)
    statistics = ("clean accuracy", "median distance", "95% interval", "half distance", "never fooled", "passes")
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
        for row in security_curves.to_dict("records")
    ]
    console.show_table(title, ("network", *statistics), rows)
