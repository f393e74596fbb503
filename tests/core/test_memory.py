"""Processes look for garbage rarely while they start, and as often as Python does by itself where they compute."""

import subprocess
import sys


def test_a_process_that_computes_looks_for_garbage_as_often_as_python_does() -> None:
    lines = (
        "import gc; usual = gc.get_threshold()",
        "from robust201.core.memory import collect_rarely",
        "collect_rarely(); assert gc.get_threshold() > usual",
        "from robust201.models.arithmetic import configure_torch",
        "configure_torch(1); assert gc.get_threshold() == usual and gc.get_freeze_count()",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)


def test_thresholds_that_somebody_else_chose_stay() -> None:
    lines = (
        "import gc; gc.set_threshold(600, 9, 8)",
        "from robust201.core.memory import collect_as_usual",
        "collect_as_usual(); assert gc.get_threshold() == (600, 9, 8) and not gc.get_freeze_count()",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
