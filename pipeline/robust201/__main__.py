"""`robust201` and `python -m robust201`: a Ctrl-C is heard while the rest is imported, too."""

import gc
import sys


def main() -> None:
    """Run the command line (see `cli.exits`)."""
    try:
        from robust201.core.garbage import collect_rarely

        collect_rarely()
        from robust201.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(3)  # as an incomplete run
    finally:
        gc.freeze()  # a last look for garbage would take longer than many a command


if __name__ == "__main__":
    main()
