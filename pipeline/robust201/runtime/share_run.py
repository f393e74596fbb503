"""Runs one job share of a prepared sweep (`run --share I/N`), for example in a task of a job array.

A job share is one of N disjoint sets of the sweep's bundles. Shares run at the same time, so they do not take the
lease.
"""

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from robust201.core.errors import ConfigError, InputError
from robust201.core.files import make_folder
from robust201.core.records import Bundle, Unit
from robust201.planning.identity import describe_difference
from robust201.planning.plan import Plan
from robust201.planning.plan_file import PLAN_FILE, load_plan
from robust201.planning.shares import Share, all_bundles, missing_bundles
from robust201.runtime.driver import OnProgress
from robust201.runtime.heartbeat import Heartbeat
from robust201.runtime.lease import LEASE_NAME
from robust201.runtime.preview import RunPreview
from robust201.runtime.progress import count_evaluations
from robust201.runtime.scheduler import RunTally
from robust201.runtime.sweep import MakeExecutor, compute, make_driver
from robust201.shards import ShardStore
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.inputs import Inputs
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.user_tasks import UserTaskParameters
from robust201.sweep.weights import WeightsSource

DRAIN_VARIABLE = "ROBUST201_DRAIN_SECONDS"
"""Environment variable with the seconds that a batch file allows for draining. If `execution.drain_seconds` is smaller,
that limit applies."""

_MAX_DIFFERENCE_CHARACTERS = 200

_Config = TypeVar("_Config", SweepConfig, TrainingConfig)


