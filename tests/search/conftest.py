"""Fixtures for tests of searches: the planted dataset, as benchmarks and as files.

The planted dataset is fabricated so that the best cell is known (see `tests.support.planted`).
"""

from pathlib import Path

import numpy as np
import pytest

from robust201.networks.spaces import SPACES, CellSpace
from robust201.search.cells import SearchCells
from robust201.search.runs import Benchmark
from tests.support.planted import planted_accuracy, write_planted


@pytest.fixture(scope="session")
def space() -> CellSpace:
    nasbench201 = SPACES["nasbench201"]
    assert isinstance(nasbench201, CellSpace)
    return nasbench201


@pytest.fixture(scope="session")
def cells(space: CellSpace) -> SearchCells:
    return SearchCells(space, np.ones(15_625, dtype=bool))


@pytest.fixture(scope="session")
def planted_clean_benchmark(cells: SearchCells) -> Benchmark:
    """Return a benchmark of the clean accuracy."""
    return Benchmark(cells, planted_accuracy("clean", 0.0))


@pytest.fixture(scope="session")
def planted_optimum_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with planted results on two datasets in the published layout."""
    return write_planted(tmp_path_factory.mktemp("planted"), datasets=("cifar10", "cifar100"))
