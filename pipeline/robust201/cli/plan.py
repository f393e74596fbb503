"""`robust201 plan`: size and hours of a sweep or training YAML, and why parts are missing."""

from collections import Counter
from collections.abc import Iterator, Mapping
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robust201.cli import console
from robust201.cli.options import (
    Architectures,
    AsJson,
    Datasets,
    Keys,
    Sweep,
    load_yaml,
    make_filters,
    print_json,
    reject_options,
)
from robust201.core.files import format_bytes

if TYPE_CHECKING:
    from robust201.sweep.config import SweepConfig
    from robust201.sweep.facts import Facts
    from robust201.sweep.filters import Filters

_MAX_SHOWN_KEYS = 12

_COUNT_LABELS = {
    "architectures": "architectures",
    "units": "network-key pairs",
    "evaluations": "evaluations",
    "trainings": "training runs",
    "snapshots": "snapshots",
    "steps": "steps",
}
"""Labels of the counts of a sweep or training YAML."""


def plan(
    sweep: Sweep,
    architectures: Architectures = None,
    datasets: Datasets = None,
    keys: Keys = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Save the plan and the images in the results folder; `run --share` needs them."),
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Also read the images and check that the weights exist; `doctor` checks more."),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also read the inputs and say why evaluations are missing, one line per cause."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the size and the hours of a sweep or training YAML."""
    from robust201.cli.train import plan_training_runs
    from robust201.core.user_code import hash_files
    from robust201.sweep.config import SweepConfig

    config = load_yaml(sweep)
    hash_files(config.code_files())  # reports a missing Python file, which otherwise only `run` would notice
    if not isinstance(config, SweepConfig):
        reject_options("training YAML", keys=keys, save=save or None, explain=explain or None)
    filters = make_filters(config, architectures, datasets, keys)
    if isinstance(config, SweepConfig):
        summary = _plan_sweep(config, filters, save=save, check=check, explain=explain)
    else:
        summary = plan_training_runs(config, filters, check=check)
    if as_json:
        print_json(summary)
    else:
        _show_plan(summary)
    if save:
        options = {"--architectures": architectures, "--datasets": datasets, "--keys": keys}
        selection = [word for name, value in options.items() if value is not None for word in (name, value)]
        console.say(
            f"Saved the plan and the images in {config.results}. Next, on each machine: "
            f"robust201 run {join([str(sweep), *selection])} --share I/N"
        )


def _plan_sweep(config: "SweepConfig", filters: "Filters", *, save: bool, check: bool, explain: bool) -> dict[str, Any]:
    from robust201.sweep.sweep_warnings import find_sweep_warnings, find_unreadable_datasets

    if save:
        _save_plan(config, filters)
    facts = _find_facts(config, filters, reads_inputs=save or check or explain)
    summary = _summarise(config, filters, facts, explain=explain)
    unreadable = find_unreadable_datasets(config, facts)
    console.say_each([f"warning: {warning}" for warning in unreadable])
    return summary | {"warnings": [*find_sweep_warnings(config), *unreadable]}


def _save_plan(config: "SweepConfig", filters: "Filters") -> None:
    from robust201.run.environment import require_explicit_device
    from robust201.run.sweep import prepare_run

    require_explicit_device(config.execution)
    with prepare_run(config, filters, console.say):
        pass


def _find_facts(config: "SweepConfig", filters: "Filters", *, reads_inputs: bool) -> "Facts":
    """Return facts about the inputs: read now, saved by an earlier run of an equal sweep, or assumed."""
    from robust201.sweep.facts import PLAN_FILE, assumed_facts, find_plan, gather_facts, load_plan
    from robust201.sweep.inputs import Inputs
    from robust201.sweep.sweep_record import result_fields

    if reads_inputs:
        inputs = Inputs(config, filters)
        inputs.check()
        return gather_facts(config, inputs, find_plan(config.results))
    if (config.results / PLAN_FILE).exists():
        planned, facts = load_plan(config.results)
        if result_fields(planned) == result_fields(config):
            return facts
    return assumed_facts(config)


def _summarise(config: "SweepConfig", filters: "Filters", facts: "Facts", *, explain: bool) -> dict[str, Any]:
    from robust201.store.events import read_recent_events
    from robust201.store.folder import FORMAT_FILE, ResultsFolder
    from robust201.sweep.costs import Speeds, estimate
    from robust201.sweep.explain import explain as find_causes
    from robust201.sweep.facts import find_plan
    from robust201.sweep.parts import compare
    from robust201.sweep.plan import choose_slices, make_plan

    folder = ResultsFolder.open(config.results) if (config.results / FORMAT_FILE).exists() else None
    slices = choose_slices(config) if folder is None else folder.slices
    plan = filters.narrow(make_plan(config, facts, slices))
    if folder is None:
        state, causes = compare(plan, {}, lambda _digest: ()), []
    else:
        listing = folder.list()
        state = compare(plan, listing, folder.read_tuple)
        protocols, previous_plan = folder.read_protocols(), find_plan(config.results)
        previous_facts = None if previous_plan is None else previous_plan[1]
        causes = find_causes(plan, state, listing, folder.read_tuple, protocols, previous_facts) if explain else []
    summary = estimate(plan, state, Speeds(read_recent_events(config.results)))
    return summary | ({"causes": [cause._asdict() | {"text": str(cause)} for cause in causes]} if explain else {})


def _show_plan(summary: Mapping[str, Any]) -> None:
    """Print the result of `sweep.costs.estimate` or `sweep.training_plan.estimate_training_runs`."""
    counts = [(label, f"{summary[name]:,}") for name, label in _COUNT_LABELS.items() if name in summary]
    if summary.get("evaluations_done"):
        counts.append(("evaluations done", f"{summary['evaluations_done']:,}"))
    sizes = [
        (f"{label}, estimated", format_bytes(summary[name]))
        for name, label in (("estimated_shard_bytes", "results"), ("estimated_json_bytes", "JSON"))
        if name in summary
    ]
    console.show_table(f"Plan of {summary['name']}", ("", ""), [*counts, *sizes, *_describe_hours(summary)])
    for cause in summary.get("causes", ()):
        console.say(cause["text"])
    hours: Counter[str] = Counter()
    for cost in summary.get("hours_by_key", ()):
        hours[cost["key"]] += cost["hours"]
    if hours:
        shown, others = hours.most_common()[:_MAX_SHOWN_KEYS], hours.most_common()[_MAX_SHOWN_KEYS:]
        rest = [(f"{len(others)} other keys", sum(key_hours for _, key_hours in others))] if others else []
        rows = [(key, console.format_hours(key_hours)) for key, key_hours in [*shown, *rest]]
        console.show_table("Worker-hours by key", ("key", "hours"), rows)


def _describe_hours(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield labels and worker-hours: the remaining ones, or the total at assumed speeds if nothing is evaluated yet."""
    speed, cpu_speed = summary["assumed_gmacs_per_second"], summary["assumed_cpu_gmacs_per_second"]
    hours = summary["estimated_worker_hours"]
    if summary.get("evaluations_done"):
        yield "worker-hours left, at measured speeds if known", console.format_hours(summary["worker_hours"])
        return
    is_unknown = summary["device"] == "auto" and cpu_speed is None
    device = "" if is_unknown else " on CPUs" if summary["device"] == "cpu" else " on GPUs"
    yield f"worker-hours{device} at {speed:,g} GMAC/s", console.format_hours(hours)
    if cpu_speed is not None:
        yield f"worker-hours on CPUs at {cpu_speed:,g} GMAC/s", console.format_hours(hours * speed / cpu_speed)
