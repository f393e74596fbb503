"""`robust201 search`: neural architecture search on the results of a dataset."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.analyse import Folders, Join
from robust201.cli.estimates import say_unused_estimates
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import WeightsName, explicit_options, split_names
from robust201.core.csv_files import write_csv
from robust201.core.errors import ConfigError, ResultsError
from robust201.core.files import check_output_file

if TYPE_CHECKING:
    from robust201.reader.dataset import RobustnessDataset
    from robust201.search.repeated_searches import Estimated, RepeatedSearch


def search(
    context: typer.Context,
    folders: Folders,
    data: Annotated[
        str | None, typer.Option("--dataset", help="Which dataset to search on, if DATASET has several.")
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help="What to maximise, such as clean, pgd:1, pgd, adversarial, '0.5*clean + 0.5*pgd:1' or "
            "'robustness_r(pgd)'; 'clean, pgd:1' searches for a Pareto front. Repeatable; default: clean."
        ),
    ] = None,
    table1: Annotated[
        bool, typer.Option("--table1", help="The paper's table 1: search on clean, then on fgsm:1.")
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(
            help="bananas, local, random, evolution or halving, separated by commas; default: all that apply."
        ),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Evaluations per run.")] = 300,
    runs: Annotated[int, typer.Option(min=1, max=10_000, help="Runs of each method.")] = 100,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            help="'parameters <= 800000', 'flops <= 1.2e8', or a column of a joined table: 'edgegpu_latency <= 5'. "
            "Repeatable."
        ),
    ] = None,
    join: Join = None,
    report: Annotated[
        str | None, typer.Option(help="Objectives to report for the cells found, separated by commas.")
    ] = None,
    report_on: Annotated[
        str | None, typer.Option("--report-on", help="Report on this dataset instead of the one searched on.")
    ] = None,
    distinct: Annotated[bool, typer.Option("--distinct", help="Count isomorphic cells as one cell.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes; at most and by default one per CPU.")] = None,
    weights: WeightsName = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the table to this CSV file.")] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Draw regret by query in this .png, .svg or .pdf file.")
    ] = None,
    blackbox: Annotated[
        Path | None,
        typer.Option("--blackbox", help="Do not search; write DATASET to this folder for Syne Tune and ConfigSpace."),
    ] = None,
    fidelity: Annotated[
        str | None,
        typer.Option(help="With --blackbox: the fidelity of its evaluations, images or steps; default: none."),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            "--predictions",
            metavar="FILE",
            help="File that robust201 predict wrote: its predictions stand in for accuracies that DATASET lacks.",
        ),
    ] = None,
    estimates: Annotated[
        bool,
        typer.Option(
            "--estimates",
            help="Use estimates from samples where networks lack counts; their columns get ~. Default: counts only.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare search methods on a dataset's cells: what each finds, as means over runs with 95% intervals."""
    if blackbox is not None:
        _check_no_search(explicit_options(context))
    elif fidelity is not None:
        raise ConfigError(
            "Reading the command line failed for robust201 search: --fidelity is an option of --blackbox. Leave it out."
        )
    reader = _read(folders, weights, estimates=estimates)
    if blackbox is not None:
        from robust201.search.blackbox import as_fidelity, write_blackbox

        kind = as_fidelity(fidelity)
        for path in write_blackbox(reader, blackbox, kind, data, predictions, estimates=estimates):
            typer.echo(path)
        return
    from robust201.search.repeated_searches import TABLE1_OBJECTIVES, compare_with_paper, repeat_searches

    if table1 and (objective or report):
        raise ConfigError(
            "Reading the command line failed for robust201 search: expected --table1 or --objective and --report, got "
            "both. Leave one out."
        )
    _check_outputs(out, figure)
    dataset = _choose(reader, data)
    with console.counting("Searching") as progress:
        searches = repeat_searches(
            reader,
            dataset,
            TABLE1_OBJECTIVES if table1 else objective or ["clean"],
            methods=split_names(methods),
            n_queries=queries,
            n_runs=runs,
            seed=seed,
            report=split_names(report),
            report_on=report_on,
            constraints=constraint or (),
            join=join or (),
            distinct=distinct,
            predictions=predictions,
            estimates=estimates,
            processes=processes,
            on_progress=progress,
        )
    paper = compare_with_paper(reader, searches)
    if as_json:
        published = None if paper is None else paper._asdict()
        print_json({"searches": [result.to_payload() for result in searches], "published": published})
    else:
        _show(searches, predictions)
        if paper is not None:
            typer.echo(
                f"Clean optimum of the paper's table 1: {100 * paper.published:.2f} %; here {100 * paper.ours:.2f} %, "
                f"which {'agrees' if paper.agrees else 'differs'}."
            )
    if out is not None:
        import pandas as pd

        write_csv(out, pd.concat([result.to_frame() for result in searches]))
        console.say(f"Wrote {out}.")
    if figure is not None:
        from robust201.figures.regret_curves import save_regret_curves

        console.say(f"Wrote {save_regret_curves(searches, figure)}.")


