"""Build hook that compiles native.c to a library when the package is built or installed.

If there is no C compiler, the package is built without the library. This command compiles native.c for a checkout that
is on Python's path without being installed:

    python hatch_build.py

With ROBUST201_NATIVE=0 nothing is compiled; such a wheel fits every platform, and networks are computed with PyTorch.
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

FOLDER = Path("pipeline/robust201/networks/nb201/compiled")
# Sums must be equal on all machines: fused multiply-adds are always used, and -O3 does not reorder terms.
FLAGS = ("-O3", "-march=x86-64-v4", "-mprefer-vector-width=512", "-ffp-contract=fast", "-shared", "-fPIC")


def build(root: Path) -> Path | None:
    """Compile the native library and return its path; if this is impossible, print the reason and return None."""
    source, library = root / FOLDER / "native.c", root / FOLDER / "_native.so"
    if os.environ.get("ROBUST201_NATIVE") == "0":
        sys.stderr.write(f"{source.name} was not compiled: ROBUST201_NATIVE is 0.\n")
        return None
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64" or compiler is None:
        sys.stderr.write(f"{source.name} was not compiled: a C compiler on x86-64 Linux is needed.\n")
        return None
    temporary = library.with_suffix(f".{os.getpid()}.tmp")
    # With this hash, `native.unavailable_reason` recognises a library built from another version of the source.
    source_hash = f'-DROBUST201_SOURCE="{hashlib.sha256(source.read_bytes()).hexdigest()}"'
    command = [compiler, *FLAGS, source_hash, "-o", temporary, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.stderr.write(f"{source.name} was not compiled: {compiler} failed.\n{result.stderr}\n")
        temporary.unlink(missing_ok=True)
        return None
    # With the hash at the end of the file, `native.unavailable_reason` recognises a damaged library, which could crash
    # Python.
    content = temporary.read_bytes()
    temporary.write_bytes(content + hashlib.sha256(content).digest())
    temporary.replace(library)
    return library


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hook that adds the library to a wheel. Such a wheel is for one platform, but for all versions of Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library before the builder collects files."""
        library = build(Path(self.root))
        if library is None:
            return
        build_data["artifacts"].append(str(FOLDER / library.name))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


if __name__ == "__main__":
    sys.exit(0 if build(Path(__file__).parent) else 1)
