"""The run of a sweep on Ray as a process: `python -m tests.run.child SWEEP.yaml`."""

import sys
from pathlib import Path

from robust201.core.errors import RobustError
from robust201.sweep.loading import load_config
from tests.support.runs import run_sweep


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> int:
    try:
        tally = run_sweep(load_config(Path(sys.argv[1])), say=say)
    except RobustError as error:
        say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    for failure in tally.failures:
        say(f"failed: {failure.label}: {failure.failure}")
    return 3 if tally.failures or tally.is_drained else 0


if __name__ == "__main__":
    sys.exit(main())
