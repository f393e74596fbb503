"""The plan as it is kept with the results, so that status, export and shares need neither images nor weights."""

import json
from pathlib import Path
from typing import Any

from robust201.core.errors import FormatVersionError, InputError
from robust201.core.files import load_json, write_text
from robust201.core.records import IMPORTED_FILE, content_digest
from robust201.planning.facts import Facts
from robust201.planning.loading import parse_config
from robust201.planning.plan import Plan, make_plan
from robust201.shards import ShardStore

PLAN_FILE = "plan.json"
PLAN_FORMAT = 1


def save_plan(plan: Plan, facts: Facts, store: ShardStore) -> None:
    """Record the plan in its results folder, so that status and export need neither images nor weights."""
    payload = {
        "format": PLAN_FORMAT,
        "config": plan.config.model_dump(mode="json"),
        "facts": facts.to_payload(),
    }
    for protocol in plan.protocols.values():
        store.save_protocol(protocol)
    payload = json.loads(json.dumps(payload))
    write_text(plan.config.results / PLAN_FILE, json.dumps(payload | {"digest": content_digest(payload)}))


def refuse_imports(results: Path) -> None:
    """Make sure that a results folder of a sweep holds no imported results."""
    if (results / IMPORTED_FILE).is_file():
        raise InputError(
            f"Preparing the sweep failed for {results}: expected no imported results in the folder, got "
            f"{IMPORTED_FILE}. Name another folder by `results`, and read both datasets together: "
            "RobustnessDataset(published, ours)."
        )


def load_plan(results: Path) -> Plan:
    """Read the plan that the last `run` recorded in a results folder (see `load_plan_and_facts`)."""
    return load_plan_and_facts(results)[0]


def load_plan_and_facts(results: Path) -> tuple[Plan, Facts]:
    """Read the plan that the last `run` recorded in a results folder, and the hashes of its inputs.

    Raises:
        InputError: the path is no results folder, it holds no sound plan, or its results were imported.
        FormatVersionError: another version wrote the folder or the plan.
    """
    store = ShardStore.open(results)
    path = results / PLAN_FILE
    try:
        payload = load_json(path)
        version, fields, facts = payload["format"], payload.get("config"), payload.get("facts")
        if version != PLAN_FORMAT:
            raise FormatVersionError(
                f"Reading the plan failed for {path}: expected format {PLAN_FORMAT}, got {version!r}. "
                "Use the version of robust201 that wrote it."
            )
        _check_digest(payload)
        known = Facts.from_payload(facts)
        # The folder itself knows where it and its shards lie: a plan may have come from another one by a merge.
        # Where an earlier version completed imported results, what it computed is still a sweep's.
        here = {"results": str(results), "shards": store.folder.shards_url or None, "take_imported": False}
        return make_plan(parse_config(fields | here, str(path)), known), known
    except FileNotFoundError as error:
        if (results / IMPORTED_FILE).is_file():
            raise InputError(
                f"Reading the plan failed for {results}: expected the results of a sweep, got imported ones, which "
                "have no plan. Use verify, compare or export."
            ) from error
        raise InputError(
            f"Reading the plan failed for {results}: expected {PLAN_FILE}, got none. "
            "Write it with: robust201 run SWEEP.yaml"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"Reading the plan failed for {path}: expected a plan, got other content ({error!r}). "
            "Rewrite it with: robust201 run SWEEP.yaml"
        ) from error


def _check_digest(payload: dict[str, Any]) -> None:
    """Compare a plan's content with its digest, which earlier versions did not write."""
    digest = payload.get("digest")
    if digest is not None and digest != content_digest({k: v for k, v in payload.items() if k != "digest"}):
        raise ValueError("content that was changed")
