"""The plan as it is kept with the results, so that status, export and shares need neither images nor weights."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robust201.core.errors import FormatVersionError, InputError, describe_content
from robust201.core.files import load_json, write_text
from robust201.core.records import content_digest
from robust201.planning.config import SweepConfig
from robust201.planning.identity import is_known
from robust201.planning.input_facts import InputFacts
from robust201.planning.loading import override_config, parse_config
from robust201.planning.plan import Plan, make_plan
from robust201.shards import ShardStore

PLAN_FILE = "plan.json"
PLAN_FORMAT = 1


def save_plan(plan: Plan, facts: InputFacts, store: ShardStore) -> None:
    """Record the plan in its results folder, so that status and export need neither images nor weights."""
    payload = {
        "format": PLAN_FORMAT,
        "config": plan.config.model_dump(mode="json"),
        "facts": facts.to_payload(),
    }
    for protocol in plan.protocols.values():
        if is_known(protocol):
            store.save_protocol(protocol)
    payload = json.loads(json.dumps(payload))
    write_text(plan.config.results / PLAN_FILE, json.dumps(payload | {"digest": content_digest(payload)}))


def load_plan(results: Path) -> Plan:
    """Read the plan that the last `run` recorded in a results folder (see `load_plan_and_facts`)."""
    return load_plan_and_facts(results)[0]


def load_plan_and_facts(results: Path) -> tuple[Plan, InputFacts]:
    """Read the plan that the last `run` recorded in a results folder, and the hashes of its inputs.

    Raises:
        InputError: the path is no results folder, it holds no sound plan.
        FormatVersionError: another version wrote the folder or the plan.
    """
    with _reading(results):
        store = ShardStore.open(results)
        fields, facts = _read_payload(results / PLAN_FILE)
        return make_plan(parse_config(fields | _here(results, store), str(results / PLAN_FILE)), facts), facts


def load_facts(results: Path) -> InputFacts | None:
    """Read what the last `run` found out about its inputs; None where no run did, or its plan is damaged."""
    try:
        with _reading(results):
            return _read_payload(results / PLAN_FILE)[1]
    except InputError:  # the run that asks rewrites the plan
        return None


def load_kept_sweep(results: Path, /, **overrides: Any) -> SweepConfig:
    """Read the sweep of a results folder, as `planning.loading.load_config` reads a YAML."""
    with _reading(results):
        store = ShardStore.open(results)
        fields, _ = _read_payload(results / PLAN_FILE)
        return override_config(fields | _here(results, store), results / PLAN_FILE, overrides)


def _here(results: Path, store: ShardStore) -> dict[str, Any]:
    # Taken from the folder, which knows where its shards are: a merge may have copied the plan from another one.
    # Earlier versions could complete results read from a dataset's files; what they computed is still the sweep's.
    return {"results": str(results), "shards": store.folder.shards_url or None, "take_imported": False}


def _read_payload(path: Path) -> tuple[dict[str, Any], InputFacts]:
    payload = load_json(path)
    version, fields, facts = payload["format"], payload.get("config"), payload.get("facts")
    if version != PLAN_FORMAT:
        raise FormatVersionError(
            f"Reading the plan failed for {path}: expected format {PLAN_FORMAT}, got {version!r}. "
            "Use the version of robust201 that wrote it."
        )
    _check_digest(payload)
    return fields, InputFacts.from_payload(facts)


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


def _check_digest(payload: dict[str, Any]) -> None:
    """Compare a plan's content with its digest, which earlier versions did not write."""
    digest = payload.get("digest")
    if digest is not None and digest != content_digest({k: v for k, v in payload.items() if k != "digest"}):
        raise ValueError("content that was changed")
