"""What one worker of a job array does: compute its share of a prepared sweep, with no driver and no lease."""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from robust201.core.errors import ConfigError, InputError
from robust201.core.files import make_folder
from robust201.core.records import Bundle, Unit
from robust201.planning.config import SweepConfig
from robust201.planning.filters import EVERYTHING, Filters
from robust201.planning.identity import describe_difference
from robust201.planning.inputs import Inputs
from robust201.planning.plan import Plan, split_off_undrawn
from robust201.planning.plan_file import PLAN_FILE, load_plan
from robust201.planning.shares import Share, all_bundles, missing_bundles
from robust201.planning.training_config import TrainingConfig
from robust201.planning.user_tasks import UserTaskParameters
from robust201.planning.weights import WeightsSource
from robust201.runtime.driver import OnProgress
from robust201.runtime.heartbeat import Heartbeat
from robust201.runtime.lease import LEASE_NAME
from robust201.runtime.preview import RunPreview
from robust201.runtime.progress import count_evaluations
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import MakeExecutor, compute, make_driver
from robust201.shards import ShardStore

DRAIN_VARIABLE = "ROBUST201_DRAIN_SECONDS"
"""Environment variable: how long a batch file lets its tasks drain; the shorter of it and `execution.drain_seconds`."""

_SHOWN_CHARACTERS = 200

_Config = TypeVar("_Config", SweepConfig, TrainingConfig)


