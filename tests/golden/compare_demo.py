"""Compare the demo's export with its recorded hashes, byte for byte.

The demo became smaller on 2026-11-22; its hashes were made anew by code that still gave the old ones for the old demo.

    python -m tests.golden.compare_demo DATASET

The last bits of a confidence depend on the instructions that a CPU has. The hashes were made with AVX512, all but two
on an Intel Xeon; on other CPUs only the files are compared that no network decides. The two are pgd_confidence.json and
croissant.json: they changed on 2026-11-23, when exponentials stopped coming from MKL (docs/engine.md), and were made on
an AMD EPYC.
"""

import sys
from pathlib import Path

import torch

HASHES = Path(__file__).with_name("demo-export.sha256")
MADE_WITH = "AVX512"
REWORDED = {"README.md", "versions.json"}
"""Written for people, or of the installed versions."""

OF_NO_NETWORK = {"meta.json", "recorded_accuracy.json", "sweep.yaml", "weights.json"}


def read_hashes(path: Path) -> dict[str, str]:
    """Read a listing in the form of `sha256sum`: file name to hash."""
    lines = (line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def main() -> None:
    """Compare, and exit with 1 where a file differs."""
    expected, found = read_hashes(HASHES), read_hashes(Path(sys.argv[1]) / "SHA256SUMS")
    compared = set(expected) - REWORDED
    if torch.backends.cpu.get_cpu_capability() != MADE_WITH:
        compared &= OF_NO_NETWORK
    differing = sorted(name for name in compared if found.get(name) != expected[name])
    added = sorted(set(found) - set(expected))
    print(f"{len(compared) - len(differing)} of {len(compared)} files of the demo's export are as they were")
    if differing or added:
        sys.exit(f"differing: {', '.join(differing) or 'none'}; added: {', '.join(added) or 'none'}")


if __name__ == "__main__":
    main()
