"""Garbage is collected rarely while a process starts, and with Python's default thresholds afterwards."""

import subprocess
import sys


def test_configure_torch_restores_default_gc_thresholds() -> None:
    script_lines = (
        "import gc; default = gc.get_threshold()",
        "from robust201.core.memory import reduce_gc_frequency",
        "reduce_gc_frequency(); assert gc.get_threshold() > default",
        "from robust201.networks.device import configure_torch",
        "configure_torch(1); assert gc.get_threshold() == default and gc.get_freeze_count()",
    )
    subprocess.run([sys.executable, "-c", "\n".join(script_lines)], check=True)


def test_restore_gc_thresholds_keeps_thresholds_of_other_code() -> None:
    script_lines = (
        "import gc; gc.set_threshold(600, 9, 8)",
        "from robust201.core.memory import restore_gc_thresholds",
        "restore_gc_thresholds(); assert gc.get_threshold() == (600, 9, 8) and not gc.get_freeze_count()",
    )
    subprocess.run([sys.executable, "-c", "\n".join(script_lines)], check=True)
