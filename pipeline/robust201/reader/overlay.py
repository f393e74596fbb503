"""Overlay of several dataset folders: each evaluation is read from the first folder that has it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from robust201.core.errors import ConfigError, ResultsError
from robust201.core.records import EvaluationProtocol, canonical_json
from robust201.reader.file_cache import RowCache
from robust201.reader.result_files import (
    ResultFiles,
    list_values_per_strength,
    paper_key,
    sort_by_task_order,
    spellings,
)
from robust201.reader.value_checks import format_id
from robust201.spaces import CellSpace


class OverlaidFiles(ResultFiles):
    """The files of several folders, which are read like the files of one folder.

    The strengths of a key are those of all folders that have it, ascending. `sweep` is None, because each folder
    has its own sweep.json.

    Attributes:
        layers: the files of each folder, in order of precedence.
    """

    def __init__(self, layers: Sequence[ResultFiles]) -> None:
        first_layer = layers[0]
        self.layers = self._all_layers = tuple(layers)  # `restrict_to_weights` changes only `layers`
        self.path, self.parquet, self.sweep, self.missing = first_layer.path, first_layer.parquet, None, {}
        self.space_name, self.space = first_layer.space_name, first_layer.space
        self._cache = RowCache()
        self._custom_parameters = {
            key: parameters for layer in reversed(layers) for key, parameters in layer._custom_parameters.items()
        }
        ids = dict(first_layer.meta["ids"])
        for layer in layers[1:]:
            layer_ids = layer.meta["ids"]
            # In a space of cells, `ids` contains all cells. In other spaces, it contains evaluated architectures only.
            if layer.space_name != first_layer.space_name or (first_layer.space is not None and layer_ids != ids):
                raise _incompatible_layer_error(
                    layer, f"the architectures of {first_layer.path}, got architectures of another space"
                )
            ids |= layer_ids
        epsilons: dict[str, list[float]] = {}
        for layer in layers:
            for key, strengths in layer.meta["epsilons"].items():
                merged_key = next((spelling for spelling in spellings(key) if spelling in epsilons), key)
                epsilons[merged_key] = sorted({*epsilons.get(merged_key, ()), *strengths})
        self.meta = {"ids": ids, "epsilons": epsilons}
        for dataset in self.datasets:
            class_counts = [
                (layer, n_classes) for layer in layers if (n_classes := layer.count_classes(dataset)) is not None
            ]
            for layer, n_classes in class_counts[1:]:
                if n_classes != class_counts[0][1]:
                    expected = (
                        f"{class_counts[0][1]} classes of {dataset}, as in {class_counts[0][0].path}, got {n_classes}"
                    )
                    raise _incompatible_layer_error(layer, expected)

    @property
    def weight_names(self) -> list[str]:
        return _union(layer.weight_names for layer in self._all_layers)

    def restrict_to_weights(self, weights: str | None) -> Self:
        """Return files that read only the results of the weights with this name.

        Folders whose weights have no names are included. Folders that have only weights with other names are left out.
        """
        restricted_files = super().restrict_to_weights(weights)
        if restricted_files is not self:
            layers_and_names = [(layer, layer.weight_names) for layer in self._all_layers]
            restricted_files.layers = tuple(
                layer.restrict_to_weights(weights) if names else layer
                for layer, names in layers_and_names
                if not names or weights in names
            )
        return restricted_files

    @property
    def datasets(self) -> list[str]:
        return _union(layer.datasets for layer in self.layers)

    @property
    def keys(self) -> list[str]:
        keys_by_paper_key: dict[str, str] = {}
        for key in (key for layer in self.layers for key in layer.keys):
            keys_by_paper_key.setdefault(paper_key(key), key)
        return sort_by_task_order(keys_by_paper_key.values())

    @property
    def measurements(self) -> list[str]:
        return _union(layer.measurements for layer in self.layers)

    def measurements_of(self, dataset: str, key: str) -> list[str]:
        return _union(layer.measurements_of(dataset, key) for layer in self.layers)

    def find_planned_strengths(self, dataset: str) -> Mapping[str, Sequence[float]] | None:
        plans_of_layers = [
            strengths_by_key
            for layer in self.layers
            if (strengths_by_key := layer.find_planned_strengths(dataset)) is not None
        ]
        return (
            {key: self.strengths(dataset, key) for strengths_by_key in plans_of_layers for key in strengths_by_key}
            if plans_of_layers
            else None
        )

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        matching_layers = [layer for layer in self.layers if layer.has_key(dataset, key)]
        if not matching_layers:
            matching_layers = [next((layer for layer in self.layers if layer.mentions_key(key)), self.layers[0])]
        return tuple(sorted({strength for layer in matching_layers for strength in layer.strengths(dataset, key)}))

    def find(self, dataset: str, key: str, measurement: str) -> Path | None:
        return next(
            (layer.find(dataset, key, measurement) for layer in self._layers_with(dataset, key, measurement)), None
        )

    def find_json(self, dataset: str, key: str, measurement: str) -> Path | None:
        paths = (layer.find_json(dataset, key, measurement) for layer in self.layers)
        return next((path for path in paths if path is not None), None)

    @property
    def cost_space(self) -> CellSpace | None:
        return self.layers[0].cost_space

    def find_sole_file(self, dataset: str, key: str, measurement: str) -> Path | None:
        matching_layers = self._layers_with(dataset, key, measurement)
        return matching_layers[0].find(dataset, key, measurement) if len(matching_layers) == 1 else None

    def keys_of_parquet(self) -> dict[str, list[str]]:
        keys_of_layers = [layer.keys_of_parquet() for layer in self.layers]
        return {
            dataset: _union(keys_by_dataset.get(dataset, ()) for keys_by_dataset in keys_of_layers)
            for dataset in _union(keys_of_layers)
        }

    def check_protocols(self, dataset: str, key: str) -> None:
        """Check that all folders computed a measure under the same protocol, if sweep.json contains protocols.

        A measure's numbers from different images or parameters are not comparable, and must not be combined.

        Raises:
            ConfigError: protocols differ.
        """
        if self.kind_of(key) != "measure":
            return
        layer_protocols = [
            (layer, protocol)
            for layer in self.layers
            if layer.has_key(dataset, key)
            for protocol in layer.protocols_of(dataset, key)
        ]
        for layer, protocol in layer_protocols[1:]:
            first_layer, first_protocol = layer_protocols[0]
            if canonical_json(protocol) != canonical_json(first_protocol):
                from robust201.planning.identity import describe_difference

                digests = (EvaluationProtocol.of(payload).digest[:8] for payload in (first_protocol, protocol))
                raise ConfigError(
                    f"Reading {key} of {dataset} failed for {first_layer.path} and {layer.path}: their protocols "
                    f"{' and '.join(digests)} differ ({', '.join(describe_difference(first_protocol, protocol))}). "
                    "Read the folders one by one, or show both in one figure: `robust201 plot measure-correlations "
                    "FIRST --measures SECOND --out FILE`."
                )

    def value(self, dataset: str, key: str, measurement: str, identifier: str) -> Any:
        """Read an architecture's value, merged from all folders that have some of its strengths."""
        self.check_protocols(dataset, key)
        values_of_layers = []
        for layer in self._layers_with(dataset, key, measurement):
            with suppress(KeyError):
                value = layer.value(dataset, key, measurement, identifier)
                values_of_layers.append((layer, {identifier: value}))
        return self._merge(dataset, key, measurement, values_of_layers)[identifier]

    def read(self, dataset: str, key: str, measurement: str) -> dict[str, Any]:
        self.check_protocols(dataset, key)
        layers = self._layers_with(dataset, key, measurement)
        if not layers:
            raise self.missing_file_error(dataset, key, measurement)
        values_of_layers = [
            (
                layer,
                layer.read_accuracies(dataset, key)
                if measurement == "accuracy"
                else layer.read(dataset, key, measurement),
            )
            for layer in layers
        ]
        return self._merge(dataset, key, measurement, values_of_layers)

    def read_accuracies(self, dataset: str, key: str) -> Mapping[str, Any]:
        return self.read(dataset, key, "accuracy")

    def iter_stacks(
        self, dataset: str, key: str, measurement: str
    ) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]] | None]]:
        """Yield a measurement's values like `ResultFiles.iter_stacks`.

        If several folders have the measurement, they are read completely.
        """
        matching_layers = self._layers_with(dataset, key, measurement)
        if len(matching_layers) == 1 and matching_layers[0].strengths(dataset, key) == self.strengths(dataset, key):
            return matching_layers[0].iter_stacks(dataset, key, measurement)
        return iter([(self.read(dataset, key, measurement), None)])

    def missing_file_error(self, dataset: str, key: str, measurement: str) -> ResultsError:
        layer = next((layer for layer in self.layers if dataset in layer.datasets), self.layers[0])
        return layer.missing_file_error(dataset, key, measurement)

    def count_architectures(self, datasets: Iterable[str], keys: Sequence[str]) -> int:
        dataset_names = list(datasets)
        return max(layer.count_architectures(dataset_names, keys) for layer in self.layers)

    def _layers_with(self, dataset: str, key: str, measurement: str) -> list[ResultFiles]:
        return [layer for layer in self.layers if layer.find(dataset, key, measurement) is not None]

    def _merge(
        self,
        dataset: str,
        key: str,
        measurement: str,
        values_of_layers: Sequence[tuple[ResultFiles, Mapping[str, Any]]],
    ) -> dict[str, Any]:
        """Merge the values of several layers; each evaluation's value is from the first layer that has one."""
        values_by_id_and_strength: dict[str, dict[float, Any]] = {}
        for layer, values_by_id in values_of_layers:
            strengths_of_layer, is_single = layer.strengths(dataset, key), layer.has_single_value(dataset, key)
            for identifier, architecture_value in values_by_id.items():
                label = f"{format_id(identifier)} {dataset} {key} {measurement} of {layer.path}"
                values = (
                    [architecture_value]
                    if is_single
                    else list_values_per_strength(architecture_value, strengths_of_layer, label)
                )
                values_by_strength = values_by_id_and_strength.setdefault(identifier, {})
                for strength, value in zip(strengths_of_layer, values, strict=True):
                    if value is not None:
                        values_by_strength.setdefault(strength, value)
        is_single, strengths = self.has_single_value(dataset, key), self.strengths(dataset, key)
        return {
            identifier: values_by_strength.get(strengths[0])
            if is_single
            else [values_by_strength.get(strength) for strength in strengths]
            for identifier, values_by_strength in values_by_id_and_strength.items()
        }


def layers_of(files: ResultFiles) -> Sequence[ResultFiles]:
    """Return all overlaid folders, or the single folder in a tuple."""
    return files.layers if isinstance(files, OverlaidFiles) else (files,)


def _union(name_lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for name_list in name_lists for name in name_list))


def _incompatible_layer_error(layer: ResultFiles, expected: str) -> ConfigError:
    return ConfigError(
        f"Overlaying datasets failed for {layer.path}: expected {expected}. Use folders of the same space and "
        "the same datasets."
    )
