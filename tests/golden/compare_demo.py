"""Compare the hashes of the demo's export with recorded hashes.

    python -m tests.golden.compare_demo DATASET

Images, ids, random numbers, accuracies and confusion matrices are the same on every tested CPU. Only the last bits of a
confidence depend on the CPU's instruction set. `demo-export.sha256` was recorded with AVX512 on an Intel Xeon and an
AMD EPYC (family 25, model 17); `demo-export-avx2.sha256` lists the files that differ on a CPU with AVX2 only, and was
recorded on an AMD EPYC (family 25, model 1). There, other kernels of MKL, OpenBLAS and NumPy gave equal files. An Intel
Xeon limited to AVX2 (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA) gave equal files; those of APGD and Square are its.
"""

import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
LISTINGS = {
    "AVX512": ("demo-export.sha256",),
    "AVX2": ("demo-export.sha256", "demo-export-avx2.sha256"),
}
"""Files with hashes, by the instruction set that PyTorch uses; a later file replaces entries of an earlier file."""

VERSIONED_FILES = {"README.md", "sweep.json", "versions.json"}
"""Files that are not compared, because they contain the versions of robust201 and of installed packages."""


def read_hashes(path: Path) -> dict[str, str]:
    """Read a file in the format of `sha256sum`, and return the hashes by file name."""
    lines = (line.split("  ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, name in lines}


def main() -> None:
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in LISTINGS:
        sys.exit(f"no hashes are recorded for {capability}, only for {', '.join(LISTINGS)}")
    expected: dict[str, str] = {}
    for name in LISTINGS[capability]:
        expected |= read_hashes(FOLDER / name)
    actual = read_hashes(Path(sys.argv[1]) / "SHA256SUMS")
    differing = sorted(name for name, digest in expected.items() if actual.get(name) != digest)
    unexpected = sorted(actual.keys() - expected.keys() - VERSIONED_FILES)
    print(f"{len(expected) - len(differing)} of {len(expected)} files of the demo's export are unchanged")
    if differing or unexpected:
        sys.exit(f"changed: {', '.join(differing) or 'none'}; additional: {', '.join(unexpected) or 'none'}")


if __name__ == "__main__":
    main()
