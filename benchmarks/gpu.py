"""Measure parity, memory and speed on a GPU, in steps of less than eight minutes each.

    python -m benchmarks.gpu --out gpu
    python -m benchmarks.gpu --out gpu --only speed --budget-minutes 25
    python -m benchmarks.gpu --device cpu

Each step runs in its own process and writes one JSON file into the output folder. Steps whose file exists are not
repeated, so the same command resumes an interrupted benchmark. A step that fails or runs too long is reported at the
end, and the other steps still run. Tables are printed as steps finish; `--tables` prints them again from the files.
`--device cpu` tries out every step with tiny networks. The benchmark needs no Ray, no data and no network connection.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from benchmarks.gpu_steps import Plan, describe_machine, make_rehearsal_plan, read_values, steps_of, write_values

STEP_MINUTES = 8.0


def make_plan(device: str, folder: Path) -> Plan:
    """Return the plan for a device, without using the device's memory."""
    return make_rehearsal_plan(folder) if device == "cpu" else Plan(device, folder)


def run_step(device: str, folder: Path, name: str) -> None:
    """Measure one step in this process."""
    plan = make_plan(device, folder)
    step = next(step for step in steps_of(plan) if step.name == name)
    start = time.monotonic()
    values = step.measure(plan)
    write_values(folder, name, values | {"machine": describe_machine(device), "step_seconds": time.monotonic() - start})


def run_in_process(device: str, folder: Path, name: str, minutes: float) -> str:
    """Measure one step in a separate process; return an error message, which is empty if the step succeeded."""
    argv = [sys.executable, "-m", "benchmarks.gpu", "--device", device, "--out", str(folder), "--step", name]
    log = folder / f"{name}.log"
    with log.open("wb") as stream:
        # The separate session makes it possible to kill the step together with all processes that it started.
        process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        exit_code = process.wait(timeout=60 * minutes)
    except subprocess.TimeoutExpired:
        return f"took more than {minutes:g} minutes (see {log})"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{lines[-1] if lines else f'ended with {exit_code}'} (see {log})" if exit_code else ""


def select_steps(names: Sequence[str], prefixes: Sequence[str]) -> list[str]:
    """Return the names that begin with one of the prefixes; all names if there are no prefixes."""
    return [name for name in names if not prefixes or any(name.startswith(prefix) for prefix in prefixes)]


def table_of(plan: Plan, name: str) -> Iterator[str]:
    """Yield the lines of a step's heading and table; if the step has not run, yield nothing."""
    values = read_values(plan.folder, name)
    if values is not None:
        yield f"\n## {name}\n\n{values['machine']}\n"
        yield from next(step for step in steps_of(plan) if step.name == name).show(values)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, help="folder for the JSON files (default: gpu, or a temporary folder with --device cpu)"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", default=[], help="prefixes of the steps to run")
    parser.add_argument("--tables", action="store_true", help="only print the tables of finished steps")
    parser.add_argument("--minutes", type=float, default=STEP_MINUTES, help="time limit per step, in minutes")
    parser.add_argument("--budget-minutes", type=float, help="start no step after this many minutes")
    parser.add_argument("--step", help="measure only this step, in this process")
    return parser.parse_args()


def main() -> int:
    """Run the unfinished steps; return 1 if a step failed."""
    options = parse_arguments()
    folder = options.out or Path(tempfile.mkdtemp(prefix="robust201-gpu-") if options.device == "cpu" else "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    if options.step:
        run_step(options.device, folder, options.step)
        return 0
    if options.device == "cuda" and not (options.tables or torch.cuda.is_available()):
        raise SystemExit("Measuring on cuda failed: PyTorch finds no GPU. Use --device cpu to try out the steps.")
    plan = make_plan(options.device, folder)
    names = select_steps([step.name for step in steps_of(plan)], options.only)
    start = time.monotonic()
    error_messages: dict[str, str] = {}
    for name in names:
        is_missing = not options.tables and read_values(folder, name) is None
        if is_missing and options.budget_minutes and time.monotonic() - start > 60 * options.budget_minutes:
            error_messages[name] = "not started, because the time budget is used up"
            continue
        if is_missing:
            error_message = run_in_process(options.device, folder, name, options.minutes)
            if error_message:
                error_messages[name] = error_message
                print(f"\n{name} failed: {error_message}", flush=True)
                continue
        print("\n".join(table_of(plan, name)), flush=True)
    if error_messages:
        print("\nUnfinished steps:")
        for name, error_message in error_messages.items():
            print(f"- {name}: {error_message}")
    return 1 if error_messages else 0


if __name__ == "__main__":
    sys.exit(main())
