"""Images, draws and identities do not depend on the processor.

Libraries choose kernels by processor, and some round otherwise; their variables choose for them, in a process of its
own. Hashes of the images are fixed as well, so each machine that runs the tests adds its own kernels to the comparison.
"""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy._core._multiarray_umath import (  # the names that NPY_DISABLE_CPU_FEATURES takes
    __cpu_dispatch__,
    __cpu_features__,
)

from robust201.tasks.corruptions.generator import CORRUPTION_FUNCTIONS
from robust201.tasks.corruptions.weather import grey_of
from tests.conftest import REPOSITORY
from tests.support.processor_probe import hashes

SIZES = (16, 32, 64, 96)
FEATURES = [name for name in __cpu_dispatch__ if __cpu_features__[name]]

OLD_PROCESSOR = {
    "OPENBLAS_CORETYPE": "PRESCOTT",
    "NPY_DISABLE_CPU_FEATURES": " ".join(FEATURES),
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "JSIMD_FORCENONE": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX",
}
"""Makes OpenBLAS, NumPy, oneDNN, PyTorch, MKL, libjpeg and the C library compute as on a processor without AVX."""

SINGLE = [
    *({name: value} for name, value in OLD_PROCESSOR.items()),
    *({"OPENBLAS_CORETYPE": name} for name in ("NEHALEM", "SANDYBRIDGE", "HASWELL", "SKYLAKEX")),
    *({"NPY_DISABLE_CPU_FEATURES": name} for name in FEATURES[1:]),
    *({"ONEDNN_MAX_CPU_ISA": name} for name in ("AVX", "AVX2", "AVX512_CORE")),
    {"ATEN_CPU_CAPABILITY": "avx2"},
]
NEEDED = {"SANDYBRIDGE": "avx", "HASWELL": "fma", "SKYLAKEX": "avx512f"}
"""Flag of /proc/cpuinfo that OpenBLAS's kernels need."""

FIXED = {
    "brightness": "70576238eb7bef91",
    "contrast": "598d6008883e22c9",
    "defocus_blur": "712b8bc0c177fa24",
    "elastic_transform": "6a0333b0827d15fa",
    "fog": "4a48812ce44f25cf",
    "frost": "61a20752f8df403c",
    "gaussian_noise": "0a8dac1f9acea422",
    "glass_blur": "519914ab4d2007e7",
    "impulse_noise": "70619ba4a0b3ce7b",
    "motion_blur": "8e2c665aedbfce94",
    "pixelate": "6647d3597354bb50",
    "shot_noise": "1da7d3d54429630c",
    "snow": "2519e2a6ed99e2b8",
    "zoom_blur": "7e376bc45bd2a205",
    "snow of noise": "80408dc547255f0e",
}
"""Hashes over those of the images at all sizes, without jpeg_compression, whose bytes depend on the version of libjpeg.
On an older commit, with OpenBLAS's kernels for AVX2, the snow of noise has other pixels."""


def hashes_elsewhere(variables: Mapping[str, str]) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.support.processor_probe", *map(str, SIZES)]
    result = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return hashes(SIZES)


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    assert first.keys() == second.keys()
    return sorted(name for name in first if first[name] != second[name])


def test_images_and_draws_keep_their_bits_on_an_old_processor(expected: Mapping[str, str]) -> None:
    names = differing(expected, hashes_elsewhere(OLD_PROCESSOR))
    assert [name for name in names if not name.startswith("control")] == []
    # Without these, no variable would have been obeyed, and the line above would prove nothing.
    assert "control OPENBLAS_CORETYPE" in names
    assert "control ONEDNN_MAX_CPU_ISA" in names


@pytest.mark.slow
@pytest.mark.parametrize("variables", SINGLE, ids=lambda one: "-".join(itertools.chain(*one.items()))[:40])
def test_images_and_draws_keep_their_bits_with_each_kernel(
    expected: Mapping[str, str], variables: Mapping[str, str]
) -> None:
    needed = NEEDED.get(variables.get("OPENBLAS_CORETYPE", ""))
    if needed is not None and needed not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor lacks {needed}")
    names = differing(expected, hashes_elsewhere(variables))
    assert [name for name in names if not name.startswith("control")] == []


@pytest.mark.parametrize("name", FIXED)
def test_images_have_the_same_bytes_on_every_machine(expected: Mapping[str, str], name: str) -> None:
    sizes = [expected[f"{name} at {size}"] for size in SIZES] if name in CORRUPTION_FUNCTIONS else [expected[name]]
    assert hashlib.sha256(" ".join(sizes).encode()).hexdigest()[:16] == FIXED[name]


def test_the_table_of_fixed_bytes_has_all_corruptions() -> None:
    assert FIXED.keys() - {"snow of noise"} == CORRUPTION_FUNCTIONS.keys() - {"jpeg_compression"}


def test_grey_equals_fused_multiply_adds_for_all_colours() -> None:
    """For rounding twice to differ from rounding once, the first must hit the middle between two float32."""
    levels = (np.arange(256) / 255.0).astype(np.float32)
    weights = np.array((0.299, 0.587, 0.114), np.float32).astype(np.float64)
    green, blue = np.meshgrid(levels, levels, indexing="ij")
    for red in levels:
        grey: np.ndarray = np.full_like(green, red) * np.float32(weights[0])
        for channel, weight in ((green, weights[1]), (blue, weights[2])):
            product = channel.astype(np.float64) * weight
            total = product + grey
            part = total - product
            error = (product - (total - part)) + (grey - part)  # exact (Knuth)
            grey = total.astype(np.float32)
            below = np.nextafter(grey, np.float32(-1)).astype(np.float64)
            above = np.nextafter(grey, np.float32(2)).astype(np.float64)
            is_middle = (total == (below + grey) / 2) | (total == (above + grey) / 2)
            assert not (is_middle & (error != 0)).any()
        assert (grey == grey_of(np.stack((np.full_like(green, red), green, blue), axis=-1))).all()
