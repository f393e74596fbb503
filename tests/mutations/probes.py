"""Commands and reads that run after a file has been damaged, and criteria for their results."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from robust201.core.errors import RobustError
from robust201.reader.dataset import RobustnessDataset
from tests.mutations.workspace import CommandResult, run_command

MAX_ERROR_CHARACTERS = 20_000
"""Maximum length of a command's stderr."""

MAX_BYTES = 400 << 20
"""Maximum additional memory of a command."""

_WARNING = re.compile(r"warning:|damaged|set aside|not those of its|missing")
"""Pattern of the texts that count as a warning."""


class Probe(NamedTuple):
    """A command that reads the files, or a read through the Python API.

    Attributes:
        run: function that runs the command in the workspace's root folder, and returns its result and the data that it
            wrote or returned.
        is_compared: whether the data must equal the data from undamaged files if the exit code is 0 and there was no
            warning; False if the command does not read all bytes on which the data depends.
    """

    run: Callable[[Path], tuple[CommandResult, Any]]
    is_compared: bool = True


def _export(root: Path, results: str) -> tuple[CommandResult, Any]:
    result = run_command("export", root / results, root / "again")
    files = sorted((root / "again").glob("digits/*.json"))
    return result, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _verify(root: Path, results: str) -> tuple[CommandResult, Any]:
    result = run_command("verify", root / results)
    return result, _export(root, results)[1] if result.code == 0 else None


def _requeue(root: Path, results: str) -> tuple[CommandResult, Any]:
    """Requeue damaged results, run the sweep again, and return the result and the hashes of an export."""
    run_command("verify", root / results, "--requeue")
    if results != "results":
        shutil.rmtree(root / "results")
        (root / results).rename(root / "results")
    result = run_command("run", root / "sweep.yaml")
    return _export(root, "results") if result.code == 0 else (result, None)


def _run(root: Path) -> tuple[CommandResult, Any]:
    """Run the sweep; if it completes, return the exit codes of verify and export, and the export's hashes, as data."""
    result = run_command("run", root / "sweep.yaml")
    if result.code != 0:
        return result, None
    verify_result = run_command("verify", root / "results")
    export_result, exported_hashes = _export(root, "results")
    return result, [verify_result.code, export_result.code, exported_hashes]


def _run_from_scratch(root: Path) -> tuple[CommandResult, Any]:
    shutil.rmtree(root / "results")
    result = run_command("run", root / "sweep.yaml")
    return result, _export(root, "results")[1] if result.code == 0 else None


def _read_dataset(root: Path, folder: str) -> tuple[CommandResult, Any]:
    try:
        data = RobustnessDataset(root / folder)
        return CommandResult(0, "", ""), [data.to_frame().astype(str).to_dict("records"), data.query(missing_ok=True)]
    except (RobustError, OSError) as error:
        return CommandResult(2, "", str(error)), None


def _command(*arguments: str, is_compared: bool = False) -> Probe:
    """Return a probe that runs a command and returns its output as data.

    Arguments that begin with ``@`` are paths relative to the root folder.
    """

    def run(root: Path) -> tuple[CommandResult, Any]:
        result = run_command(*(root / argument[1:] if argument.startswith("@") else argument for argument in arguments))
        return result, result.out

    return Probe(run, is_compared)


def _probes_of_results(results: str) -> dict[str, Probe]:
    return {
        "status": _command("status", f"@{results}", "--json"),
        "verify": Probe(lambda root: _verify(root, results)),
        "export": Probe(lambda root: _export(root, results)),
        "requeue": Probe(lambda root: _requeue(root, results)),
        "compact": _command("merge", f"@{results}", "--compact"),
    }


_RESULTS_PROBES = _probes_of_results("results") | {
    "run": Probe(_run),
    "merge": _command("merge", "@results", "--out", "@merged"),
    "diff": _command("verify", "@results", "--against", "@json"),
}
_INPUTS_PROBES = {"run from scratch": Probe(_run_from_scratch), "plan": _command("plan", "@sweep.yaml")}
_JSON_PROBES = {
    "read": Probe(lambda root: _read_dataset(root, "json"), is_compared=False),
    "report": _command("report", "@json", "--out", "@page.html"),
    "diff": _command("verify", "@json", "--against", "@results", is_compared=True),
    "verify export": _command("verify", "@results", "--export", "@json", is_compared=True),
    "verify": _command("verify", "@json"),
}
_PARQUET_PROBES = {
    "read": Probe(lambda root: _read_dataset(root, "parquet")),
    "read parquet/": Probe(lambda root: _read_dataset(root, "parquet/parquet")),
    "report": _command("report", "@parquet", "--out", "@page.html"),
    "diff": _command("verify", "@parquet", "--against", "@results", is_compared=True),
    "verify export": _command("verify", "@results", "--export", "@parquet", is_compared=True),
}

PROBES: dict[str, dict[str, Probe]] = {
    # `run` is not included, because a truncated YAML may be a valid YAML of a larger sweep.
    "sweep YAML": {
        "plan": _INPUTS_PROBES["plan"],
        "status": _command("status", "@sweep.yaml"),
        "doctor": _command("doctor", "@sweep.yaml"),
    },
    **dict.fromkeys(
        ("format.json", "plan.json", "protocol", "progress.json", "shard", "copied images"), _RESULTS_PROBES
    ),
    "compacted shard": _probes_of_results("compacted"),
    **dict.fromkeys(("weights", "weights manifest", "corruptions", "corruptions manifest"), _INPUTS_PROBES),
    "dataset JSON": _JSON_PROBES,
    "dataset Parquet": _PARQUET_PROBES,
    "dataset checksums": _JSON_PROBES | {f"{name} (Parquet)": probe for name, probe in _PARQUET_PROBES.items()},
    "dataset metadata": {
        "read": _JSON_PROBES["read"],
        "read (Parquet)": Probe(_PARQUET_PROBES["read"].run, is_compared=False),
        **{name: _JSON_PROBES[name] for name in ("report", "verify export", "verify")},
        "verify export (Parquet)": _PARQUET_PROBES["verify export"],
    },
}
"""Probes by kind of file."""


def find_problem(probe: Probe, result: CommandResult, data: Any, undamaged_data: Any) -> str:
    """Return a description of the problem with a probe's result, or an empty string if there is none."""
    if result.code not in {0, 2, 3, 4} or "Traceback" in result.err:
        return f"the exit code is {result.code}: {result.err[-1500:]}"
    if len(result.err) > MAX_ERROR_CHARACTERS:
        return f"stderr has {len(result.err):,} characters: {result.err[:200]}"
    if result.peak_bytes > MAX_BYTES:
        return f"the command used {result.peak_bytes >> 20} MiB of memory"
    has_warned = _WARNING.search(result.out + result.err) is not None
    if probe.is_compared and result.code == 0 and data != undamaged_data and not has_warned:
        actual, expected = (json.dumps(value, default=str)[:2000] for value in (data, undamaged_data))
        return f"the data differs without a warning: {actual} instead of {expected}"
    return ""
