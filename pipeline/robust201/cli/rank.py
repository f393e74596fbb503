"""`robust201 rank`: the networks of a dataset by some evaluations, with intervals and ties; as a table for papers."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import Dataset, WeightsName, split_names
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
        help="Show the attacks that were run at this epsilon: in units of pixels (8/255, 0.5), or a count (L0). "
        "[default: every attack at its epsilon nearest to 1/255; L2, L1, L0: to 1]",
    ),
]


def rank(
    dataset: Dataset,
    data: Annotated[
        str | None, typer.Option("--dataset", help="Which dataset to rank on, if DATASET has several.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="Keys, keys at a strength, and means, such as clean,pgd:8,corruption. Default: clean images, every "
            "attack at --epsilon, and the mean over corruptions."
        ),
    ] = None,
    epsilon: Epsilon = None,
    by: Annotated[
        str | None, typer.Option(help="What rows are sorted by; default: the first of --keys but clean.")
    ] = None,
    architectures: ShownNetworks = None,
    n_rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Rows, the best first.")] = 20,
    weights: WeightsName = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the table to this file: LaTeX (.tex) or CSV.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank networks, say which is best, and mark what is tied with it; tables for papers as LaTeX or CSV."""
    from robust201.analysis.chosen_epsilon import names_at_epsilon
    from robust201.analysis.leaderboard import make_leaderboard

    if keys is not None and epsilon is not None:
        raise ConfigError(
            "Reading the command line failed for --epsilon: --keys names the strengths itself, such as pgd:8. Leave "
            "one of them out."
        )
    if out is not None:
        check_output_file(out)
        if out.suffix not in (".tex", ".csv"):
            raise ConfigError(
                f"Writing a table failed for {out}: expected a name that ends in .tex or .csv, got "
                f"{out.suffix or 'none'}. Name the file otherwise."
            )
    results = _read_one(dataset, data, weights, split_names(architectures))
    names = names_at_epsilon(results, epsilon) if keys is None else split_names(keys)
    board = make_leaderboard(results, names, by=by, most=n_rows)
    if out is not None:
        _write(board, out)
    if as_json:
        rows = board.to_frame()
        print_json({"answer": board.answer, "rows": rows.astype(object).where(rows.notna(), None).to_dict("records")})
    else:
        _show(board)


def _read_one(
    dataset: Path, data: str | None, weights: str | None, networks: tuple[str, ...] | None
) -> "DatasetResults":
    from robust201.analysis.dataset_results import choose_results, read_results
    from robust201.reader.dataset import RobustnessDataset

    reader = RobustnessDataset(dataset, weights=weights).select(networks)
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
    cells = {
        (row["network"], row["evaluation"]): _cell(
            row["accuracy"], row["low"], row["high"], tied=row["tied"], estimated=row.get("estimated", False)
        )
        for row in frame.to_dict("records")
    }
    rows = [
        (
            board.results.network_label(network),
            *(cells.get((network, standing.name), "-") for standing in board.standings),
        )
        for network in board.networks
    ]
    columns = ("network", *(f"{standing.label}, %" for standing in board.standings))
    marks = " (* best or tied with the best)" if frame["tied"].any() else ""
    console.show_table(f"{board.results.label}{marks}", columns, rows)


def _cell(accuracy: float, low: float, high: float, *, tied: bool, estimated: bool) -> str:
    interval = "" if math.isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{'*' if tied else ''}{'~' if estimated else ''}{100 * accuracy:.1f}{interval}"
