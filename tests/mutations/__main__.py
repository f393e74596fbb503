"""Damage files of every kind at random, and see that no reader or verb ends in a traceback or a wrong number.

python -m tests.mutations [--count 500] [--seed N]
"""

import argparse
import sys
from collections import Counter

from tests.mutations.trials import Trial, run_in_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how often a file is damaged")
    parser.add_argument("--seed", type=int, default=0, help="of the random damage")
    arguments = parser.parse_args()
    trials = run_in_folder(arguments.count, arguments.seed, show_problem)
    show_table(trials)
    bad = sum(bool(trial.problem) for trial in trials)
    print(f"seed {arguments.seed}: {len(trials)} files damaged, {bad} answered otherwise than they must be")
    sys.exit(1 if bad else 0)


def show_problem(trial: Trial) -> None:
    if trial.problem:
        print(f"BAD {trial.file} {trial.damage}, {trial.probe}: {trial.problem}", flush=True)


def show_table(trials: list[Trial]) -> None:
    rows: dict[tuple[str, str], Counter[str]] = {}
    for trial in trials:
        rows.setdefault((trial.kind, trial.damage), Counter())["BAD" if trial.problem else str(trial.code)] += 1
    print(f"{'file':22}{'damage':22}{'trials':>8}  exit codes")
    for (kind, damage), codes in sorted(rows.items()):
        told = ", ".join(f"{count} × {code}" for code, count in sorted(codes.items()))
        print(f"{kind:22}{damage:22}{codes.total():8}  {told}")


if __name__ == "__main__":
    main()
