"""The plan as it is kept with the results, so that status, export and shares need neither images nor weights."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust201.core.errors import FormatVersionError, InputError, describe_content
from robust201.core.files import load_json, write_text
from robust201.core.records import content_digest
from robust201.planning.config import SweepConfig
from robust201.planning.identity import is_known
from robust201.planning.input_facts import InputFacts
from robust201.planning.loading import load_config, override_config, parse_config
from robust201.planning.plan import Plan, make_plan
from robust201.planning.samples import read_samples

if TYPE_CHECKING:
    from robust201.shards import ShardStore

PLAN_FILE = "plan.json"
PLAN_FORMAT = 1


def save_plan(plan: Plan, store: "ShardStore") -> None:
    """Record the plan in its results folder, so that status and export need neither images nor weights."""
    payload = {
        "format": PLAN_FORMAT,
        "config": plan.config.model_dump(mode="json"),
        "facts": plan.facts.to_payload(),
    }
    for protocol in plan.protocols.values():
        if is_known(protocol):
            store.save_protocol(protocol)
    payload = json.loads(json.dumps(payload))
    write_text(plan.config.results / PLAN_FILE, json.dumps(payload | {"digest": content_digest(payload)}))


def load_plan(results: Path) -> Plan:
    """Read the plan that the last `run` recorded in a results folder.

    Raises:
        InputError: the path is no results folder, it holds no sound plan.
        FormatVersionError: another version wrote the folder or the plan.
    """
    with _reading(results):
        fields, facts = _read_payload(results)
        return make_plan(parse_config(fields, str(results / PLAN_FILE)), facts)


def load_facts(results: Path) -> InputFacts | None:
    """Read what the last `run` found out about its inputs; None where no run did, or its plan is damaged."""
    try:
        with _reading(results):
            return _read_payload(results)[1]
    except InputError:  # the run that asks rewrites the plan
        return None


def load_any_sweep(place: Path, /, **overrides: Any) -> SweepConfig:
    """Read the sweep of a YAML, or the one kept in a results folder (see `planning.loading.load_config`)."""
    if not place.is_dir():
        return load_config(place, **overrides)
    with _reading(place):
        return override_config(_read_payload(place)[0], place / PLAN_FILE, overrides)


def _read_payload(results: Path) -> tuple[dict[str, Any], InputFacts]:
    """Read the fields of the sweep and the hashes of its inputs."""
    from robust201.shards import ShardStore  # takes long to import, and a YAML does not need it

    store, path = ShardStore.open(results), results / PLAN_FILE
    payload = load_json(path)
    version, fields, facts = payload["format"], payload.get("config"), payload.get("facts")
    if version != PLAN_FORMAT:
        raise FormatVersionError(
            f"Reading the plan failed for {path}: expected format {PLAN_FORMAT}, got {version!r}. "
            "Use the version of robust201 that wrote it."
        )
    digest = payload.pop("digest", None)  # which earlier versions did not write
    if digest is not None and digest != content_digest(payload):
        raise ValueError("content that was changed")
    # Taken from the folder, which knows where its shards are: a merge may have copied the plan from another one.
    # Earlier versions could complete results read from a dataset's files; what they computed is still the sweep's.
    here = {"results": str(results), "shards": store.folder.shards_url or None, "take_imported": False}
    return fields | here, replace(InputFacts.from_payload(facts), samples=read_samples(results))


@contextmanager
def _reading(results: Path) -> Iterator[None]:
    path = results / PLAN_FILE
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(
            f"Reading the plan failed for {results}: expected {PLAN_FILE}, got none. "
            "Write it with: robust201 run SWEEP.yaml"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"Reading the plan failed for {path}: expected a plan, got other content ({describe_content(error)}). "
            "Rewrite it with: robust201 run SWEEP.yaml"
        ) from error
