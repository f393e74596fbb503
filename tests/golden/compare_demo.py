"""Compare the demo's export with its recorded hashes, byte for byte.

The demo became smaller on 2026-11-22; its hashes were recorded again with code that reproduced the old demo's hashes.

    python -m tests.golden.compare_demo DATASET

Images, ids, random numbers, accuracies and confusion matrices are the same on every tested CPU; the last bits of a
confidence depend on the CPU's instructions. `demo-export.sha256` was recorded with AVX512 on an Intel Xeon; PGD's files
and `croissant.json` on an AMD EPYC (family 25, model 17), after the demo's PGD got larger steps on 2026-11-23. The
other files were the same there. `demo-export-avx2.sha256` lists the files that differ on a CPU with AVX2 only. It was
recorded on an AMD EPYC (family 25, model 1); other kernels of MKL, OpenBLAS and NumPy gave the same files.
"""

import sys
from pathlib import Path

import torch

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


def main() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    expected, actual = expected_hashes(capability), read_hashes(Path(sys.argv[1]) / "SHA256SUMS")
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
