"""The command line: one thin function a verb. Exit codes: 0 complete, 2 bad input, 3 incomplete, 4 storage."""

import os
import sys
from functools import partial
from pathlib import Path
from shlex import join, quote
from typing import Annotated

import typer

from robust201 import __version__
from robust201.cli import console, plan_costs
from robust201.cli.analyse import correlate, design
from robust201.cli.audit import audit
from robust201.cli.bench import bench
from robust201.cli.compare import compare
from robust201.cli.curves import curves
from robust201.cli.dataset import KeyStyleText, convert, diff, export, read_key_style, verify
from robust201.cli.demo import demo
from robust201.cli.estimates import say_unused_estimates
from robust201.cli.evaluate import ImageSize, ResizeRule, choose_size, evaluate, load_data, read_resize
from robust201.cli.exits import run_to_exit_code
from robust201.cli.help_texts import ABOUT, DOWNLOADS, ENDING, HELP_OPTIONS, RUN, add_verbs
from robust201.cli.images import fuse, import_images, robustify
from robust201.cli.metrics import metrics
from robust201.cli.monitoring import AsJson, doctor, logs, print_json, status
from robust201.cli.options import (
    AllowCode,
    Architectures,
    Dataset,
    Datasets,
    Executor,
    Keys,
    Limit,
    Results,
    SlurmRequeue,
    Sweep,
    WeightsName,
    Workers,
    load_sweep,
    make_filters,
    option_words,
    reject_options,
    reject_with_budget,
    results_of,
    split_names,
)
from robust201.cli.pictures import check_drawing, draw_corruption_sheet, show
from robust201.cli.plot import MEAN_HELP, ShownKeys, ShownNetworks, plot
from robust201.cli.predict import predict
from robust201.cli.push import push
from robust201.cli.rank import Epsilon, rank
from robust201.cli.search import search
from robust201.cli.study import study
from robust201.cli.submit import submit_app
from robust201.cli.train import plan_trainings, train
from robust201.cli.user_file import parse_space
from robust201.core.errors import ConfigError
from robust201.core.files import write_text
from robust201.spaces import DEFAULT_SPACE, SPACES

app = typer.Typer(
    name="robust201",
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
    help=ABOUT,
    epilog=ENDING,
)


def main() -> None:
    """Run the command line (see `cli.exits`)."""
    sys.exit(run_to_exit_code(app))


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"robust201 {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def meta(
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; stdout if absent.")] = None,
    key_style: KeyStyleText = "plain",
) -> None:
    """Write meta.json: all 15,625 architectures, their isomorphs, and the paper's epsilons."""
    if out is None and sys.stdout.isatty():
        raise ConfigError(
            "Reading the command line failed for robust201 meta: expected --out FILE or a pipe, got a terminal, which "
            "would show 1 MB of JSON. See: robust201 meta --help"
        )
    from robust201.export import meta_file_text
    from robust201.tasks import PAPER_KEYS, TASKS

    strengths = {key: TASKS[key].parameters().strengths for key in PAPER_KEYS}
    text = meta_file_text(strengths, read_key_style(key_style))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
        typer.echo(out)


