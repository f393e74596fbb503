"""Command line with injected faults.

`python -m tests.faults.command FOLDER ARGUMENTS…` runs `robust201 ARGUMENTS…` with the faults configured in FOLDER.
"""

import sys
from pathlib import Path
from unittest import mock

from robust201.runtime.executors import ray_process
from tests.faults.injections import Injections

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.argv = ["robust201", *sys.argv[2:]]
    if "inline" in sys.argv:
        Injections(folder).apply()
    else:
        Injections(folder).apply_to_driver()
        mock.patch.object(ray_process, "CHILD_MODULE", "tests.faults.ray_process").start()
    from robust201.cli import app as cli

    cli.main()
