"""Fixtures for tests of searches: the planted dataset, as benchmarks and as files.

The planted dataset is fabricated so that the best cell is known (see `tests.support.planted`).
"""

from pathlib import Path

import numpy as np
import pytest

from robust201.search.benchmark import Benchmark, WeightedSum
from robust201.search.cells import SearchCells
from robust201.spaces import SPACES
from robust201.spaces.cell_space import CellSpace
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
    return Benchmark(cells, [WeightedSum("clean", planted_accuracy("clean", 0.0)[:, None], np.ones(1))])


@pytest.fixture(scope="session")
def planted_pgd_benchmark(cells: SearchCells) -> Benchmark:
    """Return a benchmark of the mean accuracy over seven strengths of PGD."""
    columns = np.stack([planted_accuracy("pgd", strength) for strength in (0.1, 0.5, 1, 2, 3, 4, 8)], axis=1)
    return Benchmark(cells, [WeightedSum("pgd", columns, np.full(7, 1 / 7))])


@pytest.fixture(scope="session")
def planted_front_benchmark(cells: SearchCells) -> Benchmark:
    """Return a benchmark of two objectives, clean accuracy and accuracy under PGD."""
    objectives = [
        WeightedSum(key, planted_accuracy(key, strength)[:, None], np.ones(1))
        for key, strength in (("clean", 0.0), ("pgd", 4.0))
    ]
    return Benchmark(cells, objectives)


@pytest.fixture(scope="session")
def planted_optimum_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with planted results on two datasets in the published layout."""
    return write_planted(tmp_path_factory.mktemp("planted"), datasets=("cifar10", "cifar100"))
