"""The plan file in a results folder; with it, `status`, `export` and `run --share` need no images or weights."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust201.core.errors import FormatVersionError, InputError, describe_read_error
from robust201.core.files import load_json, write_text
from robust201.core.input_facts import InputFacts
from robust201.core.records import content_digest
from robust201.planning.identity import is_complete
from robust201.planning.plan import Plan, make_plan
from robust201.sweep.config import SweepConfig
from robust201.sweep.loading import load_config, override_config, parse_config

if TYPE_CHECKING:
    from robust201.shards import ShardStore

PLAN_FILE = "plan.json"
PLAN_FORMAT = 1


def save_plan(plan: Plan, store: "ShardStore") -> None:
    """Write the plan to its results folder."""
    payload = {
        "format": PLAN_FORMAT,
        "config": plan.config.model_dump(mode="json"),
        "facts": plan.facts.to_payload(),
    }
    for protocol in plan.protocols.values():
        if is_complete(protocol):
            store.save_protocol(protocol)
    payload = json.loads(json.dumps(payload))
    write_text(plan.config.results / PLAN_FILE, json.dumps(payload | {"digest": content_digest(payload)}))


def load_plan(results: Path) -> Plan:
    """Read the plan that the last `run` wrote to a results folder.

    Raises:
        InputError: the path is not a results folder, or has no valid plan.
        FormatVersionError: another version wrote the folder or the plan.
    """
    with _convert_read_errors(results):
        fields, facts = _read_payload(results)
        return make_plan(parse_config(fields, str(results / PLAN_FILE)), facts)


def load_facts(results: Path) -> InputFacts | None:
    """Read the facts about the inputs from the last run's plan; None if there is no plan or the plan is damaged."""
    try:
        with _convert_read_errors(results):
            return _read_payload(results)[1]
    except InputError:  # the calling run rewrites the plan
        return None


def load_any_sweep(path: Path, /, **overrides: Any) -> SweepConfig:
    """Read a sweep from a YAML, or from the plan of a results folder (see `sweep.loading.load_config`)."""
    if not path.is_dir():
        return load_config(path, **overrides)
    with _convert_read_errors(path):
        return override_config(_read_payload(path)[0], path / PLAN_FILE, overrides)


def _read_payload(results: Path) -> tuple[dict[str, Any], InputFacts]:
    """Read the fields of the sweep and the hashes of its inputs from a results folder."""
    from robust201.shards import ShardStore  # slow to import, and not needed for a YAML

    store, path = ShardStore.open(results), results / PLAN_FILE
    payload = load_json(path)
    version, fields, facts = payload["format"], payload.get("config"), payload.get("facts")
    if version != PLAN_FORMAT:
        raise FormatVersionError(
            f"Reading the plan failed for {path}: expected format {PLAN_FORMAT}, got {version!r}. "
            "Use the version of robust201 that wrote it."
        )
    digest = payload.pop("digest", None)  # missing in plans of earlier versions
    if digest is not None and digest != content_digest(payload):
        raise ValueError("the content was changed")
    # The folder decides where results and shards are, because a merge may have copied the plan from another folder.
    # Plans of earlier versions may set `take_imported`, which is no longer supported; the results that were computed
    # with it remain valid.
    locations = {"results": str(results), "shards": store.folder.shards_url or None, "take_imported": False}
    return fields | locations, InputFacts.from_payload(facts)


@contextmanager
def _convert_read_errors(results: Path) -> Iterator[None]:
    path = results / PLAN_FILE
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(
            f"Reading the plan failed for {results}: the folder has no {PLAN_FILE}. "
            "Write it with: robust201 run SWEEP.yaml"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"Reading the plan failed for {path}: not a valid plan ({describe_read_error(error)}). "
            "Rewrite it with: robust201 run SWEEP.yaml"
        ) from error
