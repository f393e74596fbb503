"""`robust201 search`: simulate neural architecture search on a dataset."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.analyse import Folders, Join
from robust201.cli.estimates import say_unused_estimates
from robust201.cli.monitoring import AsJson, print_json
from robust201.cli.options import ImageDataset, WeightsName, explicit_options, split_names
from robust201.core.csv_files import write_csv
from robust201.core.errors import ConfigError, ResultsError
from robust201.core.files import check_output_file

if TYPE_CHECKING:
    from robust201.reader.dataset import RobustnessDataset
    from robust201.search.repeated_searches import Estimated, RepeatedSearch


def search(
    context: typer.Context,
    folders: Folders,
    data: ImageDataset = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help="Objective to maximise, such as clean, pgd:1, pgd, adversarial, '0.5*clean + 0.5*pgd:1' or "
            "'robustness_r(pgd)'; 'clean, pgd:1' searches for a Pareto front. Repeatable. Default: clean."
        ),
    ] = None,
    table1: Annotated[
        bool, typer.Option("--table1", help="Reproduce the paper's table 1: search on clean, then on fgsm:1.")
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas: bananas, local, random, evolution, halving. Default: all that apply."
        ),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Number of evaluations per run.")] = 300,
    runs: Annotated[int, typer.Option(min=1, max=10_000, help="Number of runs of each method.")] = 100,
    constraint: Annotated[
        list[str] | None,
        typer.Option(
            help="Search only cells within this limit, such as 'parameters <= 800000', 'flops <= 1.2e8', or a joined "
            "table's column: 'edgegpu_latency <= 5'. Repeatable."
        ),
    ] = None,
    join: Join = None,
    report: Annotated[
        str | None, typer.Option(help="Further objectives to report for the best cells, separated by commas.")
    ] = None,
    report_on: Annotated[
        str | None,
        typer.Option(
            "--report-on", help="Report accuracies on this image dataset, instead of the one that is searched."
        ),
    ] = None,
    distinct: Annotated[bool, typer.Option("--distinct", help="Treat isomorphic cells as the same cell.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of processes, at most one per CPU. Default: one per CPU.")
    ] = None,
    weights: WeightsName = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the table to this CSV file.")] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw regret by query into this .png, .svg or .pdf file.")
    ] = None,
    blackbox: Annotated[
        Path | None,
        typer.Option(
            "--blackbox", help="Only write DATASET to this folder as a blackbox for Syne Tune and ConfigSpace."
        ),
    ] = None,
    fidelity: Annotated[
        str | None,
        typer.Option(help="With --blackbox: fidelity of its evaluations, images or steps. Default: none."),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(
            "--predictions",
            metavar="FILE",
            help="File written by robust201 predict; its predictions replace accuracies that DATASET lacks.",
        ),
    ] = None,
    estimates: Annotated[
        bool,
        typer.Option(
            "--estimates",
            help="Also use accuracies estimated from a sample of the images; their columns are marked with ~.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare architecture search methods on a dataset, as means over runs with 95% intervals."""
    if blackbox is not None:
        _reject_search_options(explicit_options(context))
    elif fidelity is not None:
        raise ConfigError(
            "Reading the command line failed for robust201 search: --fidelity applies only with --blackbox. Leave it "
            "out."
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
            "Reading the command line failed for robust201 search: --table1 already names objectives and reports. "
            "Leave out --objective and --report, or --table1."
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
                f"Clean optimum of the paper's table 1: {100 * paper.published:.2f}%; in this dataset "
                f"{100 * paper.ours:.2f}%, which {'agrees' if paper.agrees else 'differs'}."
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


def _reject_search_options(options: Mapping[str, str]) -> None:
    for name, option in options.items():
        if name not in ("folders", "data", "blackbox", "fidelity", "predictions", "estimates", "weights"):
            raise ConfigError(
                f"Reading the command line failed for robust201 search: --blackbox and {option} exclude each "
                "other. Leave one out: --blackbox exports all cells and does not search."
            )


def _choose(reader: "RobustnessDataset", data: str | None) -> str:
    from robust201.search.objectives import cells_of, held_datasets

    cells_of(reader)
    searchable = held_datasets(reader)
    if data is not None:
        return data  # the search reports an unknown name
    if len(searchable) == 1:
        return searchable[0]
    if not searchable:
        raise ResultsError(
            f"Searching failed for {reader.path}: expected accuracies, got none. Add a folder that has some, or export "
            "a key such as clean."
        )
    raise ConfigError(
        f"Searching failed for {reader.path}: it has several image datasets: {', '.join(searchable)}. Choose one with "
        "--dataset."
    )


def _show(searches: "Sequence[RepeatedSearch]", predictions: Path | None) -> None:
    from robust201.search.methods import METHODS
    from robust201.search.repeated_searches import TABLE1_COLUMNS

    for result in searches:
        report = "" if result.reported_on == result.dataset else f", reported on {result.reported_on}"
        title = (
            f"Search on {result.dataset} {result.objective}{report}: {result.n_queries:,} queries, "
            f"{console.show_count(result.n_runs, 'run')}, {result.n_members:,} cells; mean and 95% interval, "
            "accuracies in percent"
        )
        headings = [
            ("~ " if result.is_estimated(name) else "") + TABLE1_COLUMNS.get(name, name) for name in result.columns
        ]
        optimum = (
            "Optimum",
            *(_number(result.optimum[name], in_percent=result.in_percent[name]) for name in result.columns),
            "",
        )
        rows = [
            (
                METHODS[runs.method].title,
                *(
                    _with_interval(estimate, in_percent=result.in_percent[name])
                    for name, estimate in runs.reported.items()
                ),
                f"{100 * runs.hits:.0f}%",
            )
            for runs in result.results
        ]
        console.show_table(title, ("", *headings, "at optimum"), [optimum, *rows])
    if searches and searches[0].n_predicted:
        console.say(
            f"Not all of these numbers are counts: the accuracies of {searches[0].n_predicted:,} cells are predictions."
        )
    elif predictions is not None:
        console.say(
            f"No prediction was used: {predictions} does not cover all cells for the objectives and columns. Predict "
            "them with robust201 predict --keys."
        )
    if searches and searches[0].n_estimated:
        console.say(
            f"In columns marked ~ the accuracies of {searches[0].n_estimated:,} cells are estimates from samples of "
            "the images. The highest estimate is on average too high: evaluate the best cells on all images."
        )
    if absent := dict.fromkeys(name for result in searches for name in result.absent):
        cells = " of all predicted cells" if searches[0].n_predicted else ""
        console.say(f"Not reported, since {searches[0].reported_on} has no such results{cells}: {', '.join(absent)}.")


def _number(value: float, *, in_percent: bool) -> str:
    if in_percent:
        return f"{100 * value:.2f}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.5g}"


def _with_interval(estimated: "Estimated", *, in_percent: bool) -> str:
    mean, low, high = (_number(value, in_percent=in_percent) for value in estimated[:3])
    return mean if math.isnan(estimated.low) else f"{mean} [{low}, {high}]"  # a single run has no interval
