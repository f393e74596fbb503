"""Compare the demo's export with its recorded hashes, byte for byte.

The demo became smaller on 2026-11-22; its hashes were recorded again with code that reproduced the old demo's hashes.

    python -m tests.golden.compare_demo DATASET

Images, ids, random numbers, accuracies and confusion matrices are the same on every tested CPU; the last bits of a
confidence depend on the CPU's instructions. `demo-export.sha256` was recorded with AVX512 on an Intel Xeon; PGD's files
and `croissant.json` on an AMD EPYC (family 25, model 17), after the demo's PGD got larger steps on 2026-11-23. The
other files were the same there. `demo-export-avx2.sha256` lists the files that differ on a CPU with AVX2 only. It was
recorded on an AMD EPYC (family 25, model 1); other kernels of MKL, OpenBLAS and NumPy gave the same files.

The hashes were recorded by version 0.1.0, and four files contain the version or the hash of a file that does. Their
hashes are computed here after putting the recorded version back; every other byte counts.
"""

import hashlib
import sys
from pathlib import Path

import torch

from robust201 import __version__

FOLDER = Path(__file__).parent
LISTINGS = {
    "AVX512": ("demo-export.sha256",),
    "AVX2": ("demo-export.sha256", "demo-export-avx2.sha256"),
}
"""Listings by the instruction set that PyTorch uses; a later listing replaces entries of an earlier one."""

REWORDED = {"README.md", "versions.json"}
"""Files that are not compared: text for people, and installed versions."""

WITHOUT_RESULTS = {"meta.json", "recorded_accuracy.json", "sweep.json", "sweep.yaml", "weights.json"}
"""Files compared for an instruction set without a listing; `sweep.json` has the hashes of all images."""


RECORDED_VERSION = "0.1.0"

VERSIONED = ("sweep.json", "versions.json", "README.md", "croissant.json")
"""Files that contain the version; each also lists the hashes of those before it."""


def read_hashes(path: Path) -> dict[str, str]:
    """Read the hashes of a `sha256sum` listing by file name."""
    lines = (line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def expected_hashes(capability: str) -> dict[str, str]:
    """Return the expected hash of each exported file; `capability` is PyTorch's name of the CPU's instruction set."""
    hashes: dict[str, str] = {}
    for name in LISTINGS.get(capability, LISTINGS["AVX512"]):
        hashes |= read_hashes(FOLDER / name)
    return hashes


def recorded_version_hashes(dataset: Path) -> dict[str, str]:
    """Return the hash that each versioned file has with `RECORDED_VERSION` in place of the current version.

    Versions of another length also change the file sizes that the files list, and so count as a difference.
    """
    hashes: dict[str, str] = {}
    replacements = {
        f'"robust201": "{__version__}"': f'"robust201": "{RECORDED_VERSION}"',
        f'"robust201": [\n      "{__version__}"': f'"robust201": [\n      "{RECORDED_VERSION}"',
        f'"version": "{__version__}"': f'"version": "{RECORDED_VERSION}"',
        f"Written by robust201 {__version__}.": f"Written by robust201 {RECORDED_VERSION}.",
    }
    for name in VERSIONED:
        text = (dataset / name).read_bytes().decode()
        original = hashlib.sha256(text.encode()).hexdigest()
        for current, recorded in replacements.items():
            text = text.replace(current, recorded)
        hashes[name] = hashlib.sha256(text.encode()).hexdigest()
        replacements[original] = hashes[name]
    return hashes


def main() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    dataset = Path(sys.argv[1])
    expected, actual = expected_hashes(capability), read_hashes(dataset / "SHA256SUMS")
    actual |= recorded_version_hashes(dataset)
    compared = set(expected) - REWORDED
    if capability not in LISTINGS:
        compared &= WITHOUT_RESULTS
    differing = sorted(name for name in compared if actual.get(name) != expected[name])
    added = sorted(set(actual) - set(expected))
    print(f"{len(compared) - len(differing)} of {len(compared)} files of the demo's export are unchanged")
    if differing or added:
        sys.exit(f"differing: {', '.join(differing) or 'none'}; added: {', '.join(added) or 'none'}")


if __name__ == "__main__":
    main()
