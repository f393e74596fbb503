"""Entry point of `robust201` and of `python -m robust201`."""

import gc
import os
import signal


def main() -> None:
    """Run the command line (see `cli.exits`)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Before and after the command, Ctrl-C ends the process without a traceback, like SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        # Arrow's own allocator keeps the memory of ended threads. pyarrow reads this variable when it is imported.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        from robust201.core.memory import reduce_gc_frequency

        reduce_gc_frequency()
        from robust201.cli.app import main as run

        run()
    finally:
        gc.freeze()  # skips the garbage collection at exit, which can take longer than the command itself


if __name__ == "__main__":
    main()
