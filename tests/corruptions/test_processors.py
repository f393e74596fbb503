"""Images, random numbers and identities do not depend on the processor.

Libraries select kernels by processor, and some kernels round differently. These tests select kernels by environment
variables, in a separate process. They also compare hashes of the images with recorded ones, so each machine that runs
the tests checks its own kernels.
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

from robust201.corruptions.generator import CORRUPTION_FUNCTIONS
from robust201.corruptions.weather import grey_of
from robust201.tasks import CORRUPTIONS
from tests.conftest import REPOSITORY
from tests.support.processor_probe import hashes

SIZES = (16, 32, 64, 96)
FEATURES = [name for name in __cpu_dispatch__ if __cpu_features__[name]]

OLD_PROCESSOR_VARIABLES = {
    "OPENBLAS_CORETYPE": "PRESCOTT",
    "NPY_DISABLE_CPU_FEATURES": " ".join(FEATURES),
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "JSIMD_FORCENONE": "1",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX",
}
"""Environment variables that make OpenBLAS, NumPy, oneDNN, PyTorch, MKL, libjpeg and the C library compute without
AVX."""

SINGLE_VARIABLES = [
    *({name: value} for name, value in OLD_PROCESSOR_VARIABLES.items()),
    *({"OPENBLAS_CORETYPE": name} for name in ("NEHALEM", "SANDYBRIDGE", "HASWELL", "SKYLAKEX")),
    *({"NPY_DISABLE_CPU_FEATURES": name} for name in FEATURES[1:]),
    *({"ONEDNN_MAX_CPU_ISA": name} for name in ("AVX", "AVX2", "AVX512_CORE")),
    {"ATEN_CPU_CAPABILITY": "avx2"},
]
REQUIRED_FLAGS = {"SANDYBRIDGE": "avx", "HASWELL": "fma", "SKYLAKEX": "avx512f"}
"""Flags of /proc/cpuinfo that OpenBLAS's kernels require."""

RECORDED_HASHES = {
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
    "snow on noise": "80408dc547255f0e",
}
"""Hashes over the hashes of each corruption's images at all sizes. jpeg_compression is absent, because its bytes depend
on libjpeg. "snow on noise" (snow on images of noise) is recorded because an older version of the code computed other
pixels for it with OpenBLAS's kernels for AVX2."""


def hashes_in_process_with(variables: Mapping[str, str]) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.support.processor_probe", *map(str, SIZES)]
    result = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def expected_hashes() -> dict[str, str]:
    return hashes(SIZES)


def differing_names(hashes: Mapping[str, str], other_hashes: Mapping[str, str]) -> list[str]:
    assert hashes.keys() == other_hashes.keys()
    return sorted(name for name in hashes if hashes[name] != other_hashes[name])


def test_hashes_are_equal_on_old_processor(expected_hashes):
    names = differing_names(expected_hashes, hashes_in_process_with(OLD_PROCESSOR_VARIABLES))
    assert [name for name in names if not name.startswith("control")] == []
    # The controls differ only if the variables have an effect. Otherwise the assertion above would prove nothing.
    assert "control OPENBLAS_CORETYPE" in names
    assert "control ONEDNN_MAX_CPU_ISA" in names


@pytest.mark.slow
@pytest.mark.parametrize("variables", SINGLE_VARIABLES, ids=lambda item: "-".join(itertools.chain(*item.items()))[:40])
def test_hashes_are_equal_with_each_kernel(expected_hashes, variables):
    flag = REQUIRED_FLAGS.get(variables.get("OPENBLAS_CORETYPE", ""))
    if flag is not None and flag not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor lacks {flag}")
    names = differing_names(expected_hashes, hashes_in_process_with(variables))
    assert [name for name in names if not name.startswith("control")] == []


@pytest.mark.parametrize("name", RECORDED_HASHES)
def test_images_match_recorded_hashes(expected_hashes, name):
    image_hashes = (
        [expected_hashes[f"{name} at {size}"] for size in SIZES]
        if name in CORRUPTION_FUNCTIONS
        else [expected_hashes[name]]
    )
    assert hashlib.sha256(" ".join(image_hashes).encode()).hexdigest()[:16] == RECORDED_HASHES[name]


def test_recorded_hashes_cover_paper_corruptions():
    assert {*CORRUPTIONS} - {"jpeg_compression"} <= RECORDED_HASHES.keys()


def test_grey_of_matches_fused_multiply_adds_for_all_colours():
    """Rounding twice differs from rounding once only if the first result is halfway between two float32 numbers."""
    levels = (np.arange(256) / 255.0).astype(np.float32)
    weights = np.array((0.299, 0.587, 0.114), np.float32).astype(np.float64)
    green, blue = np.meshgrid(levels, levels, indexing="ij")
    for red in levels:
        grey: np.ndarray = np.full_like(green, red) * np.float32(weights[0])
        for channel, weight in ((green, weights[1]), (blue, weights[2])):
            product = channel.astype(np.float64) * weight
            total = product + grey
            rounded_product = total - product
            error = (product - (total - rounded_product)) + (grey - rounded_product)  # exact (Knuth)
            grey = total.astype(np.float32)
            next_below = np.nextafter(grey, np.float32(-1)).astype(np.float64)
            next_above = np.nextafter(grey, np.float32(2)).astype(np.float64)
            is_halfway = (total == (next_below + grey) / 2) | (total == (next_above + grey) / 2)
            assert not (is_halfway & (error != 0)).any()
        assert (grey == grey_of(np.stack((np.full_like(green, red), green, blue), axis=-1))).all()
