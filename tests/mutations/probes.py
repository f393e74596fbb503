"""What is asked after a file was damaged, and what the answer is judged by."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from robust201.core.errors import RobustError
from robust201.reader.dataset import RobustnessDataset
from tests.mutations.workspace import Ended, run_command

MAX_ERROR_CHARACTERS = 20_000
MAX_BYTES = 400 << 20
"""Memory that a command may take beyond what was held."""

_TOLD = re.compile(r"warning:|damaged|set aside|not those of its|missing")


class Probe(NamedTuple):
    """A question to the files.

    Attributes:
        ask: (root) → how the command ended, and its answer.
        is_compared: whether the answer must equal that of undamaged files where it ended with 0 and said nothing; else
            the question is not one that reads every byte of what it tells.
    """

    ask: Callable[[Path], tuple[Ended, Any]]
    is_compared: bool = True


def _export(root: Path, results: str) -> tuple[Ended, Any]:
    ended = run_command("export", root / results, root / "again", "--processes", 1)
    files = sorted((root / "again").glob("digits/*.json"))
    return ended, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _verify(root: Path, results: str) -> tuple[Ended, Any]:
    ended = run_command("verify", root / results)
    return ended, _export(root, results)[1] if ended.code == 0 else None


def _requeue(root: Path, results: str) -> tuple[Ended, Any]:
    run_command("verify", root / results, "--requeue")
    if results != "results":
        shutil.rmtree(root / "results")
        (root / results).rename(root / "results")
    ended = run_command("run", root / "sweep.yaml")
    return _export(root, "results") if ended.code == 0 else (ended, None)


def _run(root: Path) -> tuple[Ended, Any]:
    """A run that says Complete leaves what `verify` finds sound and an export that is the same."""
    ended = run_command("run", root / "sweep.yaml")
    if ended.code != 0:
        return ended, None
    verdict = run_command("verify", root / "results")
    exported, numbers = _export(root, "results")
    return ended, [verdict.code, exported.code, numbers]


def _run_anew(root: Path) -> tuple[Ended, Any]:
    shutil.rmtree(root / "results")
    ended = run_command("run", root / "sweep.yaml")
    return ended, _export(root, "results")[1] if ended.code == 0 else None


def _read(root: Path, folder: str) -> tuple[Ended, Any]:
    try:
        data = RobustnessDataset(root / folder)
        return Ended(0, "", ""), [data.to_frame().astype(str).to_dict("records"), data.query(missing_ok=True)]
    except (RobustError, OSError) as error:
        return Ended(2, "", str(error)), None


def _command(*arguments: str, is_compared: bool = False) -> Probe:
    """A command whose arguments are paths where they begin with ``@``; its answer is what it prints."""

    def ask(root: Path) -> tuple[Ended, Any]:
        ended = run_command(*(root / name[1:] if name.startswith("@") else name for name in arguments))
        return ended, ended.out

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
_INPUTS = {"run anew": Probe(_run_anew), "plan": _command("plan", "@sweep.yaml")}
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
    # Not run: a YAML that was cut may be that of another, larger sweep, and is no wrong one.
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
"""Questions by kind of file."""


def find_problem(probe: Probe, ended: Ended, answer: Any, undamaged: Any) -> str:
    """Describe what is wrong with an answer; empty where nothing is."""
    if ended.code not in {0, 2, 3, 4} or "Traceback" in ended.err:
        return f"ended with {ended.code}: {ended.err[-1500:]}"
    if len(ended.err) > MAX_ERROR_CHARACTERS:
        return f"{len(ended.err):,} characters on stderr: {ended.err[:200]}"
    if ended.peak_bytes > MAX_BYTES:
        return f"{ended.peak_bytes >> 20} MiB of memory"
    is_silent = not _TOLD.search(ended.out + ended.err)
    if probe.is_compared and ended.code == 0 and answer != undamaged and is_silent:
        shown = [json.dumps(value, default=str)[:2000] for value in (answer, undamaged)]
        return f"another answer, and nothing said: {' instead of '.join(shown)}"
    return ""
