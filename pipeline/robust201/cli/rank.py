"""`robust201 rank`: rank the networks of a dataset, with intervals and ties, as a table for papers."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.evaluate import check_table_file
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import DatasetPath, ImageDataset, TableFile, WeightsName, explicit_options, split_names
from robust201.cli.plot import ShownNetworks
from robust201.core.errors import ConfigError
from robust201.core.files import check_output_file, write_text

if TYPE_CHECKING:
    from robust201.analysis.dataset_results import DatasetResults
    from robust201.analysis.leaderboard import Leaderboard

Epsilon = Annotated[
    str | None,
    typer.Option(
        "--epsilon",
        help="Show attacks at this epsilon: a fraction of the pixel range (8/255, 0.5). Default: each attack's "
        "epsilon nearest to 1/255, or for L2 and L1 nearest to 1.",
    ),
]


def rank(
    context: typer.Context,
    dataset: DatasetPath,
    data: ImageDataset = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="Columns: keys, keys at a strength and means, such as clean,pgd:8/255,corruption; rows are sorted by "
            "the first one other than clean. Default: clean, every attack at --epsilon, and the mean over corruptions."
        ),
    ] = None,
    epsilon: Epsilon = None,
    architectures: ShownNetworks = None,
    n_rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Number of networks, best first.")] = 20,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Print derived metrics of --keys, such as robustness R, instead of a ranking."),
    ] = False,
    weights: WeightsName = None,
    out: TableFile = None,
    as_json: AsJson = False,
) -> None:
    """Rank the networks of a dataset, and mark networks that are tied with the best; optionally as LaTeX or CSV."""
    from robust201.analysis.chosen_epsilon import choose_evaluations_at_epsilon
    from robust201.analysis.leaderboard import make_leaderboard

    if metrics:
        _show_metrics(context, dataset, data, split_names(keys), weights, out, as_json=as_json)
        return
    if keys is not None and epsilon is not None:
        raise ConfigError(
            "Reading the command line failed for --epsilon: --keys sets the strengths itself, such as pgd:8/255. "
            "Remove one of the two options."
        )
    if out is not None:
        check_table_file(out)
    results = _read_results(dataset, data, weights, split_names(architectures))
    names = choose_evaluations_at_epsilon(results, epsilon) if keys is None else split_names(keys)
    board = make_leaderboard(results, names, max_networks=n_rows)
    if out is not None:
        _write(board, out)
    if as_json:
        rows = board.to_frame()
        print_json({"answer": board.answer, "rows": rows.astype(object).where(rows.notna(), None).to_dict("records")})
    else:
        _show(board)


def _show_metrics(
    context: typer.Context,
    dataset: Path,
    data: str | None,
    keys: tuple[str, ...] | None,
    weights: str | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    from robust201.core.csv_files import write_csv
    from robust201.dataset.reader import Dataset

    for parameter, option in explicit_options(context).items():
        if parameter in ("epsilon", "architectures", "n_rows"):
            raise ConfigError(
                f"Reading the command line failed for {option}: it applies only to a ranking, not to --metrics. Remove "
                "the option."
            )
    if out is not None:
        check_output_file(out)
        if out.suffix != ".csv":
            raise ConfigError(f"Writing metrics failed for --out {out}: the file name must end in .csv. Change it.")
    derived_metrics = Dataset(dataset, weights=weights).metrics(data, keys)
    if out is not None:
        write_csv(out, derived_metrics.to_frame())
    if as_json:
        print_json(derived_metrics.to_payload())
    else:
        console.show_metrics(derived_metrics)


def _read_results(
    dataset: Path, data: str | None, weights: str | None, networks: tuple[str, ...] | None
) -> "DatasetResults":
    from robust201.analysis.dataset_results import choose_results, read_results
    from robust201.dataset.reader import Dataset

    reader = Dataset(dataset, weights=weights).select(networks)
    return choose_results(read_results(reader), data, dataset, "Ranking")


def _write(board: "Leaderboard", out: Path) -> None:
    from robust201.core.csv_files import write_csv

    if out.suffix == ".tex":
        write_text(out, board.latex)
    else:
        write_csv(out, board.to_frame())


def _show(board: "Leaderboard") -> None:
    if board.answer:
        typer.echo(board.answer)
    typer.echo(board.basis)
    frame = board.to_frame()
    texts = {
        (row["network"], row["evaluation"]): _format_accuracy(
            row["accuracy"], row["low"], row["high"], is_tied=row["tied"]
        )
        for row in frame.to_dict("records")
    }
    rows = [
        (
            board.results.network_label(network),
            *(texts.get((network, standing.name), "-") for standing in board.standings),
        )
        for network in board.networks
    ]
    columns = ("network", *(f"{standing.label}, %" for standing in board.standings))
    legend = " (* best or tied with the best)" if frame["tied"].any() else ""
    console.show_table(f"{board.results.label}{legend}", columns, rows)


def _format_accuracy(accuracy: float, low: float, high: float, *, is_tied: bool) -> str:
    interval = "" if math.isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{'*' if is_tied else ''}{100 * accuracy:.1f}{interval}"
