"""Arguments of the reader: accepted types, and one-line errors for other types."""

from collections.abc import Callable
from pathlib import Path
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


@pytest.mark.parametrize("strength", ["1", True, [1.0], float("nan"), 2.0])
def test_accuracy_rejects_invalid_strengths(dataset: Dataset, strength: Any) -> None:
    with pytest.raises(ConfigError, match="expected one of the strengths 1, 8, got"):
        dataset.accuracy(0, "cifar10", "pgd", strength)


@pytest.mark.parametrize("strength", [8, 8.0, np.int64(8), np.float32(8), np.uint8(8)])
def test_accuracy_accepts_numpy_strengths(dataset: Dataset, strength: Any) -> None:
    assert dataset.accuracy(0, "cifar10", "pgd", strength) == 0.4


@pytest.mark.parametrize("architecture", [0.0, None, True, [0], "00", -1, 15625])
def test_accuracy_rejects_unknown_architectures(dataset: Dataset, architecture: Any) -> None:
    look_ups: tuple[Callable[[], Any], ...] = (
        lambda: dataset.accuracy(architecture, "cifar10", "pgd", 1.0),
        lambda: dataset.value(architecture, "cifar10", "pgd"),
        lambda: dataset.get_uid(architecture),
        lambda: dataset.id_to_string(architecture),
        lambda: dataset.string_to_id(architecture),
    )
    for look_up in look_ups:
        with pytest.raises(ArchitectureError, match="expected"):
            look_up()


@pytest.mark.parametrize("architecture", [np.int64(2), np.uint8(2), np.array(2), "2", np.str_("2")])
def test_accuracy_accepts_numpy_architectures(dataset: Dataset, architecture: Any) -> None:
    assert dataset.accuracy(architecture, "cifar10", "pgd", 1.0) == 0.6
    assert dataset.get_uid(architecture) == "2"


@pytest.mark.parametrize("name", [5, b"pgd", [5], [["pgd"]]])
def test_methods_reject_names_that_are_not_text(dataset: Dataset, name: Any) -> None:
    calls: tuple[Callable[[], Any], ...] = (
        *(
            lambda argument_name=argument_name: dataset.query(**{argument_name: name})
            for argument_name in ("data", "key", "measure")
        ),
        *(
            lambda argument_name=argument_name: dataset.to_frame(**{argument_name: name})
            for argument_name in ("data", "key", "measure")
        ),
        lambda: dataset.accuracy(0, name, "pgd", 1.0),
        lambda: dataset.accuracy(0, "cifar10", name, 1.0),
        lambda: dataset.value(0, "cifar10", "pgd", name),
        lambda: dataset.strengths("cifar10", name),
    )
    for call in calls:
        with pytest.raises(ConfigError, match="expected"):
            call()


@pytest.mark.parametrize(
    "wrap",
    [
        str,
        lambda name: [name],
        lambda name: (name,),
        lambda name: {name},
        lambda name: iter([name]),
        lambda name: np.array([name]),
    ],
)
def test_query_accepts_name_or_iterable_of_names(dataset: Dataset, wrap: Callable[[str], Any]) -> None:
    expected = {"cifar10": {"pgd": {"accuracy": {"0": [0.5, 0.4], "2": [0.6, 0.5]}}}}
    assert dataset.query(wrap("cifar10"), wrap("pgd"), wrap("accuracy")) == expected
    assert set(dataset.to_frame(wrap("cifar10"), wrap("pgd"))["key"]) == {"pgd"}


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "../cifar10", ""])
def test_methods_reject_unknown_and_unsafe_names(dataset: Dataset, name: str) -> None:
    for call in (
        lambda: dataset.query(name, "pgd", "accuracy"),
        lambda: dataset.query("cifar10", name, "accuracy"),
        lambda: dataset.query("cifar10", "pgd", name),
        lambda: dataset.accuracy(0, name, "pgd", 1.0),
    ):
        with pytest.raises(InputError, match="expected"):
            call()


@pytest.mark.parametrize("path", ["x" * 300, "a\0b", "/dev/null", "/nowhere/at/all", 5])
def test_reader_rejects_invalid_folders(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="failed for"):
        Dataset(path)
