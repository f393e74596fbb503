"""Costs in `robust201 plan`: worker-hours by key, and days on the sweep's workers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robust201.cli import console

if TYPE_CHECKING:
    from robust201.planning.plan import Plan

_MAX_SHOWN_KEYS = 12

_MIN_HOURS_FOR_DAYS = 1.0
"""Minimum worker-hours of a sweep for which `plan` shows the days on its workers."""


def summarise(plan: "Plan") -> dict[str, Any]:
    """Return the hours by key, and the days on the sweep's workers, as a JSON value."""
    from robust201.planning.costs import key_costs, measure_speeds, total_hours

    speeds = measure_speeds(plan, plan.config.results)
    hours, workers = total_hours(plan, speeds), plan.config.execution.workers
    return {
        "worker_hours": hours,
        "workers": workers,
        "days": hours / 24 / (workers or 1),
        "hours_by_key": [cost._asdict() for cost in key_costs(plan, speeds)],
    }


def show_cost_estimates(costs: dict[str, Any]) -> None:
    """Print the result of `summarise`."""
    costs_by_key: dict[str, dict[str, Any]] = {}
    datasets = list(dict.fromkeys(cost["dataset"] for cost in costs["hours_by_key"]))
    for cost in costs["hours_by_key"]:
        costs_by_key.setdefault(cost["key"], {})[cost["dataset"]] = cost
    ordered_costs = sorted(costs_by_key.items(), key=lambda item: -sum(cost["hours"] for cost in item[1].values()))
    rows = [
        _format_key_costs(key, cost_by_dataset, datasets) for key, cost_by_dataset in ordered_costs[:_MAX_SHOWN_KEYS]
    ]
    if other_keys := ordered_costs[_MAX_SHOWN_KEYS:]:
        hours = sum(cost["hours"] for _, cost_by_dataset in other_keys for cost in cost_by_dataset.values())
        rows.append((f"{len(other_keys)} other keys", *[""] * len(datasets), console.format_hours(hours)))
    n_measured = sum(cost["is_measured"] for cost in costs["hours_by_key"])
    source = "at the assumed speed"
    if n_measured:
        source = f"m = measured speed ({n_measured} of {len(costs['hours_by_key'])}), otherwise assumed speed"
    console.show_table(f"Worker-hours by key, {source}", ("key", *datasets, "all"), rows)
    if costs["worker_hours"] >= _MIN_HOURS_FOR_DAYS:
        console.say(_describe_days(costs))


def _format_key_costs(key: str, cost_by_dataset: dict[str, dict[str, Any]], datasets: Sequence[str]) -> tuple[str, ...]:
    texts = []
    for dataset in datasets:
        cost = cost_by_dataset.get(dataset)
        texts.append(
            "" if cost is None else console.format_hours(cost["hours"]) + (" m" if cost["is_measured"] else "")
        )
    return key, *texts, console.format_hours(sum(cost["hours"] for cost in cost_by_dataset.values()))


def _describe_days(costs: dict[str, Any]) -> str:
    hours, workers = costs["worker_hours"], costs["workers"]
    count = console.format_count(workers or 1, "worker")
    hint = "" if workers else "; set another number in `execution.workers`"
    days = costs["days"]
    time = f"{days:,.0f} days" if days >= 10 else f"{days:.1f} days" if days >= 1 else f"{24 * days:.2g} hours"
    return f"{console.format_hours(hours)} worker-hours are {time} on {count}{hint}."
