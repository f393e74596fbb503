"""Compare the demo's export with its recorded hashes, byte for byte.

The demo became smaller on 2026-11-22; its hashes were made anew by code that still gave the old ones for the old demo.

    python -m tests.golden.compare_demo DATASET

Images, ids, draws, accuracies and confusion matrices are the same on every processor that was tried; the last bits of a
confidence depend on its instructions. `demo-export.sha256` was made with AVX512, on an Intel Xeon; PGD's files and
`croissant.json` on an AMD EPYC (family 25, model 17), after the demo's PGD got longer steps on 2026-11-23. The other
files were the same there. `demo-export-avx2.sha256` lists the files that differ from these on a CPU with AVX2 alone. It
was made on an AMD EPYC (family 25, model 1); with the other kernels of MKL, OpenBLAS and NumPy the demo gave the same.
"""

import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
LISTINGS = {
    "AVX512": ("demo-export.sha256",),
    "AVX2": ("demo-export.sha256", "demo-export-avx2.sha256"),
}
"""Listings by the instructions that PyTorch uses; a later one replaces entries of an earlier one."""

REWORDED = {"README.md", "versions.json"}
"""Written for people, or of the installed versions."""

OF_NO_NETWORK = {"meta.json", "recorded_accuracy.json", "sweep.json", "sweep.yaml", "weights.json"}
"""All that is compared where no listing was made; `sweep.json` has the hashes of all images."""


def read_hashes(path: Path) -> dict[str, str]:
    """Read a listing in the form of `sha256sum`: file name to hash."""
    lines = (line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def expected_hashes(capability: str) -> dict[str, str]:
    """Hash of each file of the export on a CPU of this capability, in PyTorch's spelling."""
    hashes: dict[str, str] = {}
    for name in LISTINGS.get(capability, LISTINGS["AVX512"]):
        hashes |= read_hashes(FOLDER / name)
    return hashes


def main() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    expected, found = expected_hashes(capability), read_hashes(Path(sys.argv[1]) / "SHA256SUMS")
    compared = set(expected) - REWORDED
    if capability not in LISTINGS:
        compared &= OF_NO_NETWORK
    differing = sorted(name for name in compared if found.get(name) != expected[name])
    added = sorted(set(found) - set(expected))
    print(f"{len(compared) - len(differing)} of {len(compared)} files of the demo's export are as they were")
    if differing or added:
        sys.exit(f"differing: {', '.join(differing) or 'none'}; added: {', '.join(added) or 'none'}")


if __name__ == "__main__":
    main()
