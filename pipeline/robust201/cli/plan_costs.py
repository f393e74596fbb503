"""Costs in `robust201 plan`: hours by key, cheaper designs, designs for a budget, and the cells to evaluate next.

A design is a variant of the sweep with fewer networks, fewer images, or fewer steps and queries of attacks.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust201.cli import console
from robust201.cli.monitoring import print_json
from robust201.core.errors import ConfigError, RobustError

if TYPE_CHECKING:
    from robust201.analysis.pilot_precision import PilotPrecision
    from robust201.planning.config import SweepConfig
    from robust201.planning.plan import Plan

_MAX_SHOWN_KEYS = 12

_MIN_HOURS_FOR_DESIGNS = 1.0
"""Minimum worker-hours of a sweep for which `plan` shows cheaper designs."""


def summarise(
    plan: "Plan", like: Path | None, budget: str | None, reload: "Callable[..., SweepConfig]"
) -> dict[str, Any]:
    """Return hours by key, days on the sweep's workers, and cheaper designs, as a JSON value.

    Args:
        plan: the plan, narrowed by the command's options.
        like: dataset whose outcomes predict the precision; if None, the pilot in the results folder is used, provided
            that it is complete.
        budget: budget such as ``500h``, for which three designs are added.
        reload: function that reads the sweep again; its arguments override fields of the YAML.
    """
    from robust201.planning.costs import key_costs, measure_speeds, total_hours
    from robust201.planning.designs import designs_for_budget, halved_designs, worst_case_precision

    precision = _choose_precision(plan, like)
    simple_precision, sampled_precision = (
        (worst_case_precision, worst_case_precision) if precision is None else (precision.simple, precision.sampled)
    )
    speeds = measure_speeds(plan, plan.config.results)
    hours, workers = total_hours(plan, speeds), plan.config.execution.workers
    costs: dict[str, Any] = {
        "worker_hours": hours,
        "workers": workers,
        "days": hours / 24 / (workers or 1),
        "hours_by_key": [cost._asdict() for cost in key_costs(plan, speeds)],
        "savings": [design.to_payload() for design in halved_designs(plan, speeds, simple_precision)],
        "precision_from": None if precision is None else "pilot" if like is None else "like",
    }
    if budget is None:
        return {"costs": costs}
    designs = designs_for_budget(plan.config, budget, speeds, sampled_precision, reload)
    return {"costs": costs, "designs": [design.to_payload() for design in designs]}


def _choose_precision(plan: "Plan", like: Path | None) -> "PilotPrecision | None":
    """Predict the precision from a dataset or, without one, from the pilot in the results folder.

    Return None if there is no usable pilot either.
    """
    if like is None:
        try:
            return predict_precision_from_pilot(plan)
        except RobustError as error:
            console.say(f"The pilot in {plan.config.results} is not used for half-widths: {error}")
            return None
    from robust201.analysis.pilot_precision import PilotPrecision, ReferenceDataset
    from robust201.planning.sampling_section import DEFAULT_CHEAP
    from robust201.reader.dataset import RobustnessDataset

    sampling, parameters = plan.config.sampling, plan.config.parameters
    cheap_keys = DEFAULT_CHEAP if sampling is None else sampling.cheap
    return PilotPrecision(
        ReferenceDataset(RobustnessDataset(like), [key for key in cheap_keys if key in parameters]).read
    )


def predict_precision_from_pilot(plan: "Plan") -> "PilotPrecision | None":
    """Return the precision predicted from a sampled sweep's evaluated pilot; None if none of its keys can be used.

    A key can be used if its stored protocol has the same settings as the plan's protocol (`costs.have_same_settings`).

    Raises:
        RobustError: the results folder is damaged.
    """
    from robust201.planning.plan_file import PLAN_FILE, load_plan

    results = plan.config.results
    if not (results / PLAN_FILE).is_file():
        return None
    stored_plan = load_plan(results)
    if stored_plan.config.sampling is None:
        return None
    from robust201.analysis.pilot_precision import PilotPrecision, read_pilots
    from robust201.export.outcome_files import evaluated_images
    from robust201.planning.costs import have_same_settings
    from robust201.shards import ShardStore

    store = ShardStore.open(results)
    inventory = store.inventory(on_damage="report")
    pilots = read_pilots(stored_plan, store, inventory, lambda plan, name: evaluated_images(plan, name).labels)
    stored_payloads, payloads = (
        {
            (planned_key.dataset, planned_key.key): source.protocols[planned_key.protocol].payload
            for planned_key in source.planned_keys
        }
        for source in (stored_plan, plan)
    )
    usable_outcomes = {
        dataset_and_key: outcomes
        for dataset_and_key, outcomes in pilots.items()
        if dataset_and_key in payloads
        and have_same_settings(stored_payloads[dataset_and_key], payloads[dataset_and_key])
    }
    return PilotPrecision(lambda dataset, key: usable_outcomes.get((dataset, key))) if usable_outcomes else None


def show_cost_estimates(summary: Mapping[str, Any], budget: str | None) -> None:
    """Print the result of `summarise`."""
    has_precision = summary["costs"]["precision_from"] is not None
    if summary["costs"]["precision_from"] == "pilot":
        console.say("Half-widths and tau are computed from the sweep's complete pilot.")
    _show_hours_by_key(summary["costs"], has_precision=has_precision)
    if budget is not None:
        _show_budget(summary["designs"], budget, summary["costs"]["worker_hours"], has_precision=has_precision)


def _show_hours_by_key(costs: dict[str, Any], *, has_precision: bool) -> None:
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
    if costs["worker_hours"] < _MIN_HOURS_FOR_DESIGNS:
        return
    console.say(_describe_days(costs))
    if not costs["savings"]:
        console.say("The sweep is sampled: a smaller sampling.budget makes it cheaper, with fewer images.")
        return
    _show_designs("Cheaper designs", costs["savings"], costs["worker_hours"], has_precision=has_precision)


def _show_budget(designs: Sequence[dict[str, Any]], budget: str, full_hours: float, *, has_precision: bool) -> None:
    """Print designs for a budget, each with its lines of YAML."""
    from robust201.planning.designs import yaml_lines

    if not designs:
        console.say(
            f"The full sweep fits the budget {budget}: it takes {console.format_hours(full_hours)} worker-hours."
        )
        return
    _show_designs(f"Designs for {budget}", designs, full_hours, has_precision=has_precision)
    if all(design["over_budget"] for design in designs):
        console.say(f"No design fits the budget {budget}; these are the cheapest.")
    elif designs[0]["over_budget"]:
        console.say(
            f"The budget {budget} is too small to sample images: the cheapest design that samples images is shown."
        )
    for design in designs:
        console.out.print(f"\n# {design['design']}", markup=False, highlight=False)
        for line in yaml_lines(design["yaml"]):
            console.out.print(line, markup=False, highlight=False)


def _show_designs(title: str, designs: Sequence[dict[str, Any]], full_hours: float, *, has_precision: bool) -> None:
    rows = [
        (
            design["design"] + (" (over the budget)" if design["over_budget"] else ""),
            console.format_hours(design["worker_hours"]),
            f"{100 * (1 - design['worker_hours'] / full_hours):.1f}%" if full_hours else "-",
            _format_points(
                design["half_width"], "unknown" if "weaker" in design["loss"] else "-", is_upper_bound=not has_precision
            ),
            "unknown" if design["expected_kendall_tau"] is None else f"{design['expected_kendall_tau']:.2f}",
        )
        for design in designs
    ]
    columns = ("", "worker-hours", "saved", "half-width of 95% intervals, points", "expected tau")
    console.show_table(title, columns, rows)
    for design in designs:
        console.say(f"{design['design']}: {design['loss']}")
    if not has_precision:
        console.say(
            "Half-widths are upper bounds, for simple random sampling at an accuracy of 50%. To compute half-widths "
            "and Kendall's tau with the full ranking, name a dataset with per-image outcomes: --like DATASET."
        )


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
    hint = "" if workers else "; set another number with --workers N"
    days = costs["days"]
    time = f"{days:,.0f} days" if days >= 10 else f"{days:.1f} days" if days >= 1 else f"{24 * days:.2g} hours"
    return f"{console.format_hours(hours)} worker-hours are {time} on {count}{hint}."


def _format_points(value: float | None, text_if_none: str, *, is_upper_bound: bool) -> str:
    """Render a fraction in percentage points, preceded by "up to" if it is only an upper bound."""
    if value is None:
        return text_if_none
    return f"{'up to ' if is_upper_bound and value else ''}{100 * value:.2g}"


def show_next(
    config: "SweepConfig",
    like: Path | None,
    count: int,
    goal: str,
    keys: Sequence[str] | None,
    data: str | None,
    *,
    as_json: bool,
) -> None:
    """Print the cells to evaluate next as a field of the sweep YAML."""
    cells = choose_next_cells(config, like, count, goal, keys, data)
    if as_json:
        print_json({"architectures": cells, "for": goal})
    else:
        console.out.print(f"architectures: {cells}", markup=False, highlight=False)


def choose_next_cells(
    config: "SweepConfig", like: Path | None, count: int, goal: str, keys: Sequence[str] | None, data: str | None
) -> list[int]:
    """Choose the cells of a sweep to evaluate next, given a dataset of evaluated cells.

    Raises:
        ConfigError: an option is missing or wrong, or fewer than `count` cells remain.
    """
    from robust201.analysis.estimated import fill_in_estimates, read_standard_errors
    from robust201.cli.predict import read_dataset_results
    from robust201.search.cell_predictions import AIMS, choose_next

    if like is None:
        raise ConfigError(
            "Reading the command line failed for --next: it needs --like DATASET, the export of the cells evaluated so "
            "far. Export the results, and name the folder."
        )
    valid_goal = next((name for name in AIMS if name == goal), None)
    if valid_goal is None:
        raise ConfigError(
            f"Reading the command line failed for --next-for: expected {' or '.join(AIMS)}, got {goal!r}. Choose one."
        )
    results = read_dataset_results([like], data)
    standard_errors = read_standard_errors(results)
    results, note = fill_in_estimates(results)
    if note:
        console.say(note)
    if config.space_name != (results.space.name if results.space else ""):
        raise ConfigError(
            f"Choosing cells failed for {config.name}: its space {config.space_name} is not the space of {like}. "
            "Choose another dataset or sweep."
        )
    candidate_cells = [architecture for architecture in config.selected_architectures if isinstance(architecture, int)]
    return choose_next(results, keys, count, valid_goal, allowed=candidate_cells, standard_errors=standard_errors)
