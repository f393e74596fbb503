"""Garbage is collected rarely while a process starts, and as often as Python's default when it computes."""

import subprocess
import sys


def test_configure_torch_restores_default_gc_thresholds() -> None:
    lines = (
        "import gc; default = gc.get_threshold()",
        "from robust201.core.memory import collect_rarely",
        "collect_rarely(); assert gc.get_threshold() > default",
        "from robust201.models.arithmetic import configure_torch",
        "configure_torch(1); assert gc.get_threshold() == default and gc.get_freeze_count()",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_collect_as_usual_keeps_thresholds_set_by_others() -> None:
    lines = (
        "import gc; gc.set_threshold(600, 9, 8)",
        "from robust201.core.memory import collect_as_usual",
        "collect_as_usual(); assert gc.get_threshold() == (600, 9, 8) and not gc.get_freeze_count()",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
