"""`robust201 plan` for a sweep: size, hours, and why parts are missing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from robust201.cli import console
from robust201.cli.monitoring import print_json
from robust201.cli.options import load_sweep, make_filters, option_argv
from robust201.core.files import format_bytes

if TYPE_CHECKING:
    from robust201.sweep.config import SweepConfig
    from robust201.sweep.facts import Facts
    from robust201.sweep.filters import Filters

_MAX_SHOWN_KEYS = 12


def plan_sweep(
    path: Path,
    *,
    architectures: str | None,
    datasets: str | None,
    keys: str | None,
    save: bool,
    check: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Print the estimates of a sweep; the parameters are the options of `plan`."""
    from robust201.core.user_code import hash_files
    from robust201.sweep.sweep_warnings import find_sweep_warnings, find_uncounted_images

    config = load_sweep(path)
    hash_files(config.code_files())  # reports a missing Python file, which otherwise only `run` would notice
    filters = make_filters(config, architectures, datasets, keys)
    if save:
        _save(config, filters)
    facts = _find_facts(config, filters, reads_inputs=save or check or explain)
    summary = _summarise(config, filters, facts, explain=explain)
    uncounted = find_uncounted_images(config, facts)
    console.say_each([f"warning: {warning}" for warning in uncounted])
    summary["warnings"] = [*find_sweep_warnings(config), *uncounted]
    if as_json:
        print_json(summary)
    else:
        show_plan(summary)
    if save:
        selection = option_argv(architectures=architectures, datasets=datasets, keys=keys)
        console.say(
            f"Saved the plan and the images in {config.results}. Next, on each machine: "
            f"robust201 run {join([str(path), *selection])} --share I/N"
        )


def _save(config: "SweepConfig", filters: "Filters") -> None:
    from robust201.run.environment import require_explicit_device
    from robust201.run.sweep import prepare_run

    require_explicit_device(config.execution)
    with prepare_run(config, filters, console.say):
        pass


def _find_facts(config: "SweepConfig", filters: "Filters", *, reads_inputs: bool) -> "Facts":
    """Return the facts about the inputs, or those of the last run of the same sweep, or assumed ones for counting."""
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
    from robust201.store.events import read_all_events
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
        protocols, earlier = folder.read_protocols(), find_plan(config.results)
        old = None if earlier is None else earlier.facts
        causes = find_causes(plan, state, listing, folder.read_tuple, protocols, old) if explain else []
    summary = estimate(plan, state, Speeds(read_all_events(config.results)))
    return summary | ({"causes": [cause._asdict() | {"text": str(cause)} for cause in causes]} if explain else {})


def show_plan(summary: Mapping[str, Any]) -> None:
    """Print the result of `sweep.costs.estimate`."""
    is_started = summary["evaluations_done"] > 0
    done = [("evaluations done", f"{summary['evaluations_done']:,}")] if is_started else []
    console.show_table(
        f"Sweep {summary['name']}",
        ("", "value"),
        [
            ("architectures", f"{summary['architectures']:,}"),
            ("network-key pairs", f"{summary['units']:,}"),
            ("evaluations", f"{summary['evaluations']:,}"),
            *done,
            ("results, estimated", format_bytes(summary["estimated_shard_bytes"])),
            ("JSON, estimated", format_bytes(summary["estimated_json_bytes"])),
            *(_describe_measured_hours(summary) if is_started else console.describe_hours(summary)),
        ],
    )
    for cause in summary.get("causes", ()):
        console.say(cause["text"])
    if summary["hours_by_key"]:
        _show_hours_by_key(summary)


def _describe_measured_hours(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    n_measured = sum(cost["is_measured"] for cost in summary["hours_by_key"])
    speed = "at the measured speed" if n_measured == len(summary["hours_by_key"]) else "at measured and assumed speeds"
    return [(f"worker-hours left, {speed}", console.format_hours(summary["worker_hours"]))]


def _show_hours_by_key(summary: Mapping[str, Any]) -> None:
    costs_by_key: dict[str, dict[str, Any]] = {}
    datasets = list(dict.fromkeys(cost["dataset"] for cost in summary["hours_by_key"]))
    for cost in summary["hours_by_key"]:
        costs_by_key.setdefault(cost["key"], {})[cost["dataset"]] = cost
    ordered = sorted(costs_by_key.items(), key=lambda item: -_total_hours(item[1]))
    rows = [_format_key_costs(key, costs, datasets) for key, costs in ordered[:_MAX_SHOWN_KEYS]]
    if others := ordered[_MAX_SHOWN_KEYS:]:
        hours = sum(_total_hours(costs) for _, costs in others)
        rows.append((f"{len(others)} other keys", *[""] * len(datasets), console.format_hours(hours)))
    n_measured = sum(cost["is_measured"] for cost in summary["hours_by_key"])
    source = "at the assumed speed"
    if n_measured:
        source = f"m = measured speed ({n_measured} of {len(summary['hours_by_key'])}), otherwise assumed speed"
    console.show_table(f"Worker-hours by key, {source}", ("key", *datasets, "all"), rows)


def _total_hours(costs: Mapping[str, Any]) -> float:
    return float(sum(cost["hours"] for cost in costs.values()))


def _format_key_costs(key: str, costs: Mapping[str, Any], datasets: Sequence[str]) -> tuple[str, ...]:
    texts = [
        console.format_hours(costs[dataset]["hours"]) + (" m" if costs[dataset]["is_measured"] else "")
        if dataset in costs
        else ""
        for dataset in datasets
    ]
    return key, *texts, console.format_hours(_total_hours(costs))