def plan(
    sweep: Sweep,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    limit: Limit = None,
    save: Annotated[
        bool, typer.Option("--save", help="Save the plan and the images in the results folder, for `run --share`.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Also read the images and look for the weights; `doctor` says more.")
    ] = False,
    workers: Workers = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="Print three designs that fit: worker-hours such as 500h, or a share of the cost such as 2.5%.",
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="DATASET",
            help="A dataset with outcomes by image of similar networks, from which precision is expected; with --next, "
            "the export of what was evaluated so far.",
        ),
    ] = None,
    next_count: Annotated[
        int | None,
        typer.Option("--next", min=1, metavar="N", help="Only print the N cells to evaluate next, as a YAML list."),
    ] = None,
    next_for: Annotated[
        str | None,
        typer.Option(
            "--next-for",
            help="With --next: ranking (learn most about all cells, the default), or best (find the most accurate).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the size, disk space and hours of a sweep, or of a training YAML, and what less would save and lose."""
    from robust201.planning.loading import is_training

    if is_training(sweep):
        reject_options(
            "training YAML",
            architectures=architectures,
            datasets=datasets,
            keys=keys,
            save=save or None,
            workers=workers,
            budget=budget,
            like=like,
            next=next_count,
            next_for=next_for,
        )
        plan_trainings(sweep, limit=limit, check=check, as_json=as_json)
        return
    from robust201.core.user_code import hash_files
    from robust201.planning.estimates import estimate
    from robust201.planning.plan import assumed_facts, make_plan
    from robust201.planning.plan_file import load_any_sweep
    from robust201.planning.sweep_warnings import find_sweep_warnings, find_uncounted_images

    if budget is not None:
        reject_with_budget(architectures=architectures, datasets=datasets, keys=keys, limit=limit)
    config = load_sweep(sweep, execution={"workers": workers})
    if next_count is None and next_for is not None:
        raise ConfigError(
            "Reading the command line failed for robust201 plan: --next-for is an option of --next. Leave it out, or "
            "say how many cells with --next N."
        )
    if next_count is not None:
        if budget is not None:
            raise ConfigError(
                "Reading the command line failed for robust201 plan: expected --budget or --next, got both. Leave one "
                "out."
            )
        goal = next_for or "ranking"
        plan_costs.show_next(config, like, next_count, goal, split_names(keys), datasets, as_json=as_json)
        return
    hash_files(config.code_files())  # a file that is missing would be found by `run` only
    filters = make_filters(config, architectures, datasets, keys, limit)
    filters.check(config)
    if save:
        from robust201.runtime.sweep import prepare_sweep

        prepare_sweep(config, filters=filters, say=console.say)
    elif check:
        from robust201.planning.inputs import Inputs

        Inputs(config, console.say, keys=filters.keys, datasets=filters.datasets).check()
    facts = assumed_facts(config)
    narrowed = filters.narrow(make_plan(config, facts))
    summary = estimate(narrowed)
    reload = partial(load_any_sweep, sweep, execution={"workers": workers})
    summary |= plan_costs.summarise(narrowed, like, budget, reload)
    uncounted = find_uncounted_images(config, facts)
    console.say_each([f"warning: {warning}" for warning in uncounted])
    summary["warnings"] = [str(warning) for warning in (*find_sweep_warnings(config), *uncounted)]
    if as_json:
        print_json(summary)
    else:
        console.show_plan(summary)
        plan_costs.show(summary, budget)
    if save:
        words = option_words(architectures=architectures, datasets=datasets, keys=keys, limit=limit)
        console.say(
            f"Saved the plan and the images in {config.results}. Next, on each machine: "
            f"robust201 run {join([str(sweep), *words])} --share I/N"
        )


def run(
    sweep: Sweep,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    limit: Limit = None,
    executor: Executor = None,
    workers: Workers = None,
    out: Annotated[str | None, typer.Option("--out", help="Results folder; overrides the sweep's.")] = None,
    share: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Divide the sweep that `plan --save` saved among N runs, and be the I-th, counted from 1.",
        ),
    ] = None,
    slurm_requeue: SlurmRequeue = False,
    allow_code: AllowCode = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT",
            help="Worker-hours such as 500h, or a share of the sweep's cost such as 2.5%: estimate accuracies from a "
            "sample of the images (the sweep's `sampling` says how).",
        ),
    ] = None,
) -> None:
    """Evaluate what is missing from a sweep, on Ray or in this process; run it again after any interruption.

    Ctrl-C lets the evaluations in progress finish; a second one stops at once. Finished work is kept.
    """
    from robust201.planning.code_consent import announce_code, announce_copies
    from robust201.planning.filters import EVERYTHING
    from robust201.planning.shares import Share
    from robust201.runtime.code_check import check_code
    from robust201.runtime.executors import check_device, make_executor
    from robust201.runtime.share_run import run_share
    from robust201.runtime.sweep import run_sweep
    from robust201.submission.slurm import ArrayTask

    sampling = {} if budget is None else {"sampling": {"budget": budget}}
    config = load_sweep(sweep, results=out, execution={"executor": executor, "workers": workers}, **sampling)
    filters = make_filters(config, architectures, datasets, keys, limit)
    check_device(config)
    task = ArrayTask.of(os.environ) if slurm_requeue else None
    if share is None:
        announce_code(config, sweep, allowed=allow_code or (), say=console.say)
        check_code(config)
        run_all = run_sweep
    else:
        announce = partial(announce_copies, config, sweep, allowed=allow_code or (), say=console.say)
        run_all = partial(run_share, share=Share.parse(share), on_code=announce)
    display = console.RunDisplay()
    with display.showing():
        tally = run_all(
            config,
            make_executor=make_executor,
            filters=filters,
            on_preview=console.show_preview,
            on_progress=display.update,
            say=console.say,
        )
    status = f"robust201 status {quote(str(config.results))}"
    complete = f"Complete. Export it with: robust201 export {quote(str(config.results))} --out DATASET"
    if filters != EVERYTHING or share is not None:
        complete = f"Complete for this selection; for the whole sweep: {status}"
    code = console.show_tally(tally, "evaluation", complete, failures=f"All failures: {status}")
    if task is not None:
        task.requeue_if_unfinished(tally, console.say)
    raise typer.Exit(code)


