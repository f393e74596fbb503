"""Cheaper designs of a sweep, with the cost and the precision of each, and designs that fit a budget."""

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

Precision = Callable[[str, str, int, int], tuple[float, float | None]]
"""Function from (dataset, key, number of sampled images, number of all images) to the half-width of the 95% interval
and the expected Kendall tau with the ranking on all images (None if unknown)."""

DEFAULT_PILOT = 20
_MIN_FACTOR = 0.1
"""Minimum fraction of its queries and steps that an attack keeps."""

_TOLERANCE = 1.0001
"""Maximum ratio of hours to budget at which a design fits; above 1, because hours are rounded."""

_EXPENSIVE = 0.01
"""Minimum fraction of the sweep's cost for a key to be included in the median precision of the design with half the
images."""

_SCALED = ("queries", "steps")
_SHOWN_NETWORKS = 8


@dataclass(frozen=True)
class CheaperDesign:
    """A cheaper form of a sweep.

    Attributes:
        name: what is reduced, such as "half the images".
        hours: worker-hours.
        half_width: median over sampled keys of the half-width of the 95% interval; 0 if all images are used, None if
            unknown.
        tau: expected Kendall tau with the ranking of all networks by the full sweep; None if unknown. Pairs with a
            network that is not evaluated count as 0.
        loss: description of what is lost.
        yaml: fields of the sweep YAML to set.
        over_budget: whether even this cheapest design of its kind exceeds the budget.
    """

    name: str
    hours: float
    half_width: float | None
    tau: float | None
    loss: str
    yaml: dict[str, Any]
    over_budget: bool = False

    def to_payload(self) -> dict[str, Any]:
        return {
            "design": self.name,
            "worker_hours": self.hours,
            "half_width": self.half_width,
            "expected_kendall_tau": self.tau,
            "loss": self.loss,
            "yaml": self.yaml,
            "over_budget": self.over_budget,
        }


def worst_case(_dataset: str, _key: str, n_seen: int, n_images: int) -> tuple[float, float | None]:
    """Return the maximum half-width for a simple random sample, which is at accuracy 0.5, and None for unknown tau."""
    return NORMAL_QUANTILE * math.sqrt(0.25 / n_seen * max(0.0, 1 - n_seen / n_images)), None


