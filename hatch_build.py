"""Compiles native.c, by the C compiler that is there, when the package is built or installed; without one, goes on.

For a checkout that is on the path without being installed:

    python hatch_build.py

ROBUST201_NATIVE=0 compiles nothing: the wheel is then of every platform, and PyTorch computes.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("pipeline/robust201/spaces/nasbench201/compiled")
# Sums are made with fused multiply-adds, and no instruction may reorder them: -O3 does neither more nor less.
FLAGS = ("-O3", "-march=x86-64-v4", "-mprefer-vector-width=512", "-ffp-contract=fast", "-shared", "-fPIC")


def build(root: Path) -> Path | None:
    """Compile the native library; None, with a line on stderr that says why, where that cannot be done."""
    source, library = root / FOLDER / "native.c", root / FOLDER / "_native.so"
    if os.environ.get("ROBUST201_NATIVE") == "0":
        sys.stderr.write(f"{source.name} was not compiled: ROBUST201_NATIVE is 0.\n")
        return None
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or compiler is None:
        sys.stderr.write(f"{source.name} was not compiled: it takes a C compiler on x86-64 Linux.\n")
        return None
    made = library.with_suffix(f".{os.getpid()}.tmp")
    # By which `native.why_not` finds a library that an update or an edit of the source left behind.
    named = f'-DROBUST201_SOURCE="{hashlib.sha256(source.read_bytes()).hexdigest()}"'
    done = subprocess.run([compiler, *FLAGS, named, "-o", made, source], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{source.name} was not compiled: {compiler} ends with\n{done.stderr}\n")
        made.unlink(missing_ok=True)
        return None
    # The file ends with its own hash, by which `native.why_not` finds a damaged one: loading it could kill the process.
    content = made.read_bytes()
    made.write_bytes(content + hashlib.sha256(content).digest())
    made.replace(library)
    return library


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library to a wheel, which then is one of its platform, but of no Python version."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before files are collected."""
        library = build(Path(self.root))
        if library is None:
            return
        build_data["artifacts"].append(str(FOLDER / library.name))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


if __name__ == "__main__":
    sys.exit(0 if build(Path(__file__).parent) else 1)