def compact(
    results: Results,
    grace_hours: Annotated[float, typer.Option(min=0, help="Hours before merged files are deleted.")] = 24.0,
) -> None:
    """Merge small result files into large ones; safe during a run."""
    from robust201.shards import ShardStore

    report = ShardStore.open(results_of(results)).compact(grace_seconds=3600 * grace_hours)
    merged = console.show_count(report.inputs, "file")
    typer.echo(f"Merged {merged} into {report.outputs:,}; deleted {report.deleted:,} merged earlier.")
    console.say_each([f"damaged: {shard}" for shard in report.damaged])
    if report.damaged:
        console.say(
            "Damaged files were left as they are; robust201 run sets them aside and recomputes their evaluations."
        )
        raise typer.Exit(4)


def merge(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RESULTS", help="Results folders to join, or sweep YAMLs that name them.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Results folder to fill; created if absent.")],
) -> None:
    """Join the results folders of several clusters, so that status and export see one sweep."""
    from robust201.runtime.sweep import merge_results

    sources = [results_of(source) for source in sources]
    report, other_plans = merge_results(sources, out)
    were = "was" if report.present == 1 else "were"
    typer.echo(f"Joined {console.show_count(report.added, 'result file')}, {report.present:,} {were} there already.")
    for source in other_plans:
        console.say(f"{source} has a different plan; its evaluations are kept, and the plan of {sources[0]} applies.")
    console.say_each([f"conflict: {conflict.message}" for conflict in report.conflicts])
    raise typer.Exit(4 if report.conflicts else 0)


def report(
    dataset: Dataset,
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file; DATASET-report.html if absent.")] = None,
    weights: WeightsName = None,
    mean: Annotated[str, typer.Option("--mean", help=MEAN_HELP)] = "over-evaluations",
    epsilon: Epsilon = None,
    keys: ShownKeys = None,
    architectures: ShownNetworks = None,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            help="Show single images in the gallery, if DATASET has outcomes by image: the name of the dataset in the "
            "data folder, or a file or folder with its test images.",
        ),
    ] = None,
    image_size: ImageSize = None,
) -> None:
    """Write one HTML file: which network is best, figures, tables and an explorer of a dataset; it works offline."""
    from robust201.figures.report import write_report
    from robust201.reader.dataset import RobustnessDataset

    named = dataset if dataset.name not in {"", ".."} else dataset.resolve()  # such as `.`
    page = out or named.parent / f"{named.name}-report.html"
    reader = RobustnessDataset(dataset, weights=weights).select(split_names(architectures), split_names(keys))
    say_unused_estimates(reader.files, "figures show")
    shown = None if images is None else load_data(images, image_size=image_size)
    typer.echo(write_report(reader, page, mean=mean, epsilon=epsilon, images=shown))


def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help=DOWNLOADS)],
    out: Annotated[
        Path, typer.Option("--out", envvar="ROBUST201_DATA", help="Data folder; the dataset gets its own subfolder.")
    ] = Path("data"),
) -> None:
    """Download and verify a dataset, or print where to get it; resumes after an interruption."""
    from robust201.images.downloads.fetch import fetch as fetch_dataset

    with console.counting_bytes(f"Downloading {name}") as progress:
        folder = fetch_dataset(name, out, progress=progress)
    typer.echo(folder)


