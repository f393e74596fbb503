"""Commands and reads after a file was damaged, and the criteria for their results."""

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
MAX_BYTES = 400 << 20
"""Maximum additional memory of a command."""

_WARNING = re.compile(r"warning:|damaged|set aside|not those of its|missing")


class Probe(NamedTuple):
    """A command, or a read, of the files.

    Attributes:
        ask: function from the root folder to the result of the command and its answer.
        is_compared: whether the answer must equal the answer for undamaged files if the exit code is 0 and there was no
            warning; False if the command does not read all bytes that its answer depends on.
    """

    ask: Callable[[Path], tuple[CommandResult, Any]]
    is_compared: bool = True


def _export(root: Path, results: str) -> tuple[CommandResult, Any]:
    result = run_command("export", root / results, root / "again", "--processes", 1)
    files = sorted((root / "again").glob("digits/*.json"))
    return result, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _verify(root: Path, results: str) -> tuple[CommandResult, Any]:
    result = run_command("verify", root / results)
    return result, _export(root, results)[1] if result.code == 0 else None


def _requeue(root: Path, results: str) -> tuple[CommandResult, Any]:
    run_command("verify", root / results, "--requeue")
    if results != "results":
        shutil.rmtree(root / "results")
        (root / results).rename(root / "results")
    result = run_command("run", root / "sweep.yaml")
    return _export(root, "results") if result.code == 0 else (result, None)


def _run(root: Path) -> tuple[CommandResult, Any]:
    """Run the sweep; if it completes, the answer contains the exit codes of verify and export, and the export."""
    result = run_command("run", root / "sweep.yaml")
    if result.code != 0:
        return result, None
    verdict = run_command("verify", root / "results")
    exported, numbers = _export(root, "results")
    return result, [verdict.code, exported.code, numbers]


def _run_from_scratch(root: Path) -> tuple[CommandResult, Any]:
    shutil.rmtree(root / "results")
    result = run_command("run", root / "sweep.yaml")
    return result, _export(root, "results")[1] if result.code == 0 else None


def _read(root: Path, folder: str) -> tuple[CommandResult, Any]:
    try:
        data = RobustnessDataset(root / folder)
        return CommandResult(0, "", ""), [data.to_frame().astype(str).to_dict("records"), data.query(missing_ok=True)]
    except (RobustError, OSError) as error:
        return CommandResult(2, "", str(error)), None


def _command(*arguments: str, is_compared: bool = False) -> Probe:
    """Return the probe of a command, whose answer is its output; arguments that begin with ``@`` are paths."""

    def ask(root: Path) -> tuple[CommandResult, Any]:
        result = run_command(*(root / name[1:] if name.startswith("@") else name for name in arguments))
        return result, result.out

    return Probe(ask, is_compared)


def _probes_of_results(results: str) -> dict[str, Probe]:
    return {
        "status": _command("status", f"@{results}", "--json"),
        "verify": Probe(lambda root: _verify(root, results)),
        "export": Probe(lambda root: _export(root, results)),
        "requeue": Probe(lambda root: _requeue(root, results)),
        "compact": _command("compact", f"@{results}"),
    }


_RESULTS = _probes_of_results("results") | {
    "run": Probe(_run),
    "merge": _command("merge", "@results", "--out", "@merged"),
    "diff": _command("diff", "@results", "@json"),
}
_INPUTS = {"run from scratch": Probe(_run_from_scratch), "plan": _command("plan", "@sweep.yaml")}
_JSON = {
    "read": Probe(lambda root: _read(root, "json"), is_compared=False),
    "report": _command("report", "@json", "--out", "@page.html"),
    "diff": _command("diff", "@json", "@results", is_compared=True),
    "verify export": _command("verify", "@results", "--export", "@json", is_compared=True),
    "convert": _command("convert", "@json"),
    "verify": _command("verify", "@json"),
}
_PARQUET = {
    "read": Probe(lambda root: _read(root, "parquet")),
    "read parquet/": Probe(lambda root: _read(root, "parquet/parquet")),
    "report": _command("report", "@parquet", "--out", "@page.html"),
    "diff": _command("diff", "@parquet", "@results", is_compared=True),
    "verify export": _command("verify", "@results", "--export", "@parquet", is_compared=True),
}

PROBES: dict[str, dict[str, Probe]] = {
    # No `run`: a truncated YAML may be a valid YAML of another, larger sweep.
    "sweep YAML": {
        "plan": _INPUTS["plan"],
        "status": _command("status", "@sweep.yaml"),
        "doctor": _command("doctor", "@sweep.yaml"),
    },
    **dict.fromkeys(("format.json", "plan.json", "protocol", "progress.json", "shard", "kept images"), _RESULTS),
    "compacted shard": _probes_of_results("compacted"),
    **dict.fromkeys(("weights", "weights manifest", "corruptions", "corruptions manifest"), _INPUTS),
    "dataset JSON": _JSON,
    "dataset Parquet": _PARQUET,
    "dataset listing": _JSON | {f"{name} (Parquet)": probe for name, probe in _PARQUET.items()},
    "dataset facts": {
        "read": _JSON["read"],
        "read (Parquet)": Probe(_PARQUET["read"].ask, is_compared=False),
        **{name: _JSON[name] for name in ("report", "verify export", "verify")},
        "verify export (Parquet)": _PARQUET["verify export"],
    },
}
"""Probes by kind of file."""


def find_problem(probe: Probe, result: CommandResult, answer: Any, undamaged: Any) -> str:
    """Describe what is wrong with an answer; return an empty string if nothing is."""
    if result.code not in {0, 2, 3, 4} or "Traceback" in result.err:
        return f"ended with {result.code}: {result.err[-1500:]}"
    if len(result.err) > MAX_ERROR_CHARACTERS:
        return f"{len(result.err):,} characters on stderr: {result.err[:200]}"
    if result.peak_bytes > MAX_BYTES:
        return f"{result.peak_bytes >> 20} MiB of memory"
    is_silent = not _WARNING.search(result.out + result.err)
    if probe.is_compared and result.code == 0 and answer != undamaged and is_silent:
        shown = [json.dumps(value, default=str)[:2000] for value in (answer, undamaged)]
        return f"a different answer without a warning: {' instead of '.join(shown)}"
    return ""
