"""The long form: every fault, as often as its row says; or one sweep that is killed again and again.

python -m tests.faults [--only NAME …] [--seed N] · python -m tests.faults --list
python -m tests.faults --chaos KILLS [--seed N]
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults import chaos, verdict
from tests.faults.table import FAULTS, Outcome, run_fault, run_undisturbed

_SHOWN_CODES = 12


def main() -> None:
    """Run the chosen faults and print a table; exit code 1 if any verdict is bad."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--list", action="store_true", help="print the faults and how each must end")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--chaos", type=int, metavar="KILLS", help="kill processes at random so often, then judge")
    arguments = parser.parse_args()
    if arguments.list:
        for fault in FAULTS:
            print(f"{fault.name:26}{fault.ends:40}{fault.injects}")
        return
    chosen = (
        [chaos.FAULT]
        if arguments.chaos
        else [fault for fault in FAULTS if not arguments.only or fault.name in arguments.only]
    )
    folder = Path(tempfile.mkdtemp(prefix="robust201-faults-"))
    print(f"seed {arguments.seed}, in {folder}, which is removed unless something is wrong", flush=True)
    outcomes: list[Outcome] = []
    try:
        sweeps = any(fault.judge is verdict.judge for fault in chosen)
        undisturbed = run_undisturbed(folder / "undisturbed") if sweeps else {}
        for fault in chosen:
            repeats = arguments.chaos or fault.repeats
            outcome = run_fault(fault, folder / fault.name, undisturbed, seed=arguments.seed, repeats=repeats)
            outcomes.append(outcome)
            show(outcome)
    finally:  # Ctrl-C, too
        bad = [outcome for outcome in outcomes if outcome.problems]
        if not bad:
            shutil.rmtree(folder, ignore_errors=True)
    skipped = [outcome for outcome in outcomes if outcome.skipped]
    print(f"{len(outcomes)} faults, {len(skipped)} skipped, {len(bad)} ended otherwise than they must")
    sys.exit(1 if bad else 0)


def show(outcome: Outcome) -> None:
    injected = ", ".join(f"{count} {what}" for what, count in outcome.injected.items())
    codes = " ".join(map(str, outcome.codes))
    if len(outcome.codes) > _SHOWN_CODES:
        codes = ", ".join(f"{count} of {code}" for code, count in sorted(Counter(outcome.codes).items()))
    verdict = f"skipped: {outcome.skipped}" if outcome.skipped else "BAD" if outcome.problems else "identical"
    print(f"{outcome.fault.name:26}{verdict:12}exits {codes:10}{outcome.seconds:5.0f} s  {injected}", flush=True)
    for problem in outcome.problems:
        print(f"    {problem[:600]}", flush=True)


if __name__ == "__main__":
    main()
