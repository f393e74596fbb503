"""Designs: cheaper versions of a sweep, such as half the images, with their cost and the precision of their results."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from robust201.core.errors import ConfigError
from robust201.core.records import ArchitectureId
from robust201.planning.budgets import SampleCosts, sample_sizes, smallest_cost
from robust201.planning.config import SweepConfig
from robust201.planning.costs import Speeds, key_costs, total_hours
from robust201.planning.plan import Plan, assumed_facts, make_plan, plan_without_samples, sample_costs
from robust201.planning.samples import choose_pilot
from robust201.planning.sampling_section import parse_budget
from robust201.statistics.intervals import NORMAL_QUANTILE
from robust201.tasks.columns import PREDICTIONS

PrecisionEstimate = Callable[[str, str, int, int], tuple[float, float | None]]
"""Function from (dataset, key, number of sampled images, number of all images) to the half-width of the 95% interval
and the expected Kendall tau with the ranking on all images (None if unknown)."""

DEFAULT_PILOT_SIZE = 20
"""Number of pilot networks in a design for a sweep without `sampling`; in a small sweep, a fifth of the networks."""

_MIN_FACTOR = 0.1
"""Smallest factor by which the queries and steps of attacks are multiplied."""

_TOLERANCE = 1.0001
"""Maximum ratio of hours to budget at which a design fits; above 1, because hours are rounded."""

_MIN_EXPENSIVE_FRACTION = 0.01
"""Minimum fraction of the sweep's cost that a key must have to count in the median precision of the design with half
the images."""

_REDUCED_FIELDS = ("queries", "steps")
_MAX_LISTED_NETWORKS = 8


@dataclass(frozen=True)
class CheaperDesign:
    """A cheaper version of a sweep.

    Attributes:
        name: description of what is reduced, such as "half the images".
        hours: worker-hours.
        half_width: median over sampled keys of the half-width of the 95% interval; 0 if all images are used, None if
            unknown.
        tau: expected Kendall tau with the ranking of all networks by the full sweep; None if unknown. Pairs with a
            network that is not evaluated count as 0.
        drawback: description of what is lost compared with the full sweep.
        yaml: fields of the sweep YAML to set.
        is_over_budget: whether the design exceeds the budget, although it is the cheapest of its kind.
    """

    name: str
    hours: float
    half_width: float | None
    tau: float | None
    drawback: str
    yaml: dict[str, Any]
    is_over_budget: bool = False

    def to_payload(self) -> dict[str, Any]:
        return {
            "design": self.name,
            "worker_hours": self.hours,
            "half_width": self.half_width,
            "expected_kendall_tau": self.tau,
            "loss": self.drawback,
            "yaml": self.yaml,
            "over_budget": self.is_over_budget,
        }


def worst_case_precision(_dataset: str, _key: str, n_sampled: int, n_images: int) -> tuple[float, float | None]:
    """Return the largest half-width of an interval from a simple random sample (at accuracy 0.5), and None for tau."""
    return NORMAL_QUANTILE * math.sqrt(0.25 / n_sampled * max(0.0, 1 - n_sampled / n_images)), None


def halved_designs(plan: Plan, speeds: Speeds, precision: PrecisionEstimate) -> list[CheaperDesign]:
    """Return up to three designs: half the images, half the networks, and half the queries and steps of attacks.

    The list is empty for a sampled sweep, because its cost is its budget and its intervals are not binomial. A design
    is omitted if the sweep has too few networks, or no attack with queries or steps.
    """
    if plan.config.sampling is not None:
        return []
    full_hours = total_hours(plan, speeds)
    costs = key_costs(plan, speeds)
    expensive_keys = {(cost.dataset, cost.key) for cost in costs if cost.hours >= _MIN_EXPENSIVE_FRACTION * full_hours}
    halved_counts = {planned_key.protocol: max(1, planned_key.n_images // 2) for planned_key in plan.planned_keys}
    half_width, tau = _median_precision(
        [
            precision(planned_key.dataset, planned_key.key, halved_counts[planned_key.protocol], planned_key.n_images)
            for planned_key in plan.planned_keys
            if planned_key.n_images
            and not planned_key.columns
            and (planned_key.dataset, planned_key.key) in expensive_keys
        ]
    )
    counts = {planned_key.n_images for planned_key in plan.planned_keys}
    # `images.count` is the same for all datasets.
    fields = {"images": {"count": max(1, counts.pop() // 2)}} if len(counts) == 1 else {}
    designs = [CheaperDesign("half the images", full_hours / 2, half_width, tau, "wider intervals", fields)]
    n_networks = len(plan.config.selected_architectures)
    if n_networks > 3:
        designs.append(_design_with_fewer_networks(plan, speeds, n_networks // 2, "half the networks"))
    weaker_config = weaken(plan.config, 0.5)
    if weaker_config is not None:
        hours = total_hours(_plan_same_units(weaker_config, plan), speeds)
        designs.append(
            CheaperDesign(
                "half the queries and steps",
                hours,
                None,
                None,
                _DRAWBACK_OF_WEAKER_ATTACKS,
                _changed_key_fields(weaker_config, plan),
            )
        )
    return designs


_DRAWBACK_OF_WEAKER_ATTACKS = "weaker attacks: accuracies are too high by an unknown amount, and the protocol changes"


def designs_for_budget(
    config: SweepConfig,
    budget: str,
    speeds: Speeds,
    precision: PrecisionEstimate,
    reload: Callable[..., SweepConfig],
) -> list[CheaperDesign]:
    """Find three designs for a budget: sampled images, fewer networks, and weaker attacks.

    Args:
        config: the sweep, with or without `sampling`.
        budget: text such as ``500h`` or ``2.5%``.
        speeds: measured speeds.
        precision: see `PrecisionEstimate`.
        reload: function that reads the sweep again; its arguments override fields of the YAML (see
            `planning.loading.load_config`).

    Returns:
        One design per kind: the most precise design that fits, or the cheapest if none fits. Empty if the full sweep
        fits.

    Raises:
        ConfigError: the budget is invalid, or no pilot is possible.
    """
    try:
        hours, fraction = parse_budget(budget)
    except ValueError as error:
        raise ConfigError(f"Reading the command line failed for --budget: {error} Correct it.") from error
    plan = plan_without_samples(config, assumed_facts(config))
    full_hours = total_hours(plan, speeds)
    allowed_hours = hours if hours is not None else full_hours * (fraction or 0.0)
    if allowed_hours >= full_hours:
        return []
    designs = [
        _sampled_design(config, allowed_hours, full_hours, speeds, precision, reload),
        _reduce_networks_to_fit(plan, allowed_hours, speeds),
        _weaken_attacks_to_fit(plan, allowed_hours, speeds),
    ]
    return [replace(design, is_over_budget=design.hours > allowed_hours * _TOLERANCE) for design in designs]


def _sampled_design(
    config: SweepConfig,
    allowed_hours: float,
    full_hours: float,
    speeds: Speeds,
    precision: PrecisionEstimate,
    reload: Callable[..., SweepConfig],
) -> CheaperDesign:
    """Return the design that samples images within the budget, or the cheapest such design if none fits."""
    n_networks = len(config.selected_architectures)
    if n_networks < 3:
        raise ConfigError(
            f"Planning for a budget failed for {config.name}: expected at least 3 networks (2 in the pilot), got "
            f"{n_networks}. Add architectures, or evaluate fewer images with `images: {{count: N}}`."
        )
    measurements = list(config.measurements) + [PREDICTIONS] * (PREDICTIONS not in config.measurements)
    section: dict[str, Any] = {} if config.sampling is None else config.sampling.model_dump(exclude_defaults=True)

    def apply_budget(budget_text: str) -> float:
        """Set the budget in `section`, and return the worker-hours of the sampled sweep."""
        section["budget"] = budget_text
        sampled_config = reload(sampling=section, measurements=measurements)
        return total_hours(make_plan(sampled_config, assumed_facts(sampled_config)), speeds)

    for pilot_size in _pilot_sizes(config):
        section |= {"budget": "100%", "pilot": pilot_size}
        full_config = reload(sampling=section, measurements=measurements)
        costs: SampleCosts = sample_costs(plan_without_samples(full_config, assumed_facts(full_config)))
        min_fraction = smallest_cost(costs) / costs.full_cost
        hours = apply_budget(_format_percent(min_fraction))
        if hours <= allowed_hours * _TOLERANCE:
            break
    # `run` converts hours with the assumed speed. If speeds were measured, the budget is written as a fraction instead,
    # which is lowered until the design fits.
    fraction = allowed_hours / full_hours
    max_attempts = 10 if hours * _TOLERANCE <= allowed_hours else 0  # 0: the smallest samples already use up the budget
    for _ in range(max_attempts):
        hours = apply_budget(_format_percent(max(min_fraction, fraction)) if speeds else _format_hours(allowed_hours))
        if not speeds or hours <= allowed_hours * _TOLERANCE:
            break
        fraction = max(min_fraction, fraction) * 0.999 * allowed_hours / hours
    sizes = sample_sizes(costs, parse_budget(section["budget"]), config.name)
    precisions = {
        dataset_key: precision(*dataset_key, count, costs.n_images[dataset_key])
        for dataset_key, count in sizes.items()
        if count
    }
    half_width, tau = _median_precision(list(precisions.values()))
    max_half_widths: dict[str, float] = {}
    for (_, key), (width, _) in precisions.items():
        max_half_widths[key] = max(width, max_half_widths.get(key, 0.0))
    fields: dict[str, Any] = {"sampling": section}
    if measurements != list(config.measurements):
        fields["measurements"] = measurements
    images = ", ".join(
        f"{key} {count:,} (half-width {100 * max_half_widths[key]:.2g})"
        for key, count in _find_smallest_sizes(sizes).items()
        if key in max_half_widths
    )
    drawback = f"estimates with intervals; images: {images}"
    if hours > allowed_hours * _TOLERANCE:
        fixed_hours = hours * costs.fixed / costs.cost_with_sizes(sizes)
        drawback = (
            f"the pilot of {pilot_size:,} networks and the keys that are not sampled take {fixed_hours:.3g} "
            f"worker-hours; {drawback}"
        )
    return CheaperDesign("all networks, sampled images", hours, half_width, tau, drawback, fields)


def _pilot_sizes(config: SweepConfig) -> tuple[int, ...]:
    """Return the pilot sizes to try: the size in the sweep, or otherwise a default, its half and its quarter."""
    if config.sampling is not None:
        return (config.sampling.pilot,)
    max_size = min(DEFAULT_PILOT_SIZE, max(2, len(config.selected_architectures) // 5))
    return tuple(dict.fromkeys(max(2, max_size // divisor) for divisor in (1, 2, 4)))


def _format_hours(hours: float) -> str:
    return f"{hours:.9f}".rstrip("0").rstrip(".") + "h"


def _format_percent(fraction: float) -> str:
    """Format a fraction of the cost as a budget, rounded up so that it is sufficient."""
    return f"{math.ceil(1e8 * fraction * (1 - 1e-10)) / 1e6:.6f}".rstrip("0").rstrip(".") + "%"


def _find_smallest_sizes(sizes: Any) -> dict[str, int]:
    """Return the smallest sample size of each key among the datasets."""
    smallest_sizes: dict[str, int] = {}
    for (_, key), count in sizes.items():
        smallest_sizes[key] = min(count, smallest_sizes.get(key, count))
    return smallest_sizes


def _reduce_networks_to_fit(plan: Plan, allowed_hours: float, speeds: Speeds) -> CheaperDesign:
    """Return the design with as many networks as the budget allows, but at least two."""
    low, high = 0, len(plan.config.selected_architectures)
    while low < high:
        middle = (low + high + 1) // 2
        fits = total_hours(_narrow_to_networks(plan, middle), speeds) <= allowed_hours
        low, high = (middle, high) if fits else (low, middle - 1)
    return _design_with_fewer_networks(plan, speeds, max(2, low), "fewer networks, all images")


def _design_with_fewer_networks(plan: Plan, speeds: Speeds, count: int, name: str) -> CheaperDesign:
    """Return the design that evaluates only `count` pseudorandomly chosen networks."""
    n_networks = len(plan.config.selected_architectures)
    tau = count * (count - 1) / (n_networks * (n_networks - 1))
    chosen_architectures = list(choose_pilot(plan.config.selected_architectures, count, 0))
    drawback = (
        f"no results for {_count_networks(n_networks - count)} (robust201 predict estimates them); exact for {count:,}"
    )
    return CheaperDesign(
        name,
        total_hours(_narrow_to_networks(plan, count), speeds),
        0.0,
        tau,
        drawback,
        {"architectures": chosen_architectures},
    )


def _count_networks(count: int) -> str:
    return "1 network" if count == 1 else f"{count:,} networks"


def _narrow_to_networks(plan: Plan, count: int) -> Plan:
    return plan.narrow(architectures=set(choose_pilot(plan.config.selected_architectures, count, 0)))


def _weaken_attacks_to_fit(plan: Plan, allowed_hours: float, speeds: Speeds) -> CheaperDesign:
    """Weaken attacks as little as the budget requires; if a tenth of their work exceeds it, also use fewer networks."""
    low, high = _MIN_FACTOR, 1.0
    fitting_plan = None
    for first_factor in (_MIN_FACTOR, *[None] * 12):  # the smallest factor, then 12 steps of bisection
        factor = first_factor or (low + high) / 2
        config = weaken(plan.config, factor)
        weaker_plan = plan if config is None else plan_without_samples(config, assumed_facts(config))
        if total_hours(weaker_plan, speeds) <= allowed_hours:
            low, fitting_plan = factor, weaker_plan
        elif first_factor is not None:
            design = _reduce_networks_to_fit(weaker_plan, allowed_hours, speeds)
            name = "a tenth of the queries and steps, fewer networks"
            return replace(
                design,
                name=name,
                half_width=None,
                tau=None,
                drawback=f"{_DRAWBACK_OF_WEAKER_ATTACKS}; {design.drawback}",
                yaml=_changed_key_fields(weaker_plan.config, plan) | design.yaml,
            )
        else:
            high = factor
    assert fitting_plan is not None  # noqa: S101 - the smallest factor fits, or the loop has returned
    hours = total_hours(fitting_plan, speeds)
    return CheaperDesign(
        "fewer queries and steps",
        hours,
        None,
        None,
        _DRAWBACK_OF_WEAKER_ATTACKS,
        _changed_key_fields(fitting_plan.config, plan),
    )


def weaken(config: SweepConfig, factor: float) -> SweepConfig | None:
    """Multiply the queries and steps of the sweep's attacks by a factor; return None if this changes no attack.

    Relative step sizes grow in proportion, so that an attack can move as far as before.
    """
    keys = dict(config.keys)
    for name, parameters in config.parameters.items():
        fields = keys.get(name)
        if fields is None or "file" in fields or "source" in fields or config.tasks[name].kind != "attack":
            continue
        amounts = {field: getattr(parameters, field, None) for field in _REDUCED_FIELDS}
        scaled_fields = {
            field: max(1, round(factor * n)) for field, n in amounts.items() if isinstance(n, int) and n > 1
        }
        keys[name] = {**fields, **scaled_fields}
        step_size, steps = getattr(parameters, "rel_stepsize", None), amounts["steps"]
        if step_size is not None and isinstance(steps, int) and "steps" in scaled_fields:
            keys[name]["rel_stepsize"] = min(1.0, step_size * steps / scaled_fields["steps"])
    return None if keys == config.keys else config.model_copy(update={"keys": keys, "sampling": None})


def _plan_same_units(config: SweepConfig, plan: Plan) -> Plan:
    """Plan another configuration for the networks, datasets and keys of a plan."""
    networks = {network.architecture for planned_key in plan.planned_keys for network in planned_key.networks}
    datasets = {planned_key.dataset for planned_key in plan.planned_keys}
    keys = {planned_key.key for planned_key in plan.planned_keys}
    full_plan = plan_without_samples(config, assumed_facts(config))
    return full_plan.narrow(architectures=networks, datasets=datasets, keys=keys)


def _changed_key_fields(config: SweepConfig, plan: Plan) -> dict[str, Any]:
    """Return the YAML field `keys` with only the keys whose fields differ from those of the plan."""
    plan_keys = plan.config.keys
    return {"keys": {name: fields for name, fields in config.keys.items() if fields != plan_keys.get(name)}}


def _median_precision(precisions: Sequence[tuple[float, float | None]]) -> tuple[float | None, float | None]:
    """Return the medians over keys of half-widths and of known taus."""
    widths = sorted(width for width, _ in precisions)
    taus = sorted(tau for _, tau in precisions if tau is not None and not math.isnan(tau))
    return _median(widths), _median(taus)


def _median(values: Sequence[float]) -> float | None:
    count = len(values)
    return None if not count else (values[(count - 1) // 2] + values[count // 2]) / 2


def yaml_lines(fields: dict[str, Any]) -> list[str]:
    """Format fields of a sweep as YAML lines, one per field; a long list of networks is shortened."""
    lines = []
    for name, value in fields.items():
        if name == "architectures" and len(value) > _MAX_LISTED_NETWORKS:
            listed_networks: Sequence[ArchitectureId] = value[:_MAX_LISTED_NETWORKS]
            lines.append(f"{name}: [{', '.join(map(str, listed_networks))}, ...]  # {len(value):,}; --json lists all")
        else:
            lines.append(f"{name}: {_format_flow(value)}")
    return lines


def _format_flow(value: Any) -> str:
    """Format a value in YAML's flow style, such as ``[1, 2]``."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_format_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_format_flow, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
