"""The command line with faults inside: `python -m tests.faults.command FOLDER ARGUMENTS…` is `robust201 ARGUMENTS…`."""

import sys
from pathlib import Path

from tests.faults.injections import Injections


def main() -> None:
    """Patch this process and the actors that it will start, then run the command line."""
    folder = Path(sys.argv[1])
    sys.argv = ["robust201", *sys.argv[2:]]
    if "inline" in sys.argv:
        Injections(folder).apply()
    else:
        Injections(folder).apply_to_driver()
        from tests.faults import actors

        actors.install()
    from robust201.cli import app as cli

    cli.main()


if __name__ == "__main__":
    main()
