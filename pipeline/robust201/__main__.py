"""`robust201` and `python -m robust201`: a Ctrl-C is heard while the rest is imported, too."""

import sys

from robust201.core.errors import EvaluationError
from robust201.core.garbage import collect_rarely, end_without_collecting


def main() -> None:
    """Run the command line (see `cli.exits`)."""
    collect_rarely()
    try:
        from robust201.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(EvaluationError.exit_code)
    finally:
        end_without_collecting()


if __name__ == "__main__":
    main()