def savings(plan: Plan, speeds: Speeds, precision: Precision) -> list[CheaperDesign]:
    """Return three designs: half the images, half the networks, and half the queries and steps of attacks.

    The list is empty for a sampled sweep, whose cost is its budget and whose intervals are not binomial.
    """
    if plan.config.sampling is not None:
        return []
    full_hours = total_hours(plan, speeds)
    costs = key_costs(plan, speeds)
    expensive = {(cost.dataset, cost.key) for cost in costs if cost.hours >= _EXPENSIVE * full_hours}
    halves = {planned.protocol: max(1, planned.n_images // 2) for planned in plan.planned_keys}
    half_width, tau = _medians(
        [
            precision(planned.dataset, planned.key, halves[planned.protocol], planned.n_images)
            for planned in plan.planned_keys
            if planned.n_images and not planned.columns and (planned.dataset, planned.key) in expensive
        ]
    )
    counts = {planned.n_images for planned in plan.planned_keys}
    # `images.count` is the same for all datasets.
    fields = {"images": {"count": max(1, counts.pop() // 2)}} if len(counts) == 1 else {}
    designs = [CheaperDesign("half the images", full_hours / 2, half_width, tau, "wider intervals", fields)]
    names = plan.config.selected_architectures
    if len(names) > 3:
        designs.append(_fewer_networks(plan, speeds, len(names) // 2, "half the networks"))
    weaker = weaken(plan.config, 0.5)
    if weaker is not None:
        hours = total_hours(_same_networks(weaker, plan), speeds)
        designs.append(
            CheaperDesign("half the queries and steps", hours, None, None, _WEAKER, _key_fields(weaker, plan))
        )
    return designs


_WEAKER = "weaker attacks: accuracies are too high by an unknown amount, and the protocol changes"


def designs_for_budget(
    config: SweepConfig,
    budget: str,
    speeds: Speeds,
    precision: Precision,
    reload: Callable[..., SweepConfig],
) -> list[CheaperDesign]:
    """Find three designs for a budget: sampled images, fewer networks, and weaker attacks.

    Args:
        config: the sweep, with or without `sampling`.
        budget: text such as ``500h`` or ``2.5%``.
        speeds: measured speeds.
        precision: see `Precision`.
        reload: function that reads the sweep again with other fields (see `planning.loading.load_config`).

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
    allowed = hours if hours is not None else full_hours * (fraction or 0.0)
    if allowed >= full_hours:
        return []
    designs = [
        _sampled_design(config, allowed, full_hours, speeds, precision, reload),
        _networks_that_fit(plan, allowed, speeds),
        _weaker_that_fits(plan, allowed, speeds),
    ]
    return [replace(design, over_budget=design.hours > allowed * _TOLERANCE) for design in designs]


def _sampled_design(
    config: SweepConfig,
    allowed: float,
    full_hours: float,
    speeds: Speeds,
    precision: Precision,
    reload: Callable[..., SweepConfig],
) -> CheaperDesign:
    n_networks = len(config.selected_architectures)
    if n_networks < 3:
        raise ConfigError(
            f"Planning for a budget failed for {config.name}: expected at least 3 networks (2 in the pilot), got "
            f"{n_networks}. Add architectures, or evaluate fewer images with `images: {{count: N}}`."
        )
    measurements = list(config.measurements) + [PREDICTIONS] * (PREDICTIONS not in config.measurements)
    section: dict[str, Any] = {} if config.sampling is None else config.sampling.model_dump(exclude_defaults=True)

    def hours_for(amount: str) -> float:
        section["budget"] = amount
        sampled_config = reload(sampling=section, measurements=measurements)
        return total_hours(make_plan(sampled_config, assumed_facts(sampled_config)), speeds)

    for pilot in _pilot_sizes(config):
        section |= {"budget": "100%", "pilot": pilot}
        full_config = reload(sampling=section, measurements=measurements)
        costs: SampleCosts = sample_costs(plan_without_samples(full_config, assumed_facts(full_config)))
        min_fraction = smallest_cost(costs) / costs.full_cost
        hours = hours_for(_percent_text(min_fraction))
        if hours <= allowed * _TOLERANCE:
            break
    # `run` converts hours with the assumed speed. If measured speeds differ, the budget is written as a fraction.
    fraction = allowed / full_hours
    for _ in range(10 if hours * _TOLERANCE <= allowed else 0):
        hours = hours_for(_percent_text(max(min_fraction, fraction)) if speeds else _hours_text(allowed))
        if not speeds or hours <= allowed * _TOLERANCE:
            break
        fraction = max(min_fraction, fraction) * 0.999 * allowed / hours
    sizes = sample_sizes(costs, parse_budget(section["budget"]), config.name)
    expected = {
        dataset_key: precision(*dataset_key, count, costs.n_images[dataset_key])
        for dataset_key, count in sizes.items()
        if count
    }
    half_width, tau = _medians(list(expected.values()))
    max_half_widths: dict[str, float] = {}
    for (_, key), (width, _) in expected.items():
        max_half_widths[key] = max(width, max_half_widths.get(key, 0.0))
    fields: dict[str, Any] = {"sampling": section}
    if measurements != list(config.measurements):
        fields["measurements"] = measurements
    images = ", ".join(
        f"{key} {count:,} (half-width {100 * max_half_widths[key]:.2g})"
        for key, count in _smallest_by_key(sizes).items()
        if key in max_half_widths
    )
    loss = f"estimates with intervals; images: {images}"
    if hours > allowed * _TOLERANCE:
        fixed_hours = hours * costs.fixed / costs.cost_with_sizes(sizes)
        loss = (
            f"the pilot of {pilot:,} networks and the keys that are not sampled take {fixed_hours:.3g} worker-hours; "
            f"{loss}"
        )
    return CheaperDesign("all networks, sampled images", hours, half_width, tau, loss, fields)


def _pilot_sizes(config: SweepConfig) -> tuple[int, ...]:
    """Return the pilot sizes to try: the size in the sweep, or otherwise a default, its half and its quarter."""
    if config.sampling is not None:
        return (config.sampling.pilot,)
    max_size = min(DEFAULT_PILOT, max(2, len(config.selected_architectures) // 5))
    return tuple(dict.fromkeys(max(2, max_size // divisor) for divisor in (1, 2, 4)))


def _hours_text(hours: float) -> str:
    return f"{hours:.9f}".rstrip("0").rstrip(".") + "h"


def _percent_text(fraction: float) -> str:
    """Format a fraction of the cost as a budget, rounded up so that it is sufficient."""
    return f"{math.ceil(1e8 * fraction * (1 - 1e-10)) / 1e6:.6f}".rstrip("0").rstrip(".") + "%"


def _smallest_by_key(sizes: Any) -> dict[str, int]:
    """Return the smallest sample size of each key over datasets."""
    by_key: dict[str, int] = {}
    for (_, key), count in sizes.items():
        by_key[key] = min(count, by_key.get(key, count))
    return by_key


def _networks_that_fit(plan: Plan, allowed: float, speeds: Speeds) -> CheaperDesign:
    names = plan.config.selected_architectures
    low, high = 0, len(names)
    while low < high:
        middle = (low + high + 1) // 2
        fits = total_hours(_narrow(plan, middle), speeds) <= allowed
        low, high = (middle, high) if fits else (low, middle - 1)
    return _fewer_networks(plan, speeds, max(2, low), "fewer networks, all images")


def _fewer_networks(plan: Plan, speeds: Speeds, count: int, name: str) -> CheaperDesign:
    total = len(plan.config.selected_architectures)
    tau = count * (count - 1) / (total * (total - 1))
    chosen = list(choose_pilot(plan.config.selected_architectures, count, 0))
    loss = f"no results for {_count_networks(total - count)} (robust201 predict estimates them); exact for {count:,}"
    return CheaperDesign(name, total_hours(_narrow(plan, count), speeds), 0.0, tau, loss, {"architectures": chosen})


def _count_networks(count: int) -> str:
    return "1 network" if count == 1 else f"{count:,} networks"


def _narrow(plan: Plan, count: int) -> Plan:
    return plan.narrow(architectures=set(choose_pilot(plan.config.selected_architectures, count, 0)))


def _weaker_that_fits(plan: Plan, allowed: float, speeds: Speeds) -> CheaperDesign:
    """Weaken attacks as little as the budget requires; if a tenth of their work is too much, also reduce networks."""
    low, high = _MIN_FACTOR, 1.0
    fitting = None
    for factor in (_MIN_FACTOR, *[None] * 12):
        middle = factor or (low + high) / 2
        config = weaken(plan.config, middle)
        weaker = plan if config is None else plan_without_samples(config, assumed_facts(config))
        if total_hours(weaker, speeds) <= allowed:
            low, fitting = middle, weaker
        elif factor is not None:
            design = _networks_that_fit(weaker, allowed, speeds)
            name = "a tenth of the queries and steps, fewer networks"
            return replace(
                design,
                name=name,
                half_width=None,
                tau=None,
                loss=f"{_WEAKER}; {design.loss}",
                yaml=_key_fields(weaker.config, plan) | design.yaml,
            )
        else:
            high = middle
    assert fitting is not None  # noqa: S101 - the smallest factor fits, or the loop has returned
    hours = total_hours(fitting, speeds)
    return CheaperDesign("fewer queries and steps", hours, None, None, _WEAKER, _key_fields(fitting.config, plan))


def weaken(config: SweepConfig, factor: float) -> SweepConfig | None:
    """Multiply the queries and steps of the sweep's attacks by a factor; return None if this changes no attack.

    Relative step sizes grow in proportion, so that an attack can move as far as before.
    """
    keys = dict(config.keys)
    for name, parameters in config.parameters.items():
        fields = keys.get(name)
        if fields is None or "file" in fields or "source" in fields or config.tasks[name].kind != "attack":
            continue
        amounts = {field: getattr(parameters, field, None) for field in _SCALED}
        scaled = {field: max(1, round(factor * n)) for field, n in amounts.items() if isinstance(n, int) and n > 1}
        keys[name] = {**fields, **scaled}
        step_size, steps = getattr(parameters, "rel_stepsize", None), amounts["steps"]
        if step_size is not None and isinstance(steps, int) and "steps" in scaled:
            keys[name]["rel_stepsize"] = min(1.0, step_size * steps / scaled["steps"])
    return None if keys == config.keys else config.model_copy(update={"keys": keys, "sampling": None})


def _same_networks(config: SweepConfig, plan: Plan) -> Plan:
    networks = {network.architecture for planned in plan.planned_keys for network in planned.networks}
    datasets = {planned.dataset for planned in plan.planned_keys}
    keys = {planned.key for planned in plan.planned_keys}
    everything = plan_without_samples(config, assumed_facts(config))
    return everything.narrow(architectures=networks, datasets=datasets, keys=keys)


def _key_fields(config: SweepConfig, plan: Plan) -> dict[str, Any]:
    """Return the entries of `keys` that differ from the plan's."""
    before = plan.config.keys
    return {"keys": {name: fields for name, fields in config.keys.items() if fields != before.get(name)}}


def _medians(precisions: Sequence[tuple[float, float | None]]) -> tuple[float | None, float | None]:
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
        if name == "architectures" and len(value) > _SHOWN_NETWORKS:
            shown: Sequence[ArchitectureId] = value[:_SHOWN_NETWORKS]
            lines.append(f"{name}: [{', '.join(map(str, shown))}, ...]  # {len(value):,}; --json lists all")
        else:
            lines.append(f"{name}: {_flow(value)}")
    return lines


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