def run_share(
    config: SweepConfig,
    share: Share,
    make_executor: MakeExecutor,
    *,
    filters: Filters = EVERYTHING,
    on_preview: Callable[[RunPreview], None] = lambda _preview: None,
    on_progress: OnProgress = lambda _progress, _event: None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunTally:
    """Compute the missing results of one job share of a sweep; the returned tally lists the failures.

    The plan in the results folder is filtered and then divided, so every machine obtains the same shares. The section
    `execution` may differ from the plan's. Inputs are not hashed in advance: workers hash the inputs that they load,
    and compare the hashes with the plan. Any number of shares, duplicate shares and a driver may write to the same
    folder; results computed by two of them are stored twice but counted once. Workers execute
    the copies of the user's Python files that `plan --save` made. `runtime.sweep.run_sweep` describes the callbacks.

    Raises:
        InputError: the sweep is not prepared or differs from `config`, or an input of the share is missing.
        ConfigError: the value of `DRAIN_VARIABLE` is not valid.
        StorageError: results cannot be written.
    """
    filters.check(config)
    prepared_plan = _load_prepared(config)
    filtered_plan = filters.narrow(prepared_plan)
    keys_without_images = sorted({unit.key for unit in filtered_plan.units if unit.id not in filtered_plan.known_ids})
    if keys_without_images:  # shares do not generate images, because several would generate the same images
        raise InputError(_missing_images_message(config, keys_without_images))
    bundles = share.bundles(all_bundles(filtered_plan))
    folder = share.folder(config.results)
    make_folder(folder)
    config = for_single_machine(config)
    with Heartbeat(config.results, share=share.name):
        plan = Plan.of_units(config, _restricted_units(bundles), prepared_plan.protocols, prepared_plan.facts)
        missing_bundles_of_share = _find_missing_bundles(plan, bundles, say)
        _check_inputs(plan, missing_bundles_of_share)
        if (config.results / LEASE_NAME).exists():
            say(
                "A run without --share is also working here: results computed by both are stored twice but counted "
                "once."
            )
        parts = tuple(part for bundle in missing_bundles_of_share for part in bundle.parts)
        preview = RunPreview(plan, parts, plan.n_evaluations - count_evaluations(parts), (), ())
        on_preview(preview)
        driver = make_driver(preview, folder, on_progress=on_progress, say=say)
        with driver.recording_errors():
            compute(driver, plan, parts, make_executor)
        return driver.finish()


def _missing_images_message(config: SweepConfig, keys: Sequence[str]) -> str:
    return (
        f"Running with --share failed for {config.results}: the sweep was prepared without the corrupted images of "
        f"{', '.join(keys)}. Exclude these keys with --keys, or prepare the images on one machine: robust201 plan "
        f"--save SWEEP.yaml --keys {','.join(keys)}"
    )


def for_single_machine(config: _Config) -> _Config:
    """Return a configuration for a share or batch job: without a Ray cluster, and with the batch file's drain limit."""
    execution = config.execution
    limits = [seconds for seconds in (execution.drain_seconds, read_drain_seconds(os.environ)) if seconds is not None]
    overrides = {"ray_address": None, "drain_seconds": min(limits, default=None)}
    return config.model_copy(update={"execution": execution.model_copy(update=overrides)})


def read_drain_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the time for draining in seconds from `DRAIN_VARIABLE`; None if it is not set."""
    variable_value = environment.get(DRAIN_VARIABLE)
    if variable_value is None:
        return None
    try:
        seconds = float(variable_value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ConfigError(
            f"Reading the environment failed for {DRAIN_VARIABLE}: expected seconds above 0, got {variable_value!r}. "
            "Correct the variable, or unset it."
        )
    return seconds


def _find_missing_bundles(plan: Plan, bundles: Sequence[Bundle], say: Callable[[str], None]) -> tuple[Bundle, ...]:
    """Return the missing parts of the share's bundles, as bundles; parts in damaged shards count as missing."""
    units = {part.unit.id: part.unit for bundle in bundles for part in bundle.parts}
    # Only shards of this share's networks are verified; otherwise each of a thousand shares would read all shards.
    inventory = ShardStore.open(plan.config.results).inventory(
        verify="unverified",
        on_damage="report",
        networks={(unit.dataset, unit.architecture) for unit in units.values()},
    )
    for shard in inventory.damaged:
        say(
            "Damaged result file; its evaluations are recomputed, and the next submit or run sets the file aside: "
            f"{shard}"
        )
    parts = (part for unit in units.values() for part in inventory.find_missing_parts(unit, plan.measurements))
    return missing_bundles(bundles, parts)


def _load_prepared(config: SweepConfig) -> Plan:
    """Load the plan of the prepared sweep, and check that `config` describes the same sweep."""
    if not (config.results / PLAN_FILE).exists():
        raise InputError(
            f"Running with --share failed for {config.results}: the sweep is not prepared (there is no {PLAN_FILE}). "
            "Prepare it on one machine first: robust201 plan --save SWEEP.yaml"
        )
    ShardStore.open(config.results, shards=config.shards or "")
    prepared_plan = load_plan(config.results)
    differences = describe_difference(_result_fields(prepared_plan.config), _result_fields(config))
    if differences:
        difference_text = "; ".join(differences)
        if len(difference_text) > _MAX_DIFFERENCE_CHARACTERS:
            difference_text = f"{difference_text[:_MAX_DIFFERENCE_CHARACTERS]}…"
        raise ConfigError(
            f"Running with --share failed for {config.results}: the sweep differs from the prepared sweep "
            f"({difference_text}). Prepare it again with: robust201 plan --save SWEEP.yaml"
        )
    return prepared_plan


_EXCLUDED_FIELDS = {"name", "results", "shards", "execution"} | {
    "batch_size",
    "checkpoints",
    "weights",
    "datasets",
    "keys",
}
"""Fields that do not affect results, and fields that `_result_fields` compares in another form."""


def _result_fields(config: SweepConfig) -> dict[str, Any]:
    """Return the fields that affect a sweep's results, without paths and execution settings."""
    weights = config.checkpoints or config.weights
    has_custom_tasks = any(isinstance(parameters, UserTaskParameters) for parameters in config.parameters.values())
    return {
        **config.model_dump(mode="json", exclude=_EXCLUDED_FIELDS),
        # The batch size affects the random numbers of reference libraries and custom tasks, and no other results.
        "batch_size": config.batch_size if config.engine == "reference" or has_custom_tasks else None,
        "weights": weights.model_dump(mode="json", exclude={"path", "files"}) if weights else None,
        "datasets": {dataset: list(config.keys_of(dataset)) for dataset in config.datasets},
        "dataset_fields": {dataset: section.identity() for dataset, section in config.datasets.items()},
        "keys": {key: parameters.model_dump(mode="json") for key, parameters in config.parameters.items()},
    }


def _restricted_units(bundles: Iterable[Bundle]) -> tuple[Unit, ...]:
    """Return the units of a share, restricted to the strengths that it computes."""
    strengths: defaultdict[Unit, set[float]] = defaultdict(set)
    for bundle in bundles:
        for part in bundle.parts:
            strengths[part.unit].update(part.strengths)
    return tuple(
        replace(unit, strengths=tuple(sorted(selected_strengths))) for unit, selected_strengths in strengths.items()
    )


def _check_inputs(plan: Plan, bundles: Sequence[Bundle]) -> None:
    """Check, before anything is computed, that this machine can read all inputs of the share."""
    config, facts = plan.config, plan.facts
    needed_keys = {part.unit.key for bundle in bundles for part in bundle.parts}
    inputs, tasks = Inputs(config, keys=needed_keys), config.tasks
    for dataset in sorted({bundle.dataset for bundle in bundles}):
        dataset_facts = facts.datasets[dataset]
        for own_selection in (None, *config.own_images):
            inputs.read_copied_images(dataset, dataset_facts.images(own_selection).sha256, own_selection)
        keys = {part.unit.key for bundle in bundles if bundle.dataset == dataset for part in bundle.parts}
        if any(tasks[key].kind == "corruption" for key in keys):
            store = inputs.open_corruptions(dataset)
            for key in sorted(keys):
                if tasks[key].kind == "corruption":
                    store.check(key)
    weights = WeightsSource(config, config.make_space(facts.code))
    for dataset, architecture in sorted({(bundle.dataset, bundle.architecture) for bundle in bundles}):
        weights.check(dataset, architecture)
