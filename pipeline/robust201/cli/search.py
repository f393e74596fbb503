"""`robust201 search`: simulate neural architecture search on a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robust201.cli import console
from robust201.cli.analyse import Folders
from robust201.cli.evaluate import to_json_rows
from robust201.cli.options import AsJson, ImageDataset, WeightsName, print_json, split_names
from robust201.core.files import check_output_file, write_csv

if TYPE_CHECKING:
    from robust201.search.repeated_searches import RepeatedSearches


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

    Means over runs are printed with 95% intervals.
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
        selected = {
            name: {method: cells.tolist() for method, cells in by_method.items()}
            for name, by_method in searches.selected.items()
        }
        print_json({"n_members": searches.n_members, "rows": to_json_rows(searches.table), "found": selected})
    else:
        _show(searches, f"{queries:,} queries, {console.format_count(runs, 'run')}, {searches.n_members:,} cells")
    if searches.absent:
        console.say(f"Not reported, because {results.name} lacks these results: {', '.join(searches.absent)}.")
    if out is not None:
        write_csv(out, searches.table)
        console.say(f"Wrote {out}.")


def _show(searches: "RepeatedSearches", basis: str) -> None:
    from robust201.analysis.tables import format_percent
    from robust201.search.methods import METHODS
    from robust201.search.repeated_searches import TABLE1_COLUMNS

    for (dataset, objective), rows in searches.table.groupby(["dataset", "objective"], sort=False):
        optimum = rows.drop_duplicates("column").set_index("column")["optimum"]
        table_rows = [("Optimum", *(f"{100 * value:.2f}" for value in optimum), "")]
        for method, reported in rows.groupby("method", sort=False):
            estimates = reported[["mean", "low", "high"]].itertuples(index=False)
            texts = [format_percent(*estimate, decimals=2) for estimate in estimates]
            table_rows.append((METHODS[str(method)].title, *texts, f"{reported['optimum_fraction'].iloc[0]:.0%}"))
        headings = [TABLE1_COLUMNS.get(str(name), str(name)) for name in optimum.index]
        title = f"Search on {dataset} {objective}: {basis}; mean and 95% interval, in percent"
        console.show_table(title, ("", *headings, "runs at optimum"), table_rows)
