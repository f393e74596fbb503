"""`robust201 search`: simulate neural architecture search on a dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.analyse import Folders
from robust201.cli.options import AsJson, ImageDataset, WeightsName, print_json, split_names
from robust201.core.files import check_output_file, write_csv

if TYPE_CHECKING:
    from robust201.search.repeated_searches import RepeatedSearch


def search(
    folders: Folders,
    data: ImageDataset = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(
            help="Accuracy to maximise: a key (clean), a key at a strength (pgd:1/255) or a score (adversarial). "
            "Repeatable. Default: clean; the paper's table 1 has clean and fgsm:1/255."
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Methods, separated by commas: bananas, local, random, evolution. Default: all."),
    ] = None,
    queries: Annotated[int, typer.Option(min=1, help="Number of evaluations per run.")] = 300,
    runs: Annotated[int, typer.Option(min=1, max=10_000, help="Number of runs of each method.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    weights: WeightsName = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the table to this CSV file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare architecture search methods on a dataset.

    It prints means over runs with 95% intervals.
    """
    from robust201.analysis.dataset_results import choose_results, read_results
    from robust201.dataset.reader import Dataset
    from robust201.search.repeated_searches import repeat_searches

    if out is not None:
        check_output_file(out)
    reader = Dataset(*folders, weights=weights)
    results = choose_results(read_results(reader), data, reader.path, "Searching")
    with console.showing_progress("Searching") as progress:
        searches = repeat_searches(
            results,
            objective or ["clean"],
            methods=split_names(methods),
            n_queries=queries,
            n_runs=runs,
            seed=seed,
            on_progress=progress,
        )
    if as_json:
        print_json({"searches": [repeated_search.to_payload() for repeated_search in searches]})
    else:
        _show(searches)
    if out is not None:
        import pandas as pd

        write_csv(out, pd.concat([repeated_search.to_frame() for repeated_search in searches]))
        console.say(f"Wrote {out}.")


def _show(searches: "Sequence[RepeatedSearch]") -> None:
    from robust201.analysis.tables import format_percent
    from robust201.search.methods import METHODS
    from robust201.search.repeated_searches import TABLE1_COLUMNS

    for repeated_search in searches:
        title = (
            f"Search on {repeated_search.dataset} {repeated_search.objective}: {repeated_search.n_queries:,} queries, "
            f"{console.format_count(repeated_search.n_runs, 'run')}, {repeated_search.n_members:,} cells; "
            "mean and 95% interval, in percent"
        )
        headings = [TABLE1_COLUMNS.get(name, name) for name in repeated_search.optimum]
        optimum = ("Optimum", *(f"{100 * value:.2f}" for value in repeated_search.optimum.values()), "")
        rows = [
            (
                METHODS[result.method].title,
                *(format_percent(*estimate[:3], decimals=2) for estimate in result.reported.values()),
                f"{100 * result.optimum_fraction:.0f}%",
            )
            for result in repeated_search.results
        ]
        console.show_table(title, ("", *headings, "runs at optimum"), [optimum, *rows])
    if searches and (absent_results := searches[0].absent):
        console.say(f"Not reported, because {searches[0].dataset} lacks these results: {', '.join(absent_results)}.")
