"""Views of a folder's files that are restricted to some networks and keys.

If architectures have several sets of weights, each set is a network of its own, named ``ARCHITECTURE@WEIGHTS``, such as
``resnet18@plain-e30-s0``. Otherwise a network has the name of its architecture.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import ArchitectureId
from robust201.reader.file_cache import RowCache
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import ResultFiles, paper_key
from robust201.reader.value_checks import parse_architecture_id
from robust201.spaces import CellSpace
from robust201.statistics.outcomes import Packed
from robust201.tasks import expand_keys

WEIGHTS_SEPARATOR = "@"


def architecture_of_network(network: ArchitectureId) -> ArchitectureId:
    """Return a network's architecture, which is the part of its name before the @, if it contains one."""
    return network if isinstance(network, int) else parse_architecture_id(network.partition(WEIGHTS_SEPARATOR)[0])


def network_name(architecture: str, weights: str | None) -> str:
    """Return a network's name; `weights` is None if architectures have a single set of weights."""
    return architecture if weights is None else f"{architecture}{WEIGHTS_SEPARATOR}{weights}"


class NetworkFiles(ResultFiles):
    """The files of one folder, restricted to some networks and keys.

    Attributes:
        network_weights: names of the sets of weights, each of which makes a separate network of an architecture.
            ``(None,)`` if architectures have a single set of weights.
    """

    def __init__(self, files: ResultFiles, networks: Collection[str] | None, keys: Collection[str] | None) -> None:
        """Restrict the files of a folder.

        Args:
            files: files of one folder.
            networks: names of networks, or of architectures, which select all their networks; None for all networks.
            keys: keys in the paper's style; None for all keys.
        """
        self.__dict__.update(files.__dict__)
        self._cache = RowCache()
        self._files, self._networks, self._keys = files, networks, keys
        self.network_weights = _find_network_weights(files)
        if self.network_weights != (None,):
            # A network named 21@s0, for example, is not a cell of the space, so `meta` only lists evaluated networks.
            self.space = None
            self.meta = files.meta | {"ids": {name: {} for name in _list_evaluated_networks(self)}}
        elif networks is not None and self.space is None:
            self.meta = files.meta | {
                "ids": {
                    identifier: fields for identifier, fields in files.meta["ids"].items() if identifier in networks
                }
            }

    @property
    def keys(self) -> list[str]:
        return [key for key in self._files.keys if self._keys is None or paper_key(key) in self._keys]

    def restrict_to_weights(self, weights: str | None) -> Self:
        """Return these files if `weights` is None; otherwise, the selected architectures with the named weights."""
        if weights is None:
            return self
        networks = self._networks and {name.removesuffix(network_name("", weights)) for name in self._networks}
        return type(self)(self._files.restrict_to_weights(weights), networks, self._keys)

    @property
    def cost_space(self) -> CellSpace | None:
        return self._files.cost_space

    def find_sole_file(self, dataset: str, key: str, measurement: str) -> Path | None:
        """Return None, because a file may also contain networks that were not selected."""
        return None

    def read(self, dataset: str, key: str, measurement: str) -> dict[str, Any]:
        values_by_name: dict[str, Any] = {}
        for weights in self._find_weights_with_results(dataset, key, measurement):
            values_by_id = self._files.restrict_to_weights(weights).read(dataset, key, measurement)
            values_by_name |= {
                name: value
                for identifier, value in values_by_id.items()
                if (name := self._select_network_name(identifier, weights)) is not None
            }
        return values_by_name

    def read_accuracies(self, dataset: str, key: str) -> Mapping[str, Any]:
        return self.read(dataset, key, "accuracy")

    def value(self, dataset: str, key: str, measurement: str, identifier: str) -> Any:
        for weights in self._find_weights_with_results(dataset, key, measurement):
            architecture = identifier.removesuffix(network_name("", weights))
            if self._select_network_name(architecture, weights) == identifier:
                return self._files.restrict_to_weights(weights).value(dataset, key, measurement, architecture)
        raise KeyError(identifier)

    def iter_values(self, dataset: str, key: str, measurement: str) -> Iterator[tuple[str, Any]]:
        yield from self.read(dataset, key, measurement).items()

    def iter_stacks(
        self, dataset: str, key: str, measurement: str
    ) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]] | None]]:
        return (({name: value}, None) for name, value in self.iter_values(dataset, key, measurement))

    def read_outcomes(self, file: Path, strength: float) -> tuple[list[str], Packed]:
        names: list[str] = []
        packed_of_weights: list[Packed] = []
        for weights in self._list_weights_in(file):
            ids, packed = self._files.restrict_to_weights(weights).read_outcomes(file, strength)
            names_and_rows = [
                (self._select_network_name(identifier, weights), row) for row, identifier in enumerate(ids)
            ]
            names += [name for name, _ in names_and_rows if name is not None]
            packed_of_weights.append(packed[[row for name, row in names_and_rows if name is not None]])
        return names, np.concatenate(packed_of_weights)

    def count_architectures(self, datasets: Any, keys: Sequence[str]) -> int:
        return len(_list_evaluated_networks(self))

    def _select_network_name(self, architecture: str, weights: str | None) -> str | None:
        """Return a network's name, or None if it was not selected."""
        name = network_name(architecture, weights)
        is_selected = self._networks is None or name in self._networks or architecture in self._networks
        return name if is_selected else None

    def _find_weights_with_results(self, dataset: str, key: str, measurement: str) -> list[str | None]:
        file = self._files.find(dataset, key, measurement)
        if file is None:
            raise self.missing_file_error(dataset, key, measurement)
        return self._list_weights_in(file)

    def _list_weights_in(self, file: Path) -> list[str | None]:
        """Return the names of the weights in a file."""
        if self.network_weights == (None,):
            return [None]
        from robust201.reader.parquet_results import read_weights_names

        names_in_file = read_weights_names(file) if file.suffix == ".parquet" else []
        return [weights for weights in self.network_weights if weights in names_in_file]


