"""Kill -9 a worker, the driver or all of Ray at random moments; the export must equal an undisturbed run's bytes.

Long form:  python -m tests.faults.kill_sweep --kills 20
The test suite runs the short form (tests/faults/test_kill_sweep.py).
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from tests.conftest import read_tree

KINDS = ("worker", "driver", "ray")
TIMEOUT_SECONDS = 1200.0


@dataclass
class KillReport:
    """What was killed, how often the driver had to be started, and whether any export differed."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    shards: int = 0
    rounds: int = 0
    different: list[str] = field(default_factory=list)
    shards_at_kill: list[int] = field(default_factory=list)
    families: list[psutil.Process] = field(default_factory=list)


def command(*arguments: str) -> list[str]:
    """Call robust201 in this interpreter's environment."""
    return [sys.executable, "-m", "pipeline", *arguments]


def find_victims(driver: psutil.Process, kind: str) -> list[psutil.Process]:
    """Processes to kill: one worker that computes, the driver, or every process of its Ray."""
    if kind == "driver":
        return [driver]
    family = driver.children(recursive=True)
    if kind == "ray":
        return [
            process for process in family if any(name in " ".join(_words(process)) for name in ("ray", "gcs_server"))
        ]
    return [process for process in family if _is_worker(process)][:1]


def _is_worker(process: psutil.Process) -> bool:
    return any(word.startswith("ray::_WorkerActor") for word in _words(process)[:1])


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(victims: list[psutil.Process]) -> bool:
    """Kill -9 each; False if there was nobody left to kill."""
    killed = False
    for victim in victims:
        try:
            victim.kill()
            killed = True
        except psutil.NoSuchProcess:
            continue
    return killed


def run_undisturbed(sweep: Path, results: Path, out: Path) -> dict[str, bytes]:
    """Run and export a sweep without killing anything."""
    subprocess.run(command("run", str(sweep), "--results", str(results)), check=True, capture_output=True)
    return export(results, out)


def export(results: Path, out: Path) -> dict[str, bytes]:
    """Export a results folder and read what was written."""
    subprocess.run(command("export", str(results), str(out)), check=True, capture_output=True)
    return read_tree(out)


def run_with_kills(
    sweep: Path, results: Path, choose: Callable[[], tuple[str, float] | None], report: KillReport
) -> None:
    """Run a sweep to its end, killing as `choose` says, starting the driver again whenever it ended early.

    Args:
        sweep: the sweep YAML.
        results: a new results folder.
        choose: gives the next (kind, seconds to wait after work began), or None to let the run finish.
        report: counts kills and starts.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    log = results.with_suffix(".log")
    while time.monotonic() < deadline:
        with log.open("ab") as stream:
            driver = subprocess.Popen(
                command("run", str(sweep), "--results", str(results)), stdout=stream, stderr=stream
            )
        report.starts += 1
        while driver.poll() is None:
            order = choose()
            if order is None:
                driver.wait(timeout=TIMEOUT_SECONDS)
                break
            _carry_out(driver, order, results, report)
        if driver.returncode == 0:
            return
    raise TimeoutError(f"no complete run within {TIMEOUT_SECONDS:g} s; see {log}")


def _carry_out(driver: "subprocess.Popen[bytes]", order: tuple[str, float], results: Path, report: KillReport) -> None:
    kind, delay = order
    process = psutil.Process(driver.pid)
    before = count_shards(results)
    while driver.poll() is None and count_shards(results) == before:  # a kill before the first shard would test little
        time.sleep(0.05)
    time.sleep(delay)
    try:
        family = process.children(recursive=True)
        workers = [member for member in family if _is_worker(member)]
        if driver.poll() is not None or not workers:
            return
        shards = count_shards(results)
        killed = kill(find_victims(process, kind))
    except psutil.NoSuchProcess:
        return
    if killed:
        report.shards_at_kill.append(shards)
    report.kills[kind] += killed
    if kind != "worker":
        driver.wait(timeout=TIMEOUT_SECONDS)
        # Workers hold the memory (on a GPU too), so they must go at once; Ray's own agents first look for their head.
        assert_gone(workers, seconds=60)
        report.families += family


def count_shards(results: Path) -> int:
    """How many shards a results folder holds."""
    return sum(1 for _ in (results / "shards").rglob("[!.]*.parquet"))


def assert_gone(family: list[psutil.Process], seconds: float) -> None:
    """Wait until every process of a killed run has ended, and fail if one lives on."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    alive = [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    if alive:
        raise AssertionError(f"still alive {seconds:g} s after the driver's end: {[_words(p)[:2] for p in alive]}")


def run_rounds(sweep: Path, folder: Path, kills: int, seed: int) -> KillReport:
    """Kill until the number is reached, as many runs as that takes, comparing each run's export.

    Args:
        sweep: the sweep YAML.
        folder: scratch folder.
        kills: how many kills in all, the three kinds in turn.
        seed: of the random moments.
    """
    expected = run_undisturbed(sweep, folder / "undisturbed", folder / "undisturbed-json")
    draws = random.Random(seed)
    report = KillReport(shards=count_shards(folder / "undisturbed"))

    def choose() -> tuple[str, float] | None:
        if sum(report.kills.values()) >= kills:
            return None
        return KINDS[sum(report.kills.values()) % len(KINDS)], draws.uniform(0.0, 1.5)

    while sum(report.kills.values()) < kills:
        results = folder / f"round-{report.rounds}"
        run_with_kills(sweep, results, choose, report)
        exported = export(results, folder / f"json-{report.rounds}")
        report.rounds += 1
        report.different += [name for name in expected | exported if expected.get(name) != exported.get(name)]
        print(f"round {report.rounds}: kills so far {dict(report.kills)}, starts {report.starts}", flush=True)
    assert_gone(report.families, seconds=180)
    return report


def write_small_sweep(path: Path) -> Path:
    """A sweep of the demo's networks on few images: long enough to be killed in the middle."""
    payload = yaml.safe_load((Path(__file__).resolve().parents[2] / "jobs/demo.yaml").read_text())
    payload |= {"name": "small", "results": str(path.parent / "results"), "images": {"count": 20, "seed": 0}}
    payload["architectures"] = payload["architectures"][:6]
    payload["execution"]["workers"] = 2
    path.write_text(yaml.safe_dump(payload))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="robust201-kills-"))
    try:
        report = run_rounds(write_small_sweep(folder / "sweep.yaml"), folder, arguments.kills, arguments.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"shards on disk at each kill: {report.shards_at_kill}, of {report.shards}")
    print(f"{sum(report.kills.values())} kills ({dict(report.kills)}), {report.rounds} runs, {report.starts} starts")
    print("exports byte-identical" if not report.different else f"DIFFERENT: {sorted(set(report.different))}")
    sys.exit(1 if report.different else 0)


if __name__ == "__main__":
    main()