def _check_outputs(out: Path | None, figure: Path | None) -> None:
    if out is not None:
        check_output_file(out)
    if figure is not None:
        from robust201.figures.regret_curves import check_figure_file

        check_figure_file(figure)


def _read(folders: Sequence[Path], weights: str | None, *, estimates: bool) -> "RobustnessDataset":
    from robust201.reader.dataset import RobustnessDataset

    reader = RobustnessDataset(*folders, weights=weights)
    if not estimates:
        say_unused_estimates(reader.files, "searches use")
    return reader


def _check_no_search(given: Mapping[str, str]) -> None:
    for name, option in given.items():
        if name not in ("folders", "data", "blackbox", "fidelity", "predictions", "estimates", "weights"):
            raise ConfigError(
                f"Reading the command line failed for robust201 search: expected --blackbox or {option}, got both. "
                "--blackbox exports all cells and does not search. Leave one out."
            )


def _choose(reader: "RobustnessDataset", data: str | None) -> str:
    from robust201.search.objectives import cells_of, held_datasets

    cells_of(reader)
    held = held_datasets(reader)
    if data is not None:
        return data  # the search says if there is none
    if len(held) == 1:
        return held[0]
    if not held:
        raise ResultsError(
            f"Searching failed for {reader.path}: expected accuracies, got none. Add a folder that has some, or export "
            "a key such as clean."
        )
    raise ConfigError(
        f"Searching failed for {reader.path}: expected the name of one dataset, got none and a folder with "
        f"{', '.join(held)}. Give --dataset."
    )


def _show(searches: "Sequence[RepeatedSearch]", predictions: Path | None) -> None:
    from robust201.search.methods import METHODS
    from robust201.search.repeated_searches import TABLE1_COLUMNS

    for found in searches:
        where = "" if found.reported_on == found.dataset else f", reported on {found.reported_on}"
        title = (
            f"Search on {found.dataset} {found.objective}{where}: {found.n_queries:,} queries, "
            f"{console.show_count(found.n_runs, 'run')}, {found.n_members:,} cells; mean and 95% interval, accuracies "
            "in percent"
        )
        headings = [
            ("~ " if found.is_estimated(name) else "") + TABLE1_COLUMNS.get(name, name) for name in found.columns
        ]
        optimum = (
            "Optimum",
            *(_number(found.optimum[name], in_percent=found.in_percent[name]) for name in found.columns),
            "",
        )
        rows = [
            (
                METHODS[result.method].title,
                *(_with_interval(one, in_percent=found.in_percent[name]) for name, one in result.reported.items()),
                f"{100 * result.hits:.0f} %",
            )
            for result in found.results
        ]
        console.show_table(title, ("", *headings, "at optimum"), [optimum, *rows])
    if searches and searches[0].n_predicted:
        console.say(
            f"Not all of these numbers are counts: the accuracies of {searches[0].n_predicted:,} cells are predictions."
        )
    elif predictions is not None:
        console.say(
            f"No prediction was used: {predictions} lacks values of the objectives or columns for all cells. Predict "
            "them with robust201 predict --keys."
        )
    if searches and searches[0].n_estimated:
        console.say(
            f"Columns marked ~ are not all counts: of {searches[0].n_estimated:,} cells, accuracies are estimates from "
            "samples of the images. The highest of them is on average too high: evaluate the best on all images."
        )
    if absent := dict.fromkeys(name for found in searches for name in found.absent):
        which = " of all predicted cells" if searches[0].n_predicted else ""
        console.say(f"Not reported, since {searches[0].reported_on} has no such results{which}: {', '.join(absent)}.")


def _number(value: float, *, in_percent: bool) -> str:
    if in_percent:
        return f"{100 * value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.5g}"


def _with_interval(estimated: "Estimated", *, in_percent: bool) -> str:
    mean, low, high = (_number(value, in_percent=in_percent) for value in estimated[:3])
    return mean if math.isnan(estimated.low) else f"{mean} [{low}, {high}]"  # a single run has no interval
