"""`robust201` and `python -m robust201`."""

import gc
import os
import signal


def main() -> None:
    """Run the command line (see `cli.exits`)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the command begins and after it has ended, Ctrl-C ends the process as SIGTERM does: without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        # Arrow's own allocator keeps the freed memory of threads that have ended; read when pyarrow is imported.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        from robust201.core.memory import collect_rarely

        collect_rarely()
        from robust201.cli.app import main as run

        run()
    finally:
        gc.freeze()  # a last look for garbage would take longer than many a command


if __name__ == "__main__":
    main()
