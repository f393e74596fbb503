"""Compare the hashes of the demo's export with recorded hashes.

When the demo became smaller on 2026-11-22, its hashes were recorded again with code that still reproduced the hashes of
the previous demo.

    python -m tests.golden.compare_demo DATASET

Images, ids, random numbers, accuracies and confusion matrices are the same on every tested CPU. Only the last bits of a
confidence depend on the CPU's instruction set. `demo-export.sha256` was recorded with AVX512 on an Intel Xeon. On
2026-11-23, the demo's PGD got larger steps. The files of PGD were then recorded again on an AMD
EPYC (family 25, model 17), where all other files were equal to the recorded files. `demo-export-avx2.sha256` lists the
files that differ on a CPU with AVX2 only. It was recorded on an AMD EPYC (family 25, model 1), where other kernels of
MKL, OpenBLAS and NumPy gave the same files.

On 2026-11-29, protocols in `sweep.json` changed: generated corruptions are identified by their recipe, tasks have a
`version`, and the normalisation of images is recorded. All other files were equal.

The hashes were recorded by version 0.1.0. Four files contain the version, or the hash of a file that contains it.
Before their hashes are computed here, the current version is replaced by the recorded version, and the versions of
libraries in recipes are removed.
"""

import hashlib
import re
import sys
from pathlib import Path

import torch

from robust201 import __version__

FOLDER = Path(__file__).parent
LISTINGS = {
    "AVX512": ("demo-export.sha256",),
    "AVX2": ("demo-export.sha256", "demo-export-avx2.sha256"),
}
"""Files with hashes, by the instruction set that PyTorch uses; a later file replaces entries of an earlier file."""

FILES_NOT_COMPARED = {"README.md", "versions.json"}
"""Files that are not compared, because they contain prose or the versions of installed packages."""

FILES_WITHOUT_RESULTS = {"meta.json", "recorded_accuracy.json", "sweep.json", "sweep.yaml", "weights.json"}
"""The only files that are compared for other instruction sets, as they contain no results; `sweep.json` has the hashes
of all images."""

RECORDED_VERSION = "0.1.0"

VERSIONED_FILES = ("sweep.json", "versions.json", "README.md")
"""Files that contain the version. Each file also contains the hashes of the files before it in this list."""


def read_hashes(path: Path) -> dict[str, str]:
    """Read a file in the format of `sha256sum`, and return the hashes by file name."""
    lines = (line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def expected_hashes(capability: str) -> dict[str, str]:
    """Return the expected hash of each exported file.

    Args:
        capability: PyTorch's name of the CPU's instruction set.
    """
    hashes: dict[str, str] = {}
    for name in LISTINGS.get(capability, LISTINGS["AVX512"]):
        hashes |= read_hashes(FOLDER / name)
    return hashes


def recorded_version_hashes(dataset: Path) -> dict[str, str]:
    """Return the hash of each versioned file with `RECORDED_VERSION` instead of the current version.

    The version must have the same length, because the files also contain file sizes.
    """
    hashes: dict[str, str] = {}
    replacements = {
        f'"robust201": "{__version__}"': f'"robust201": "{RECORDED_VERSION}"',
        f'"robust201": [\n      "{__version__}"': f'"robust201": [\n      "{RECORDED_VERSION}"',
        f'"version": "{__version__}"': f'"version": "{RECORDED_VERSION}"',
        f"Written by robust201 {__version__}.": f"Written by robust201 {RECORDED_VERSION}.",
    }
    for name in VERSIONED_FILES:
        content = (dataset / name).read_bytes().decode()
        current_hash = hashlib.sha256(content.encode()).hexdigest()
        for current, recorded in replacements.items():
            content = content.replace(current, recorded)
        content = re.sub(r'"libraries": \{[^}]*\}', '"libraries": {}', content)
        hashes[name] = hashlib.sha256(content.encode()).hexdigest()
        replacements[current_hash] = hashes[name]
    return hashes


def main() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    dataset = Path(sys.argv[1])
    expected, actual = expected_hashes(capability), read_hashes(dataset / "SHA256SUMS")
    actual |= recorded_version_hashes(dataset)
    compared = set(expected) - FILES_NOT_COMPARED
    if capability not in LISTINGS:
        compared &= FILES_WITHOUT_RESULTS
    differing = sorted(name for name in compared if actual.get(name) != expected[name])
    unexpected = sorted(set(actual) - set(expected))
    print(f"{len(compared) - len(differing)} of {len(compared)} files of the demo's export are unchanged")
    if differing or unexpected:
        sys.exit(f"changed: {', '.join(differing) or 'none'}; additional: {', '.join(unexpected) or 'none'}")


if __name__ == "__main__":
    main()