def narrow_files(
    files: ResultFiles, networks: Collection[str] | None = None, keys: Collection[str] | None = None
) -> ResultFiles:
    """Return files that are restricted to some networks and keys; each set of an architecture's weights is a network.

    Args:
        files: files of one or several folders.
        networks: names of networks, or of architectures, which select all their networks; None for all networks.
        keys: keys in either style; the key ``clean`` is always kept. None for all keys.

    Raises:
        ConfigError: a network or key does not exist.
    """
    selected_keys = None if keys is None else {"clean", *_find_keys(files, keys)}
    layers = files.layers if isinstance(files, OverlaidFiles) else (files,)
    if selected_keys is None and networks is None and all(_find_network_weights(layer) == (None,) for layer in layers):
        return files
    network_files = [NetworkFiles(layer, networks, selected_keys) for layer in layers]
    narrowed_files = OverlaidFiles(network_files) if isinstance(files, OverlaidFiles) else network_files[0]
    if networks is not None:
        _check_networks(files, narrowed_files, networks)
    return narrowed_files


def _find_keys(files: ResultFiles, keys: Collection[str]) -> list[str]:
    known_keys = [paper_key(key) for key in files.keys]
    requested_keys = [paper_key(key) for key in expand_keys(list(keys), known_keys)]
    for key in requested_keys:
        if key not in known_keys:
            raise ConfigError(
                f"Reading {files.path} failed for {key!r}: the dataset has no results for this key."
                f"{did_you_mean(key, known_keys)}"
            )
    return requested_keys


def _check_networks(files: ResultFiles, narrowed_files: ResultFiles, networks: Collection[str]) -> None:
    """Raise ConfigError if a name is not the name of an evaluated network or architecture."""
    evaluated_networks = _list_evaluated_networks(narrowed_files)
    architectures = {name.partition(WEIGHTS_SEPARATOR)[0] for name in evaluated_networks}
    for name in networks:
        if name not in evaluated_networks and name not in architectures:
            known_networks = _list_evaluated_networks(narrow_files(files))
            examples = ", ".join(sorted(known_networks)[:5])
            raise ConfigError(
                f"Reading {files.path} failed for {name!r}: expected a network that was evaluated, such as "
                f"{examples}.{did_you_mean(name, known_networks)}"
            )


def _list_evaluated_networks(files: ResultFiles) -> list[str]:
    """Return the names of the networks that have an accuracy."""
    names: dict[str, None] = {}
    for dataset in files.datasets:
        for key in files.keys:
            if files.find(dataset, key, "accuracy") is not None:
                names |= dict.fromkeys(files.read_accuracies(dataset, key))
    return list(names)


def _find_network_weights(files: ResultFiles) -> tuple[str | None, ...]:
    """Return the names of the sets of weights with accuracies.

    ``(None,)`` is returned if there is only one name, or if a name has already been chosen.
    """
    if isinstance(files, NetworkFiles) or files.weights is not None or len(files.weight_names) < 2:
        return (None,)
    from robust201.reader.parquet_results import read_weights_names

    dataset_keys = (
        (dataset, key) for dataset in files.datasets for key in files.keys if files.kind_of(key) != "measure"
    )
    files_of_accuracies = {files.find(dataset, key, "accuracy") for dataset, key in dataset_keys}
    parquet_paths = [path for path in files_of_accuracies if path is not None and path.suffix == ".parquet"]
    names_in_files = {name for path in parquet_paths for name in read_weights_names(path)}
    network_weights = tuple(name for name in files.weight_names if name in names_in_files)
    return network_weights if len(network_weights) > 1 else (None,)
