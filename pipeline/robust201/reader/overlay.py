"""Overlay of several folders: each evaluation is read from the first folder that has it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray

from robust201.core.errors import ConfigError, ResultsError
from robust201.core.records import EvaluationProtocol, canonical_json
from robust201.reader.file_cache import RowCache
from robust201.reader.result_files import ResultFiles, in_task_order, paper_key, spellings, values_by_strength
from robust201.reader.value_checks import show_id
from robust201.spaces.cell_space import CellSpace

NO_LAYER = -1
"""Number that stands for no layer, because no folder has the evaluation."""


class OverlaidRows(NamedTuple):
    """A measurement's values by id, and the number of the layer that each value was read from."""

    rows: dict[str, Any]
    layers: dict[str, tuple[int, ...]]


class OverlaidFiles(ResultFiles):
    """The files of several folders, read as those of one folder.

    A key has the strengths of all folders together (see `strengths`). Each file is that of the first folder that has
    it; `sweep` is None, since each folder has its own.

    Attributes:
        layers: the folders, in order of precedence.
    """

    def __init__(self, layers: Sequence[ResultFiles]) -> None:
        first = layers[0]
        self.layers = self._opened = tuple(layers)
        self.path, self.parquet, self.sweep, self.missing = first.path, first.parquet, None, {}
        self.space_name, self.space = first.space_name, first.space
        self._cache = RowCache()
        self._user_tasks = {key: task for layer in reversed(layers) for key, task in layer._user_tasks.items()}
        ids = dict(first.meta["ids"])
        for layer in layers[1:]:
            layer_ids = layer.meta["ids"]
            # In a space of cells all cells are listed; in other spaces only the evaluated architectures are.
            if layer.space_name != first.space_name or (first.space is not None and layer_ids != ids):
                raise _cannot_join(layer, f"the architectures of {first.path}, got those of another space")
            ids |= layer_ids
        epsilons: dict[str, list[float]] = {}
        for layer in layers:
            for key, strengths in layer.meta["epsilons"].items():
                spelled = next((spelling for spelling in spellings(key) if spelling in epsilons), key)
                epsilons[spelled] = sorted({*epsilons.get(spelled, ()), *strengths})
        self.meta = {"ids": ids, "epsilons": epsilons}
        for dataset in self.datasets:
            counts = [(layer, count) for layer in layers if (count := layer.count_classes(dataset)) is not None]
            for layer, count in counts[1:]:
                if count != counts[0][1]:
                    expected = f"{counts[0][1]} classes of {dataset}, as {counts[0][0].path} has, got {count}"
                    raise _cannot_join(layer, expected)

    @property
    def weight_names(self) -> list[str]:
        return _union(layer.weight_names for layer in self._opened)

    def choosing(self, weights: str | None) -> Self:
        """Return the files restricted to a name of weights.

        Folders without names of weights are kept; those that have only other names are left out.
        """
        chosen = super().choosing(weights)
        if chosen is not self:
            layers_and_names = [(layer, layer.weight_names) for layer in self._opened]
            chosen.layers = tuple(
                layer.choosing(weights) if names else layer
                for layer, names in layers_and_names
                if not names or weights in names
            )
        return chosen

    @property
    def datasets(self) -> list[str]:
        return _union(layer.datasets for layer in self.layers)

    @property
    def keys(self) -> list[str]:
        by_name: dict[str, str] = {}
        for key in (key for layer in self.layers for key in layer.keys):
            by_name.setdefault(paper_key(key), key)
        return in_task_order(by_name.values())

    @property
    def measures(self) -> list[str]:
        return _union(layer.measures for layer in self.layers)

    def measurements_of(self, dataset: str, key: str) -> list[str]:
        return _union(layer.measurements_of(dataset, key) for layer in self.layers)

    def planned(self, dataset: str) -> Mapping[str, Sequence[float]] | None:
        plans = [by_key for layer in self.layers if (by_key := layer.planned(dataset)) is not None]
        return {key: self.strengths(dataset, key) for by_key in plans for key in by_key} if plans else None

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        matching_layers = [layer for layer in self.layers if layer.has_key(dataset, key)]
        if not matching_layers:
            matching_layers = [next((layer for layer in self.layers if layer.names_key(key)), self.layers[0])]
        return tuple(sorted({strength for layer in matching_layers for strength in layer.strengths(dataset, key)}))

    def find(self, dataset: str, key: str, measure: str) -> Path | None:
        return next((layer.find(dataset, key, measure) for _, layer in self._layers_with(dataset, key, measure)), None)

    def find_json(self, dataset: str, key: str, measure: str) -> Path | None:
        files = (layer.find_json(dataset, key, measure) for layer in self.layers)
        return next((file for file in files if file is not None), None)

    @property
    def cost_space(self) -> CellSpace | None:
        return self.layers[0].cost_space

    def sole_file(self, dataset: str, key: str, measure: str) -> Path | None:
        matching_layers = self._layers_with(dataset, key, measure)
        return matching_layers[0][1].find(dataset, key, measure) if len(matching_layers) == 1 else None

    def keys_of_parquet(self) -> dict[str, list[str]]:
        by_layer = [layer.keys_of_parquet() for layer in self.layers]
        return {dataset: _union(keys.get(dataset, ()) for keys in by_layer) for dataset in _union(by_layer)}

    def check_protocols(self, dataset: str, key: str) -> None:
        """Check that all folders computed a measure under the same protocol, if sweep.json records it.

        With other images or parameters, a measure's numbers are on another scale and cannot be combined.

        Raises:
            ConfigError: protocols differ.
        """
        if self.kind_of(key) != "measure":
            return
        known = [
            (layer, protocol)
            for layer in self.layers
            if layer.has_key(dataset, key)
            for protocol in layer.protocols_of(dataset, key)
        ]
        for layer, protocol in known[1:]:
            first, expected = known[0]
            if canonical_json(protocol) != canonical_json(expected):
                from robust201.planning.identity import describe_difference

                names = (EvaluationProtocol.of(payload).digest[:8] for payload in (expected, protocol))
                raise ConfigError(
                    f"Reading {key} of {dataset} failed for {first.path} and {layer.path}: their protocols "
                    f"{' and '.join(names)} differ ({', '.join(describe_difference(expected, protocol))}). Read the "
                    "folders one by one, or show both in one figure: `robust201 plot measure-correlations FIRST "
                    "--measures SECOND --out FILE`."
                )

    def value(self, dataset: str, key: str, measure: str, identifier: str) -> Any:
        """Read an architecture's value, merged from all folders that have a part of it."""
        self.check_protocols(dataset, key)
        parts: list[tuple[int, Mapping[str, Any]]] = []
        for number, layer in self._layers_with(dataset, key, measure):
            try:
                parts.append((number, {identifier: layer.value(dataset, key, measure, identifier)}))
            except KeyError:
                continue
        return self._merge(dataset, key, measure, parts).rows[identifier]

    def read(self, dataset: str, key: str, measure: str) -> dict[str, Any]:
        self.check_protocols(dataset, key)
        return self.read_layers(dataset, key, measure).rows

    def read_accuracies(self, dataset: str, key: str) -> Mapping[str, Any]:
        return self.read(dataset, key, "accuracy")

    def iter_stacks(
        self, dataset: str, key: str, measure: str
    ) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]] | None]]:
        """Yield a measurement's values as `ResultFiles.iter_stacks` does; several folders are read as a whole."""
        matching_layers = self._layers_with(dataset, key, measure)
        if len(matching_layers) == 1 and matching_layers[0][1].strengths(dataset, key) == self.strengths(dataset, key):
            return matching_layers[0][1].iter_stacks(dataset, key, measure)
        return iter([(self.read(dataset, key, measure), None)])

    def read_layers(self, dataset: str, key: str, measure: str) -> OverlaidRows:
        """Read a measurement's values and the folder that each value is from."""
        matching_layers = self._layers_with(dataset, key, measure)
        if not matching_layers:
            raise self.absence(dataset, key, measure)
        parts: list[tuple[int, Mapping[str, Any]]] = []
        for number, layer in matching_layers:
            is_accuracy = measure == "accuracy"
            parts.append(
                (number, layer.read_accuracies(dataset, key) if is_accuracy else layer.read(dataset, key, measure))
            )
        return self._merge(dataset, key, measure, parts)

    def absence(self, dataset: str, key: str, measure: str) -> ResultsError:
        layer = next((layer for layer in self.layers if dataset in layer.datasets), self.layers[0])
        return layer.absence(dataset, key, measure)

    def count_architectures(self, datasets: Iterable[str], keys: Sequence[str]) -> int:
        chosen = list(datasets)
        return max(layer.count_architectures(chosen, keys) for layer in self.layers)

    def _layers_with(self, dataset: str, key: str, measure: str) -> list[tuple[int, ResultFiles]]:
        return [pair for pair in enumerate(self.layers) if pair[1].find(dataset, key, measure) is not None]

    def _merge(
        self, dataset: str, key: str, measure: str, parts: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> OverlaidRows:
        """Merge the rows of several layers evaluation by evaluation."""
        by_id: dict[str, dict[float, tuple[int, Any]]] = {}
        for number, rows in parts:
            layer = self.layers[number]
            strengths_of_layer, single = layer.strengths(dataset, key), layer.is_single(dataset, key)
            for identifier, row in rows.items():
                what = f"{show_id(identifier)} {dataset} {key} {measure} of {layer.path}"
                values = [row] if single else values_by_strength(row, strengths_of_layer, what)
                by_strength = by_id.setdefault(identifier, {})
                for strength, value in zip(strengths_of_layer, values, strict=True):
                    if value is not None:
                        by_strength.setdefault(strength, (number, value))
        single, strengths = self.is_single(dataset, key), self.strengths(dataset, key)
        merged = OverlaidRows({}, {})
        for identifier, by_strength in by_id.items():
            pairs = [by_strength.get(strength, (NO_LAYER, None)) for strength in strengths]
            merged.layers[identifier] = tuple(number for number, _ in pairs)
            values = [value for _, value in pairs]
            merged.rows[identifier] = values[0] if single else values
        return merged


def layers_of(files: ResultFiles) -> Sequence[ResultFiles]:
    """Return the overlaid folders, or a single folder as the only item."""
    return files.layers if isinstance(files, OverlaidFiles) else (files,)


def _union(lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))


def _cannot_join(layer: ResultFiles, expected: str) -> ConfigError:
    return ConfigError(
        f"Overlaying datasets failed for {layer.path}: expected {expected}. Name folders of one space and "
        "of the same datasets."
    )