def run_share(
    config: SweepConfig,
    share: Share,
    make_executor: MakeExecutor,
    *,
    filters: Filters = EVERYTHING,
    on_code: Callable[[Mapping[str, str]], None] = lambda _code: None,
    on_preview: Callable[[RunPreview], None] = lambda _preview: None,
    on_progress: OnProgress = lambda _progress, _event: None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunTally:
    """Compute what is missing of one share of a sweep; failures are in the tally.

    The division is that of the plan in the results folder, after the filters, so that shares agree whatever machine
    they run on. How the work is done may differ from the plan's. Inputs are not hashed again: workers compare what they
    load with the hashes of the plan. Any number of shares, even a share twice or a driver beside them, may write into
    one folder; what two of them compute is stored twice and counted once. `on_code` is called with the planned hashes
    of Python files by field, before any is executed; the other callbacks are those of `runtime.sweep.run_sweep`.

    Raises:
        InputError: the sweep is not prepared, or otherwise than `config` says, or an input of the share is missing.
        ConfigError: `DRAIN_VARIABLE` is set, and not to a time.
        StorageError: results cannot be written.
    """
    filters.check(config)
    kept = _load_prepared(config)
    on_code(kept.facts.code)
    narrowed, undrawn = split_off_undrawn(filters.narrow(kept))
    unmade = sorted({unit.key for unit in narrowed.units if unit.id not in narrowed.known_ids})
    if unmade:  # shares make none, as several would make the same
        raise InputError(_no_images(config, "corrupted", unmade))
    mine = share.bundles(all_bundles(narrowed))
    folder = share.folder(config.results)
    make_folder(folder)
    config = of_one_machine(config)
    with Heartbeat(config.results, share=share.name):
        plan = Plan.of_units(config, _units_of(mine), kept.protocols, kept.facts)
        missing = _find_missing(plan, mine, say)
        _check_inputs(plan, missing)
        if (config.results / LEASE_NAME).exists():
            say("A run without --share works here too: what both compute is stored twice and counted once.")
        parts = tuple(part for bundle in missing for part in bundle.parts)
        preview = RunPreview(plan, parts, plan.n_evaluations - count_evaluations(parts), (), ())
        on_preview(preview)
        driver = make_driver(preview, folder, on_progress=on_progress, say=say)
        with driver.recording_an_error():
            compute(driver, plan, parts, make_executor)
        if undrawn:
            driver.tally.remaining += undrawn
            say(
                f"{undrawn:,} evaluations of the sweep need samples, which shares do not draw. When all shares have "
                "ended, draw them on one machine by `robust201 plan SWEEP.yaml --save`, and run the shares again."
            )
        return driver.finish()


def _no_images(config: SweepConfig, which: str, keys: Sequence[str]) -> str:
    return (
        f"Running with --share failed for {config.results}: expected {which} images of {', '.join(keys)}, "
        "got none, as the sweep was prepared without them. Leave these keys out by --keys, or prepare them on one "
        f"machine: robust201 plan --save SWEEP.yaml --keys {','.join(keys)}"
    )


def of_one_machine(config: _Config) -> _Config:
    """A config as a share or a batch job carries it out: it joins no cluster, and its batch file may hurry its end."""
    execution = config.execution
    limits = [seconds for seconds in (execution.drain_seconds, read_drain_seconds(os.environ)) if seconds is not None]
    changes = {"ray_address": None, "drain_seconds": min(limits, default=None)}
    return config.model_copy(update={"execution": execution.model_copy(update=changes)})


def read_drain_seconds(environment: Mapping[str, str]) -> float | None:
    """Read from what a batch file puts into the environment how long draining may take, in seconds above 0."""
    text = environment.get(DRAIN_VARIABLE)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ConfigError(
            f"Reading the environment failed for {DRAIN_VARIABLE}: expected seconds above 0, got {text!r}. "
            "Correct it, or unset it."
        )
    return seconds


def _find_missing(plan: Plan, mine: Sequence[Bundle], say: Callable[[str], None]) -> tuple[Bundle, ...]:
    """Find out which parts of a share lack results; damaged shards count as missing, and are named."""
    units = {part.unit.id: part.unit for bundle in mine for part in bundle.parts}
    # Each share hashes what it wrote itself: else a thousand of them would read everything a thousand times.
    inventory = ShardStore.open(plan.config.results).inventory(
        verify="unverified",
        on_damage="report",
        networks={(unit.dataset, unit.architecture) for unit in units.values()},
    )
    for shard in inventory.damaged:
        say(f"Damaged result file, its evaluations are recomputed; submit or run sets it aside: {shard}")
    parts = (part for unit in units.values() for part in inventory.missing(unit, plan.measurements))
    return missing_bundles(mine, parts)


def _load_prepared(config: SweepConfig) -> Plan:
    """Read the plan that the sweep was prepared with, and make sure that it is still the same sweep."""
    if not (config.results / PLAN_FILE).exists():
        raise InputError(
            f"Running with --share failed for {config.results}: expected the plan of a prepared sweep, got no "
            f"{PLAN_FILE}. Prepare it on one machine first: robust201 plan --save SWEEP.yaml"
        )
    ShardStore.open(config.results, shards=config.shards or "")
    kept = load_plan(config.results)
    differences = describe_difference(_evaluated(kept.config), _evaluated(config))
    if differences:
        shown = "; ".join(differences)
        shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
        raise ConfigError(
            f"Running with --share failed for {config.results}: expected the sweep that was prepared, got another "
            f"({shown}). Prepare this one with: robust201 plan --save SWEEP.yaml"
        )
    return kept


_NOT_EVALUATED = {"name", "results", "shards", "execution"} | {
    "batch_size",
    "checkpoints",
    "weights",
    "datasets",
    "keys",
}
"""Fields that decide no number, and those that `_evaluated` words itself."""


def _evaluated(config: SweepConfig) -> dict[str, Any]:
    """What a sweep evaluates: all of it but where files lie and how the work is done."""
    weights = config.checkpoints or config.weights
    has_own_tasks = any(isinstance(given, UserTaskParameters) for given in config.parameters.values())
    return {
        **config.model_dump(mode="json", exclude=_NOT_EVALUATED),
        # The libraries and tasks of the user's own draw by it, and no bit depends on it elsewhere.
        "batch_size": config.batch_size if config.engine == "reference" or has_own_tasks else None,
        "weights": weights.model_dump(mode="json", exclude={"path", "files"}) if weights else None,
        "datasets": {dataset: list(config.keys_of(dataset)) for dataset in config.datasets},
        "dataset_fields": {dataset: section.identity() for dataset, section in config.datasets.items()},
        "keys": {key: parameters.model_dump(mode="json") for key, parameters in config.parameters.items()},
    }


def _units_of(bundles: Iterable[Bundle]) -> tuple[Unit, ...]:
    """Units of a share, for counting: of one that was cut, with the strengths that the share computes."""
    strengths: defaultdict[Unit, set[float]] = defaultdict(set)
    for bundle in bundles:
        for part in bundle.parts:
            strengths[part.unit].update(part.strengths)
    return tuple(replace(unit, strengths=tuple(sorted(chosen))) for unit, chosen in strengths.items())


def _check_inputs(plan: Plan, bundles: Sequence[Bundle]) -> None:
    """Find out before anything is computed whether this machine sees what the share reads."""
    config, facts = plan.config, plan.facts
    wanted = {part.unit.key for bundle in bundles for part in bundle.parts}
    inputs, tasks = Inputs(config, keys=wanted), config.tasks
    for dataset in sorted({bundle.dataset for bundle in bundles}):
        known = facts.datasets[dataset]
        for own in (None, *config.own_images):
            inputs.kept_images(dataset, known.images(own).sha256, own)
        keys = {part.unit.key for bundle in bundles if bundle.dataset == dataset for part in bundle.parts}
        if any(tasks[key].kind == "corruption" for key in keys):
            store = inputs.open_corruptions(dataset)
            for key in sorted(keys):
                if tasks[key].kind == "corruption":
                    store.check(key)
    blocks = inputs.unmade_adversarial(plan, (part for bundle in bundles for part in bundle.parts))
    if blocks:
        keys_lacking = sorted({block.unit.key for block in blocks})
        raise InputError(_no_images(config, "adversarial", keys_lacking))
    weights = WeightsSource(config, config.make_space(facts.code))
    for dataset, architecture in sorted({(bundle.dataset, bundle.architecture) for bundle in bundles}):
        weights.check(dataset, architecture)
