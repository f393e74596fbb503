"""Arguments of the reader: accepted types, and one-line errors for unknown names."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from robust201.core.errors import ArchitectureError, ConfigError, InputError
from robust201.dataset.reader import Dataset
from tests.support.small_results import write_results


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    values = {"clean": {"0": 0.9, "2": 0.8}, "pgd": {"0": [0.5, 0.4], "2": [0.6, 0.5]}}
    return Dataset(write_results(tmp_path_factory.mktemp("dataset"), values))


@pytest.mark.parametrize("strength", ["1", True, float("nan"), 2.0])
def test_accuracy_rejects_invalid_strengths(dataset: Dataset, strength: Any) -> None:
    with pytest.raises(ConfigError, match="expected one of the strengths 1, 8, got"):
        dataset.accuracy(0, "cifar10", "pgd", strength)


@pytest.mark.parametrize("strength", [8, np.int64(8), np.float32(8)])
def test_accuracy_accepts_numpy_strengths(dataset: Dataset, strength: Any) -> None:
    assert dataset.accuracy(0, "cifar10", "pgd", strength) == 0.4


@pytest.mark.parametrize("architecture", [0.0, None, True, "00", -1, 15625])
def test_methods_reject_unknown_architectures(dataset: Dataset, architecture: Any) -> None:
    for look_up in (
        lambda: dataset.accuracy(architecture, "cifar10", "pgd", 1.0),
        lambda: dataset.get_uid(architecture),
        lambda: dataset.id_to_string(architecture),
    ):
        with pytest.raises(ArchitectureError, match="expected"):
            look_up()


@pytest.mark.parametrize("architecture", [np.int64(2), np.array(2), "2", np.str_("2")])
def test_accuracy_accepts_numpy_architectures(dataset: Dataset, architecture: Any) -> None:
    assert dataset.accuracy(architecture, "cifar10", "pgd", 1.0) == 0.6
    assert dataset.get_uid(architecture) == "2"


@pytest.mark.parametrize("wrap", [str, lambda name: (name,), lambda name: iter([name])])
def test_query_accepts_name_or_iterable_of_names(dataset: Dataset, wrap: Callable[[str], Any]) -> None:
    expected = {"cifar10": {"pgd": {"accuracy": {"0": [0.5, 0.4], "2": [0.6, 0.5]}}}}
    assert dataset.query(wrap("cifar10"), wrap("pgd"), wrap("accuracy")) == expected


@pytest.mark.parametrize("name", ["x" * 300, "../cifar10", ""])
def test_methods_reject_unknown_names(dataset: Dataset, name: str) -> None:
    for call in (
        lambda: dataset.query(name, "pgd", "accuracy"),
        lambda: dataset.query("cifar10", name, "accuracy"),
        lambda: dataset.query("cifar10", "pgd", name),
        lambda: dataset.accuracy(0, name, "pgd", 1.0),
    ):
        with pytest.raises(InputError, match="expected"):
            call()


@pytest.mark.parametrize("path", ["/dev/null", "/nowhere/at/all"])
def test_reader_rejects_invalid_folders(path: str) -> None:
    with pytest.raises(InputError, match="failed for"):
        Dataset(path)
