"""What is asked after a file was damaged, and what the answer is judged by."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.errors import RobustError
from robust201.reader.dataset import RobustnessDataset
from tests.mutations.commands import Ended, run_command

MOST_SAID = 20_000
"""Characters that a command may print of damage."""

MOST_BYTES = 400 << 20
"""Memory that a command may take beyond what was held."""

CODES = {0, 2, 3, 4}
_TOLD = re.compile(r"warning:|damaged|set aside|not those of its|missing")


@dataclass(frozen=True)
class Probe:
    """A question to the files.

    Attributes:
        ask: (root) → how the command ended, and its answer: equal to the undamaged one where it ended with 0.
        judged: whether the answer is compared; else the question is not one that reads every byte of what it tells.
    """

    ask: Callable[[Path], tuple[Ended, Any]]
    judged: bool = True


def _export(results: str) -> Callable[[Path], tuple[Ended, Any]]:
    def ask(root: Path) -> tuple[Ended, Any]:
        ended = run_command("export", root / results, root / "again", "--processes", 1)
        return ended, _numbers(root / "again")

    return ask


def _numbers(folder: Path) -> Any:
    files = sorted(folder.glob("digits/*.json"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _verify(results: str) -> Callable[[Path], tuple[Ended, Any]]:
    def ask(root: Path) -> tuple[Ended, Any]:
        ended = run_command("verify", root / results)
        return ended, _export(results)(root)[1] if ended.code == 0 else None

    return ask


def _requeue(results: str) -> Callable[[Path], tuple[Ended, Any]]:
    def ask(root: Path) -> tuple[Ended, Any]:
        run_command("verify", root / results, "--requeue")
        if results != "results":
            shutil.rmtree(root / "results")
            (root / results).rename(root / "results")
        ended = run_command("run", root / "sweep.yaml")
        if ended.code != 0:
            return ended, None
        return _export("results")(root)

    return ask


def _run(root: Path) -> tuple[Ended, Any]:
    """A run that says Complete leaves what `verify` finds sound and an export that is the same."""
    ended = run_command("run", root / "sweep.yaml")
    if ended.code != 0:
        return ended, None
    verdict = run_command("verify", root / "results")
    exported, numbers = _export("results")(root)
    return ended, [verdict.code, exported.code, numbers]


def _run_anew(root: Path) -> tuple[Ended, Any]:
    shutil.rmtree(root / "results")
    ended = run_command("run", root / "sweep.yaml")
    return ended, _export("results")(root)[1] if ended.code == 0 else None


def _status(results: str) -> Callable[[Path], tuple[Ended, Any]]:
    def ask(root: Path) -> tuple[Ended, Any]:
        ended = run_command("status", root / results, "--json")
        return ended, None

    return ask


def _command(*arguments: str) -> Callable[[Path], tuple[Ended, Any]]:
    """A command whose arguments are paths where they begin with ``@``; its answer is what it prints."""

    def ask(root: Path) -> tuple[Ended, Any]:
        ended = run_command(*(root / name[1:] if name.startswith("@") else name for name in arguments))
        return ended, ended.out

    return ask


def _read(folder: str) -> Callable[[Path], tuple[Ended, Any]]:
    def ask(root: Path) -> tuple[Ended, Any]:
        try:
            data = RobustnessDataset(root / folder)
            frame = data.to_frame().astype(str).to_dict("records")
            return Ended(0, "", "", 0), [frame, data.query(missing_ok=True)]
        except (RobustError, OSError) as error:
            return Ended(2, "", str(error), 0), None

    return ask


_RESULTS = {
    "status": Probe(_status("results")),
    "verify": Probe(_verify("results")),
    "export": Probe(_export("results")),
    "run": Probe(_run),
    "requeue": Probe(_requeue("results")),
    "compact": Probe(_command("compact", "@results"), judged=False),
    "merge": Probe(_command("merge", "@results", "--out", "@merged"), judged=False),
    "diff": Probe(_command("diff", "@results", "@json"), judged=False),
}
_COMPACTED = {
    "status": Probe(_status("compacted")),
    "verify": Probe(_verify("compacted")),
    "export": Probe(_export("compacted")),
    "requeue": Probe(_requeue("compacted")),
    "compact": Probe(_command("compact", "@compacted"), judged=False),
}
_INPUTS = {"run anew": Probe(_run_anew), "plan": Probe(_command("plan", "@sweep.yaml"), judged=False)}
_JSON = {
    "read": Probe(_read("json"), judged=False),
    "report": Probe(_command("report", "@json", "--out", "@page.html"), judged=False),
    "diff": Probe(_command("diff", "@json", "@results")),
    "verify export": Probe(_command("verify", "@results", "--export", "@json")),
    "convert": Probe(_command("convert", "@json"), judged=False),
    "verify": Probe(_command("verify", "@json"), judged=False),
}
_PARQUET = {
    "read": Probe(_read("parquet")),
    "read parquet/": Probe(_read("parquet/parquet")),
    "report": Probe(_command("report", "@parquet", "--out", "@page.html"), judged=False),
    "diff": Probe(_command("diff", "@parquet", "@results")),
    "verify export": Probe(_command("verify", "@results", "--export", "@parquet")),
}

PROBES: dict[str, dict[str, Probe]] = {
    # Not run: a YAML that was cut may be that of another, larger sweep, and is no wrong one.
    "sweep YAML": {
        "plan": _INPUTS["plan"],
        "status": Probe(_command("status", "@sweep.yaml"), judged=False),
        "doctor": Probe(_command("doctor", "@sweep.yaml"), judged=False),
    },
    **dict.fromkeys(("format.json", "plan.json", "protocol", "progress.json", "shard", "kept images"), _RESULTS),
    "compacted shard": _COMPACTED,
    **dict.fromkeys(("weights", "weights manifest", "corruptions", "corruptions manifest"), _INPUTS),
    "dataset JSON": _JSON,
    "dataset Parquet": _PARQUET,
    "dataset listing": _JSON | {f"{name} (Parquet)": probe for name, probe in _PARQUET.items()},
    "dataset facts": {
        "read": Probe(_read("json"), judged=False),
        "read (Parquet)": Probe(_read("parquet"), judged=False),
        **{name: _JSON[name] for name in ("report", "verify export", "verify")},
        "verify export (Parquet)": _PARQUET["verify export"],
    },
}
"""Questions by kind of file."""


def judge(probe: Probe, ended: Ended, answer: Any, undamaged: Any) -> str:
    """Say what is wrong with an answer; empty where nothing is."""
    if ended.code not in CODES or "Traceback" in ended.err:
        return f"ended with {ended.code}: {ended.err[-1500:]}"
    if len(ended.err) > MOST_SAID:
        return f"{len(ended.err):,} characters on stderr: {ended.err[:200]}"
    if ended.peak_bytes > MOST_BYTES:
        return f"{ended.peak_bytes >> 20} MiB of memory"
    if probe.judged and ended.code == 0 and answer != undamaged and not _TOLD.search(ended.said):
        return f"another answer, and nothing said: {_difference(undamaged, answer)}"
    return ""


def _difference(one: Any, other: Any) -> str:
    texts = [json.dumps(value, default=str) for value in (one, other)]
    place = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    return " instead of ".join(text[max(0, place - 60) : place + 100] for text in reversed(texts))