def import_weights(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="An archive, its split parts, or a folder of state_dicts.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The checkpoint store to fill; created if absent.")],
    architectures: Architectures = None,
    datasets: Datasets = None,
    space: Annotated[
        str,
        typer.Option(
            help=f"Space of the networks: {', '.join(SPACES)}, or your own file as FILE:FUNCTION, which is executed. "
            "All but the first expect files named after their networks, such as resnet18.safetensors."
        ),
    ] = DEFAULT_SPACE,
    recipe: Annotated[
        str, typer.Option(help="Name of the training, to distinguish it from others of equal length and seed.")
    ] = "",
    classes: Annotated[
        int | None, typer.Option(min=2, help="Number of classes, for your own dataset in another space.")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Training length to take: 200 or 12.")] = 200,
    seed: Annotated[int, typer.Option(help="Preferred training seed; the lowest available otherwise.")] = 777,
    source_format: Annotated[
        str | None, typer.Option("--format", help="Format of the weights; detected from the path if absent.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Continue past refused files and report them at the end.")
    ] = False,
) -> None:
    """Convert published weights to safetensors with a manifest; the only step that reads pickled weights."""
    from robust201.weights.importing import import_weights as import_from
    from robust201.weights.store import CheckpointStore

    chosen = parse_space(space)
    indices = None if architectures is None else chosen.select(architectures)
    with CheckpointStore(out) as store, console.counting("Importing networks") as progress:
        report = import_from(
            source,
            store,
            space=chosen,
            indices=indices,
            datasets=split_names(datasets),
            n_classes=classes,
            recipe=recipe,
            epochs=epochs,
            seed=seed,
            format=source_format,
            keep_going=keep_going,
            progress=progress,
        )
    raise typer.Exit(console.show_import(report, out))


def corrupt(
    out: Annotated[Path, typer.Option("--out", help="Folder for the .npy files, in the layout of CIFAR-10-C.")],
    dataset: Annotated[
        str, typer.Option(help="Dataset whose test images are corrupted; with --data, a name for your own.")
    ] = "digits",
    path: Annotated[Path | None, typer.Option("--data", help="Path of its images.")] = None,
    form: Annotated[str | None, typer.Option("--format", help="Format of the image files; detected if absent.")] = None,
    image_size: ImageSize = None,
    resize: ResizeRule = None,
    keys: Keys = None,
    count: Annotated[int | None, typer.Option(help="Use a class-stratified subset of this many images.")] = None,
    image_seed: Annotated[int, typer.Option(help="Seed of that subset.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions.")] = 0,
    frost: Annotated[
        Path | None, typer.Option(help="Folder of the six frost images; synthetic frost if absent.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    check_published: Annotated[
        bool,
        typer.Option(
            "--check-published", help="Only compare the corruptions without a random part with the published MD5s."
        ),
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option(help="Also draw the first image under every corruption and severity: a PNG, SVG or PDF file."),
    ] = None,
) -> None:
    """Generate corrupted images, deterministic given the seed.

    The constants are those of CIFAR-10-C, and from 224 pixels on those of ImageNet-C.
    """
    from robust201.images import load_images
    from robust201.tasks import expand_keys
    from robust201.tasks.corruptions.folder import corrupt_dataset

    named = split_names(keys)
    if sheet is not None:
        check_drawing(sheet)
    rule = read_resize(resize)
    size = choose_size(image_size, rule)
    with console.counting("Corrupting") as progress:
        lines, sound = corrupt_dataset(
            out,
            dataset=dataset,
            path=path,
            form=form,
            image_size=size,
            resize=rule,
            keys=None if named is None else expand_keys(named),
            count=count,
            image_seed=image_seed,
            seed=seed,
            frost_folder=frost,
            workers=workers,
            check_published=check_published,
            progress=progress,
        )
    if sheet is not None and not check_published:
        images = load_images(dataset, path=path, form=form, count=count, seed=image_seed, image_size=size, resize=rule)
        draw_corruption_sheet(out, images, sheet)
    typer.echo("\n".join(lines))
    raise typer.Exit(0 if sound else 3)


add_verbs(
    app,
    *(demo, bench, doctor, fetch, import_weights, train, corrupt),
    *(plan, run, status, logs, compact, merge),
    *(verify, audit, export, diff, convert, push, meta),
    *(report, plot, rank, metrics, search, predict, correlate, design),
    *(study, fuse, import_images, robustify),
    *(evaluate, compare, curves, show),
)
app.add_typer(submit_app, rich_help_panel=RUN)
