"""`RobustnessDataset`, the reader of exported and published datasets.

Scripts for the helper class that the authors published with the dataset (github.com/steffen-jung/robustness-dataset,
robustness_dataset.py) also work with this class: it has the same interface and the same nesting of results. In
addition, it accepts both spellings of a key (``pgd``, ``pgd@Linf``), looks up any architecture of the space, reads
measures and results of other spaces, and returns results as a pandas DataFrame.
"""

import copy
import itertools
import math
import numbers
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import pandas as pd

from robust201.core.errors import ArchitectureError, ConfigError, did_you_mean
from robust201.core.records import (
    CLEAN_STRENGTH,
    ArchitectureId,
    EvaluationProtocol,
    canonical_json,
    format_architecture,
)
from robust201.dataset.folder import DatasetFolder, as_folder
from robust201.dataset.layout import (
    CLEAN,
    PUBLISHED_DATASETS,
    WEIGHTS_SEPARATOR,
    format_id,
    kind_of,
    paper_key,
    parse_architecture_id,
    sort_by_task_order,
    spellings,
)
from robust201.dataset.rows_of_key import Rows
from robust201.dataset.table import is_scalar, read_table
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, TASKS, expand_keys
from robust201.tasks.columns import PUBLISHED
from robust201.tasks.constraints import Constraint

if TYPE_CHECKING:
    import altair as alt

    from robust201.dataset.derived import DerivedMetrics
    from robust201.dataset.image_outcomes import Outcomes


PAPER_ATTACKS = tuple(TASKS[key].published_key for key in PAPER_KEYS if kind_of(key) == "attack")
"""The paper's attacks, spelled as in the published files."""

MEAN_DECIMALS = 12
"""Number of decimals to which means of accuracies are rounded.

Without rounding, means of equal numbers in a different order could differ at the 16th decimal, which would hide ties.
"""

NameOrNames = str | Sequence[str]


class RobustnessDataset:
    """Results of an exported or published dataset.

    Class attributes describe the published dataset. Attributes of an instance describe its folder, and spell keys as
    the folder does. (An export lists its contents in sweep.json; the published dataset only lists its attacks, in
    meta.json.)

    In all methods, an architecture is identified by its id, as a number or text, or by its cell string. Its results are
    those of its isomorphism class. Keys may have either spelling. Arguments for datasets, keys and measurements are
    names or lists of names; by default, all are used. A strength is an epsilon (in units of 1/255 in an L∞ ball), a
    severity, or 0 for clean images. `weights` is the name of the weights whose results are read; it is only needed if
    there are several.

    Raises:
        ArchitectureError: the architecture does not exist, or was not evaluated. This error is also a KeyError.
        ConfigError: a name is not text, the key was not evaluated at the strength, `weights` is missing although there
            are several, or folders have results of a measure under different protocols.
        ResultsError: a required file is missing or damaged.

    Attributes:
        path: the folder, or the first of several folders.
        folders: the folders.
        meta: content of meta.json: ``ids`` (id → ``nb201-string``, ``isomorph``, if architectures are cells) and
            ``epsilons`` (attack → list, in units of 1/255 for the paper's attacks).
        sweep: content of sweep.json; None for a folder without this file, such as the published dataset, and for
            several folders, each of which has its own.
        missing: content of missing.json, which lists the missing strengths of a partial export as
            {dataset: {key: {id: strengths}}}.
        non_isomorph_ids: ids, as strings, of the architectures that represent their isomorphism class.
        space_name: name of the search space.
        cost_space: the search space that computes the costs of the networks; None if they are not cells.
        weights: names of the weights, if a folder has results of named weights.
        keys_clean: ``["clean"]``.
        keys_adv: keys of adversarial attacks.
        keys_cc: keys of common corruptions.
        keys_measure: keys of measures, which describe the networks themselves.
        keys_other: keys that this version does not know.
        keys_all: all keys.
        data: names of the datasets.
        measures: names of the measurements of clean images, attacks and corruptions (see `measurements`).
    """

    # These are lists, because scripts for the published helper class concatenate them: `keys_clean + keys_adv`.
    keys_clean: list[str] = ["clean"]  # noqa: RUF012
    keys_adv: list[str] = list(PAPER_ATTACKS)  # noqa: RUF012
    keys_cc: list[str] = list(CORRUPTIONS)  # noqa: RUF012
    keys_measure: list[str] = []  # noqa: RUF012
    keys_other: list[str] = []  # noqa: RUF012
    keys_all: list[str] = ["clean", *PAPER_ATTACKS, *CORRUPTIONS]  # noqa: RUF012
    data_cifar10, data_cifar100, data_imagenet16 = PUBLISHED_DATASETS
    data: list[str] = list(PUBLISHED_DATASETS)  # noqa: RUF012
    measures: list[str] = list(PUBLISHED)  # noqa: RUF012

    def __init__(self, path: str | Path = "robustness-data", *others: str | Path, weights: str | None = None) -> None:
        """Open a dataset, or several datasets as one.

        Args:
            path: the folder that contains meta.json and a folder for each dataset.
            others: further folders. Each evaluation (dataset, key, strength, network) is read from the last folder that
                has it.
            weights: name of the weights whose results are read by default; only needed if there are several.

        Raises:
            ConfigError: an argument is not a path, the folders are for different spaces, a dataset has different
                numbers of classes in different folders, or there are no weights with this name.
            ResultsError: a folder does not exist, or its meta.json is missing or invalid.
            FormatVersionError: sweep.json has a format that this version does not know.
        """
        self.folders = tuple(DatasetFolder(as_folder(folder)) for folder in (path, *others))
        first = self.folders[0]
        self.path = first.path
        self.sweep = first.sweep if len(self.folders) == 1 else None
        self.missing = first.missing if len(self.folders) == 1 else {}
        self.space_name, self.cost_space, self.space = first.space_name, first.space, first.space
        self._tables: dict[tuple[Any, ...], pd.DataFrame] = {}
        self._networks: frozenset[str] | None = None
        self._keys: frozenset[str] | None = None
        self._is_separated = False
        self._weights: str | None = None
        self._check_folders()
        epsilons: dict[str, list[float]] = {}
        for folder in self.folders:
            for key, strengths in folder.meta["epsilons"].items():
                merged_key = next((spelling for spelling in spellings(key) if spelling in epsilons), key)
                epsilons[merged_key] = sorted({*epsilons.get(merged_key, ()), *strengths}) if others else strengths
        ids = {identifier: fields for folder in self.folders for identifier, fields in folder.meta["ids"].items()}
        self.weights = _union(folder.weights for folder in self.folders)
        self._set_meta({"ids": ids, "epsilons": epsilons} if others else first.meta)
        self._set_weights(weights)

    def _check_folders(self) -> None:
        """Raise ConfigError if folders are for different spaces, or differ in the number of a dataset's classes."""
        first = self.folders[0]
        for folder in self.folders[1:]:
            # In a space of cells, `ids` contains all cells. In other spaces, it contains evaluated architectures only.
            is_same = first.space is None or folder.meta["ids"] == first.meta["ids"]
            if folder.space_name != first.space_name or not is_same:
                expected = f"the architectures of {first.path}, got architectures of another space"
                raise _incompatible_folder_error(folder, expected)
        for dataset in _union(folder.datasets for folder in self.folders) if len(self.folders) > 1 else ():
            counts = [(folder, count) for folder in self.folders if (count := folder.count_classes(dataset))]
            for folder, count in counts[1:]:
                if count != counts[0][1]:
                    expected = f"{counts[0][1]} classes of {dataset}, as in {counts[0][0].path}, got {count}"
                    raise _incompatible_folder_error(folder, expected)

    def _set_meta(self, meta: dict[str, Any]) -> None:
        """Set the attributes that depend on the ids, and on the selected keys."""
        self.meta, id_items = meta, meta["ids"].items()
        self.map_str_to_id: dict[str, str] = {
            str(fields.get("nb201-string", identifier)): identifier for identifier, fields in id_items
        }
        self.non_isomorph_ids: list[str] = [
            identifier for identifier, fields in id_items if str(fields.get("isomorph", identifier)) == identifier
        ]
        self.data = _union(folder.datasets for folder in self.folders)
        self.measures = _union(folder.measurements for folder in self.folders)
        by_paper_key: dict[str, str] = {}
        for key in (key for folder in self.folders for key in folder.keys):
            if self._keys is None or paper_key(key) in self._keys:
                by_paper_key.setdefault(paper_key(key), key)
        keys = sort_by_task_order(by_paper_key.values())
        kinds = {key: self.kind_of(key) for key in keys}
        self.keys_clean, self.keys_adv, self.keys_cc, self.keys_measure, self.keys_other = (
            [key for key in keys if kinds[key] == kind] for kind in (CLEAN, "attack", "corruption", "measure", "other")
        )
        self.keys_all = self.keys_clean + self.keys_adv + self.keys_cc + self.keys_measure + self.keys_other

    def _set_weights(self, weights: str | None) -> None:
        if weights is not None and as_name(weights, "weights") not in self.weights:
            names = self.weights
            problem = f"expected {', '.join(names)}" if names else "the folder's weights have no names"
            advice = did_you_mean(weights, names) if names else " Omit the name."
            raise ConfigError(f"Reading {self.path} failed for weights {weights!r}: {problem}.{advice}")
        self._weights = weights

    def __repr__(self) -> str:
        several = self._weights is None and not self._is_separated and len(self.weights) > 1
        keys = "1 key" if len(self.keys_all) == 1 else f"{len(self.keys_all)} keys"
        paths = ", ".join(str(folder.path) for folder in self.folders)
        weights = f"; weights {', '.join(self.weights)}" if several else ""
        return f"<{type(self).__name__} {paths}: {', '.join(self.data)}; {keys}{weights}>"

    # Selection

    def select(self, networks: "NameOrNames | Sequence[int] | None" = None, keys: NameOrNames | None = None) -> Self:
        """Return a dataset with the results of some networks and keys only.

        If architectures have accuracies for several sets of weights and none was chosen, each set is a separate
        network, named ``ARCHITECTURE@WEIGHTS``, such as ``resnet18@plain-e30-s0``.

        Args:
            networks: names of networks, or ids or cell strings of architectures, each of which selects all networks of
                the architecture.
            keys: keys in addition to clean images.

        Raises:
            ConfigError: a network or key does not exist.
        """
        selected = copy.copy(self)
        if keys is not None:
            selected._keys = frozenset({CLEAN, *self._find_keys(as_names(keys, "key"))})
        selected._is_separated = any(self._separate_weights(folder) for folder in self.folders)
        if networks is not None:
            network_list: list[int | str] = [networks] if isinstance(networks, str) else [*networks]
            selected._networks = frozenset(self._find_network_name(network) for network in network_list)
        meta = self.meta
        if selected._is_separated:
            selected.space = None  # a network named 21@s0, for example, is not a cell of the space
            meta = meta | {"ids": {name: {} for name in selected._list_evaluated_networks()}}
        elif selected._networks is not None and self.space is None:
            meta = meta | {"ids": {name: meta["ids"][name] for name in meta["ids"] if name in selected._networks}}
        selected._set_meta(meta)
        if networks is not None:
            selected._check_networks(self)
        return selected

    def _find_keys(self, keys: Sequence[str]) -> list[str]:
        known_keys = [paper_key(key) for key in self.keys_all]
        requested_keys = [paper_key(key) for key in expand_keys(list(keys), known_keys)]
        for key in requested_keys:
            if key not in known_keys:
                raise ConfigError(
                    f"Reading {self.path} failed for {key!r}: the dataset has no results for this key."
                    f"{did_you_mean(key, known_keys)}"
                )
        return requested_keys

    def _find_network_name(self, network: int | str) -> str:
        """Return a network's name in the files. An unknown name is returned unchanged; `select` rejects it."""
        name = str(network)
        try:
            return self.get_uid(int(name) if name.isdecimal() and self.space is not None else name)
        except ArchitectureError:
            return name

    def _check_networks(self, unselected: "RobustnessDataset") -> None:
        """Raise ConfigError if a selected name is not the name of an evaluated network or architecture."""
        evaluated = self._list_evaluated_networks()
        known = {*evaluated, *(name.partition(WEIGHTS_SEPARATOR)[0] for name in evaluated)}
        for name in sorted((self._networks or frozenset()) - known):
            known_networks = unselected.select()._list_evaluated_networks()
            examples = ", ".join(sorted(known_networks)[:5])
            raise ConfigError(
                f"Reading {self.path} failed for {name!r}: expected a network that was evaluated, such as "
                f"{examples}.{did_you_mean(name, known_networks)}"
            )

    def _list_evaluated_networks(self) -> list[str]:
        """Return the names of the networks that have an accuracy."""
        tables = [
            self.table(dataset, key)["architecture"]
            for dataset, key in itertools.product(self.data, self.keys_all)
            if self.has(dataset, key)
        ]
        return list(dict.fromkeys(str(name) for table in tables for name in table.unique()))

    def _separate_weights(self, folder: DatasetFolder) -> list[str]:
        """Return the names of a folder's sets of weights with accuracies; empty unless there are several."""
        names = folder.weights
        if self._weights is not None or len(names) < 2:
            return []
        evaluated = {
            name
            for dataset, key in itertools.product(folder.datasets, folder.keys)
            if folder.kind_of(key) != "measure" and folder.find(dataset, key, "accuracy") is not None
            for name in self._table_of(folder, dataset, key, "accuracy")["weights"].unique()
        }
        found = [name for name in names if name in evaluated]
        return found if len(found) > 1 else []

    def with_weights(self, weights: str | None) -> Self:
        """Return a dataset that reads only the results of the weights with this name; `self` if the name is None.

        Folders whose weights have no names are included. Folders that have only weights with other names are left out.
        """
        if weights is None or weights == self._weights:
            return self
        chosen = copy.copy(self)
        chosen._set_weights(weights)
        if self._is_separated:
            chosen._is_separated, chosen.space = False, self.cost_space
            suffix = f"{WEIGHTS_SEPARATOR}{weights}"
            chosen._networks = self._networks and frozenset(name.removesuffix(suffix) for name in self._networks)
            chosen._set_meta(self.folders[0].meta)
        return chosen

    def name_networks(
        self, folder: DatasetFolder, file_name: str, architectures: "pd.Series[Any]", weights: "pd.Series[Any]"
    ) -> "pd.Series[Any]":
        """Return the names of a file's rows, for rows of selected networks; the index has the rows' positions.

        Raises:
            ConfigError: there are several sets of weights, and none was chosen.
        """
        if self._weights is not None and folder.weights:
            if weights.any():
                architectures = architectures[weights == self._weights]
            elif self._weights not in folder.weights:
                architectures = architectures[:0]
        elif self._is_separated:
            if separate := self._separate_weights(folder):
                is_known = weights.isin(separate)
                architectures = architectures[is_known].astype(str) + WEIGHTS_SEPARATOR + weights[is_known].astype(str)
            else:
                architectures = architectures.astype(str)
        elif (names := weights.unique()).size > 1:
            raise ConfigError(
                f"Reading failed for {file_name} of {folder.path}: expected weights {' or '.join(map(repr, names))}, "
                "got no name. Choose one with --weights-name, or weights=… in Python."
            )
        if self._networks is None:
            return architectures
        texts = architectures.astype(str)
        of_architecture = texts.str.partition(WEIGHTS_SEPARATOR)[0] if len(texts) else texts
        return architectures[texts.isin(self._networks) | of_architecture.isin(self._networks)]

    # Contents

    def has(self, dataset: str, key: str, measurement: str = "accuracy") -> bool:
        """Return whether a folder has a file with a key's measurement."""
        return any(folder.find(dataset, key, measurement) is not None for folder in self.folders)

    def _folders_with(self, dataset: str, key: str, measurement: str) -> list[DatasetFolder]:
        folders = [folder for folder in self.folders if folder.find(dataset, key, measurement) is not None]
        if not folders:
            folder = next((folder for folder in self.folders if dataset in folder.datasets), self.folders[0])
            raise folder.missing_file_error(dataset, key, measurement)
        self._check_protocols(dataset, key)
        return folders

    def _check_protocols(self, dataset: str, key: str) -> None:
        """Check that all folders computed a measure under the same protocol, if sweep.json contains protocols.

        A measure's numbers from different images or parameters are not comparable, and must not be combined.

        Raises:
            ConfigError: protocols differ.
        """
        if len(self.folders) < 2 or self.kind_of(key) != "measure":
            return
        protocols = [
            (folder, protocol)
            for folder in self.folders
            if folder.has_key(dataset, key)
            for protocol in folder.protocols_of(dataset, key)
        ]
        for folder, protocol in protocols[1:]:
            first_folder, first_protocol = protocols[0]
            if canonical_json(protocol) != canonical_json(first_protocol):
                from robust201.sweep.protocol import list_differences

                digests = (EvaluationProtocol.of(payload).digest[:8] for payload in (first_protocol, protocol))
                raise ConfigError(
                    f"Reading {key} of {dataset} failed for {first_folder.path} and {folder.path}: their protocols "
                    f"{' and '.join(digests)} differ ({', '.join(list_differences(first_protocol, protocol))}). "
                    "Read the folders one by one, or show both in one figure: `robust201 plot measure-correlations "
                    "FIRST --measures SECOND --out FILE`."
                )

    def kind_of(self, key: str) -> str:
        """Return the kind of a key: ``clean``, ``attack``, ``corruption``, ``measure`` or, if unknown, ``other``."""
        return next((kind for folder in self.folders if (kind := folder.kind_of(key)) != "other"), "other")

    def norm_ball_of(self, key: str) -> Constraint | None:
        """Return an attack's norm ball; None for keys that are not attacks."""
        return next((ball for folder in self.folders if (ball := folder.norm_ball_of(key))), None)

    def protocols_of(self, dataset: str, key: str) -> list[Mapping[str, Any]]:
        """Return the payloads in sweep.json of a key's protocols; empty without one, and for several folders."""
        return self.folders[0].protocols_of(dataset, key) if len(self.folders) == 1 else []

    def count_classes(self, dataset: str) -> int | None:
        """Return the number of classes of a dataset; None if unknown."""
        return next((count for folder in self.folders if (count := folder.count_classes(dataset))), None)

    def measurements(self, dataset: str, key: str) -> list[str]:
        """Return the names of a key's measurements.

        The attribute `measures` lists the measurements of clean images, attacks and corruptions. A measure's
        measurements are its columns. An unknown key's measurements are those in its files.
        """
        dataset, key = as_name(dataset, "dataset"), as_name(key, "key")
        return _union(folder.measurements_of(dataset, key) for folder in self.folders)

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Return the strengths of a key's values, in order.

        Returns:
            Epsilons (in units of 1/255 in an L∞ ball), severities, or ``(0.0,)`` for ``clean`` and measures.
        """
        dataset, key = as_name(dataset, "dataset"), as_name(key, "key")
        folders = [folder for folder in self.folders if folder.has_key(dataset, key)]
        if not folders:
            folders = [next((folder for folder in self.folders if folder.mentions_key(key)), self.folders[0])]
        if len(folders) == 1:
            return folders[0].strengths(dataset, key)
        return tuple(sorted({strength for folder in folders for strength in folder.strengths(dataset, key)}))

    def uses_clean_at_zero(self, dataset: str, key: str) -> bool:
        """Return whether a key is an attack whose strength 0 means clean images, because it was not evaluated at 0.

        Attacks without a norm ball, such as grids of rotations, are only evaluated at strength 0.
        """
        return self.kind_of(key) == "attack" and CLEAN_STRENGTH not in self.strengths(dataset, key)

    def _has_single_value(self, dataset: str, key: str) -> bool:
        kind = self.kind_of(key)
        return kind == CLEAN or (kind == "measure" and len(self.strengths(dataset, key)) == 1)

    # Values

    def table(self, dataset: str, key: str, measurement: str = "accuracy") -> pd.DataFrame:
        """Return a key's values at the strengths at which it was evaluated.

        Returns:
            One row per network and strength: `architecture` (int64 or text), `strength`, `value`, and `n_images`
            (float64, NaN if unknown).
        """
        tables = []
        for folder in self._folders_with(dataset, key, measurement):
            table = self._table_of(folder, dataset, key, measurement)
            names = self.name_networks(folder, f"{dataset} {key}", table["architecture"], table["weights"])
            tables.append(table.loc[names.index].assign(architecture=names))
        table = pd.concat(tables, ignore_index=True).drop(columns="weights")
        return table.drop_duplicates(["architecture", "strength"], keep="last") if len(tables) > 1 else table

    def _table_of(self, folder: DatasetFolder, dataset: str, key: str, measurement: str) -> pd.DataFrame:
        """Return the rows of one folder; tables of numbers stay in memory until their file changes."""
        file = folder.find(dataset, key, measurement)
        if not is_scalar(measurement) or file is None:
            return read_table(folder, dataset, key, measurement)
        status = file.stat()
        name = (file, measurement)
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        if (cached := self._tables.get((*name, *stamp))) is not None:
            return cached
        for outdated in [entry for entry in self._tables if entry[:2] == name]:
            self._tables.pop(outdated, None)
        self._tables[(*name, *stamp)] = table = read_table(folder, dataset, key, measurement)
        return table

    def iter_rows(
        self, dataset: str, key: str, measurement: str, network: ArchitectureId | None = None
    ) -> Iterator[Rows]:
        """Read a measurement with a few rows in memory at a time, of all networks or of one.

        The last folder is read first; rows that it has are left out of the others.
        """
        architecture = network
        if isinstance(network, str) and self._is_separated:
            architecture = parse_architecture_id(network.rpartition(WEIGHTS_SEPARATOR)[0] or network)
        read: set[tuple[Any, float]] = set()
        folders = self._folders_with(dataset, key, measurement)
        for folder in reversed(folders):
            new: set[tuple[Any, float]] = set()
            for block in folder.iter_rows(dataset, key, measurement, architecture):
                rows = self._select_rows(folder, f"{dataset} {key}", block, network)
                if len(folders) > 1:
                    identities = list(zip(rows.architectures.tolist(), rows.strengths.tolist(), strict=True))
                    rows = rows.take(np.array([identity not in read for identity in identities], bool))
                    new.update(identities)
                if len(rows):
                    yield rows
            read |= new

    def _select_rows(self, folder: DatasetFolder, file_name: str, rows: Rows, network: ArchitectureId | None) -> Rows:
        weights = pd.Series("" if rows.weights is None else rows.weights, range(len(rows)), dtype=object)
        names = self.name_networks(folder, file_name, pd.Series(rows.architectures), weights)
        names = names if network is None else names[names == network]
        selected = rows.take(names.index.to_numpy(np.int64))
        return Rows(names.to_numpy(), selected.weights, selected.strengths, selected.n_images, selected.columns)

    def _iter_cells(
        self, dataset: str, key: str, measurement: str, network: ArchitectureId | None = None
    ) -> Iterator[tuple[ArchitectureId, float, Any]]:
        """Yield network, strength and value, nested as in JSON files."""
        if is_scalar(measurement):
            table = self.table(dataset, key, measurement)
            table = table if network is None else table[table["architecture"] == network]
            values = [None if isinstance(value, float) and math.isnan(value) else value for value in table["value"]]
            yield from zip(table["architecture"].tolist(), table["strength"].tolist(), values, strict=True)
            return
        for rows in self.iter_rows(dataset, key, measurement, network):
            values = rows.nested_values(measurement)
            yield from zip(rows.architectures.tolist(), rows.strengths.tolist(), values, strict=True)

    def _read_nested(
        self, dataset: str, key: str, measurement: str, network: ArchitectureId | None = None
    ) -> dict[str, Any]:
        """Return a measurement by id: a single value, or a list in the order of `strengths`, with None for missing."""
        by_id: dict[str, dict[float, Any]] = {}
        for architecture, strength, value in self._iter_cells(dataset, key, measurement, network):
            by_id.setdefault(str(architecture), {})[strength] = value
        strengths, is_single = self.strengths(dataset, key), self._has_single_value(dataset, key)
        return {
            identifier: values.get(strengths[0]) if is_single else [values.get(strength) for strength in strengths]
            for identifier, values in by_id.items()
        }

    def query(
        self,
        data: NameOrNames | None = None,
        key: NameOrNames | None = None,
        measure: NameOrNames | None = None,
        missing_ok: bool = False,
        tqdm: Any = None,
        *,
        weights: str | None = None,
    ) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        """Read results, nested as in the files; by default, all `measurements` of each key.

        A missing file is an error unless `missing_ok` is true. `tqdm` is the module tqdm, its class, or a compatible
        object; if it is given, it shows progress.

        Returns:
            {dataset: {key: {measure: {id: value}}}}, with keys in the caller's spelling. Ids are strings; only
            evaluated architectures are included (see `get_uid`). A value is a single value for ``clean`` and for a
            measure with one strength, or a list with one value per strength (see `strengths`). A mean over zero images
            is None. The corruptions of ImageNet16-120, which were never published, have an empty entry if there are no
            files, as in the published helper class.
        """
        chosen = self.with_weights(weights)
        datasets = self.data if data is None else as_names(data, "dataset")
        keys = self.keys_all if key is None else as_names(key, "key")
        requested = None if measure is None else as_names(measure, "measurement")
        requests = [
            (dataset, key_name, requested or self.measurements(dataset, key_name))
            for dataset, key_name in itertools.product(datasets, keys)
        ]
        progress_bar = (
            None
            if tqdm is None
            else getattr(tqdm, "tqdm", tqdm)(total=sum(len(measurements) for _, _, measurements in requests))
        )
        result: dict[str, dict[str, dict[str, dict[str, Any]]]] = {dataset: {} for dataset in datasets}
        for dataset, key_name, measurements in requests:
            is_absent = self._is_intentionally_absent(dataset, key_name, measurements, is_explicit=key is not None)
            values = {
                measurement: chosen._read_nested(dataset, key_name, measurement)
                for measurement in (() if is_absent else measurements)
                if not missing_ok or self.has(dataset, key_name, measurement)
            }
            if values or is_absent:
                result[dataset][key_name] = values
            if progress_bar is not None:
                progress_bar.update(len(measurements))
        if progress_bar is not None:
            progress_bar.close()
        return result

    def get_uid(self, i: int | str) -> str:
        """Return the id, as text, of the architecture that represents an architecture's isomorphism class."""
        return str(self.meta["ids"][identifier := self._find_id(i)].get("isomorph", identifier))

    def id_to_string(self, i: int | str) -> str:
        """Return the cell string of an id, or the id itself in a space without cells."""
        return str(self.meta["ids"][identifier := self._find_id(i)].get("nb201-string", identifier))

    def string_to_id(self, s: str) -> str:
        """Return the id, as text, of a cell string."""
        return self._find_id(s)

    def draw_arch(self, s: str | None = None, i: int | str | None = None) -> "alt.LayerChart":
        """Draw a cell, given its string or id, as a chart that notebooks display and whose `save` writes files."""
        architecture = s if s is not None else i
        if architecture is None:
            raise ArchitectureError("Drawing failed: a cell string or an id is needed. Pass s=… or i=….")
        identifier = self._find_id(architecture)
        space = self.space
        if space is None:
            raise ArchitectureError(
                f"Drawing failed for {format_architecture(identifier)}: the architectures "
                f"of the space {self.space_name or 'of these files'} are not cells. Only cells can be drawn."
            )
        return space.draw_cell(self.id_to_string(identifier), f"#{identifier}")

    @overload
    def accuracy(
        self, architecture: int | str, dataset: str, key: str, strength: float, *, weights: str | None = None
    ) -> float: ...

    @overload
    def accuracy(
        self, architecture: int | str, dataset: str, key: str, strength: None = None, *, weights: str | None = None
    ) -> float | list[float]: ...

    def accuracy(
        self,
        architecture: int | str,
        dataset: str,
        key: str,
        strength: float | None = None,
        *,
        weights: str | None = None,
    ) -> float | list[float]:
        """Return the accuracy of any architecture of the space at a strength.

        If no strength is given, return the list of accuracies at all `strengths`, or a number for ``clean``.
        """
        identifier = self._find_id(architecture)
        action = f"Looking up {format_id(identifier)}"
        strength_value = None if strength is None else self._check_strength(action, dataset, key, strength)
        if strength_value == CLEAN_STRENGTH and strength_value not in self.strengths(dataset, key):
            key = "clean"
        accuracies: float | list[float] = self.value(architecture, dataset, key, weights=weights)
        if strength_value is None:
            return list(accuracies) if isinstance(accuracies, list) else accuracies
        values = accuracies if isinstance(accuracies, list) else [accuracies]
        accuracy: float = values[self.strengths(dataset, key).index(strength_value)]
        return accuracy

    def value(
        self,
        architecture: int | str,
        dataset: str,
        key: str,
        measure: str = "accuracy",
        *,
        weights: str | None = None,
    ) -> Any:
        """Return a measurement of any architecture of the space.

        The value is the same as in `query`: a single value, or a list in the order of `strengths`. Numbers are read
        from tables that stay in memory (see `dataset.table`). Matrices are read from a JSON file as a stream, or from a
        part of a Parquet file. Threads and forked processes may share a dataset.
        """
        identifier, uid = self._find_id(architecture), self.get_uid(architecture)
        for argument_name, name in (("dataset", dataset), ("key", key), ("measurement", measure)):
            as_name(name, argument_name)
        chosen = self.with_weights(weights)
        values = chosen._read_nested(dataset, key, measure, parse_architecture_id(uid))
        if uid not in values:
            raise ArchitectureError(
                f"Looking up {measure} failed for {format_id(identifier)}: {format_id(uid)} was not evaluated on "
                f"{dataset} under {key}. Evaluate it, or look up another architecture."
            )
        return values[uid]

    def outcomes(
        self, dataset: str, key: str, strength: float | None = None, *, weights: str | None = None
    ) -> "Outcomes":
        """Return per-image outcomes: whether each architecture classified each image correctly.

        The strength may be omitted if there is only one. At strength 0, an attack has the outcomes of clean images.

        Returns:
            The evaluated architectures that have outcomes, and their packed bits in the order of `images`.

        Raises:
            ResultsError: the dataset has no outcomes, or several folders have outcomes for different images.
        """
        from robust201.dataset.image_outcomes import read_outcomes

        known_strengths = self.strengths(dataset, key)
        if strength is None and len(known_strengths) > 1:
            strengths = ", ".join(f"{known_strength:g}" for known_strength in known_strengths)
            raise ConfigError(
                f"Reading outcomes failed for {dataset} {key}: a strength is needed. Choose one of {strengths}."
            )
        strength_value = (
            known_strengths[0] if strength is None else self._check_strength("Reading outcomes", dataset, key, strength)
        )
        if strength_value == CLEAN_STRENGTH and strength_value not in known_strengths:
            key = "clean"
        return read_outcomes(self.with_weights(weights), dataset, key, strength_value)

    def images(self, dataset: str) -> "pd.DataFrame":
        """Return the table of the images in `outcomes`.

        Returns:
            One row per position in the outcomes: `row` (index of the image in the dataset's split), `label`, and
            `sha256` (hash of the pixels as uint8, channels first).
        """
        from robust201.dataset.image_outcomes import read_images

        return pd.DataFrame(read_images(self, as_name(dataset, "dataset"))).rename_axis("position")

    def rank(
        self,
        dataset: str,
        key: str,
        strength: float | None = None,
        *,
        measure: str = "accuracy",
        lowest_first: bool = False,
        isomorphs: bool = False,
        weights: str | None = None,
    ) -> "pd.Series[int]":
        """Rank architectures by accuracy or by another measurement.

        `analysis.leaderboard.make_leaderboard` ranks by accuracies with intervals and ties.

        Args:
            dataset: name of the dataset.
            key: name of the key.
            strength: strength; by default, architectures are ranked by their means over all strengths.
            measure: name of the measurement.
            lowest_first: whether the lowest value has rank 1 instead of the highest.
            isomorphs: whether to include all architectures of an evaluated isomorphism class.
            weights: name of the weights.

        Returns:
            Ranks (int64) by architecture (int64 or text). Ranks start at 1; equal values share the lowest rank.
            Architectures without a value at the strength are left out.
        """
        # If architectures have several sets of weights, `select` makes each set a network of its own.
        chosen = self.select() if weights is None and not self._is_separated else self.with_weights(weights)
        known_strengths = chosen.strengths(dataset, key)
        strengths = known_strengths if strength is None else (self._check_strength("Ranking", dataset, key, strength),)
        frame = chosen.to_frame(dataset, key, measure, isomorphs=isomorphs)
        rows = frame[frame["strength"].isin(strengths)]
        if rows["value"].dtype.kind != "f":
            raise ConfigError(
                f"Ranking failed for {dataset} {key} {measure}: expected numbers, got values of type "
                f"{rows['value'].dtype}. Rank by another measurement."
            )
        groups = rows.groupby("architecture")["value"]
        # The mean of an architecture that lacks a strength would not be comparable.
        means = groups.mean()[groups.count() == len(strengths)]
        # Only means are rounded, because single numbers of a measure may be very small.
        means = means.round(MEAN_DECIMALS) if len(strengths) > 1 else means
        ranks = means.rank(ascending=lowest_first, method="min").astype("int64")
        return ranks.sort_values(kind="stable").rename("rank")

    def metrics(
        self,
        datasets: NameOrNames | None = None,
        keys: NameOrNames | None = None,
        *,
        reference: int | str | None = None,
    ) -> "DerivedMetrics":
        """Compute derived metrics.

        If architectures have several sets of weights, each set is a separate network (see `select`).

        Args:
            datasets: names of datasets.
            keys: names of keys.
            reference: network to which corruption errors are relative.

        Raises:
            ConfigError: a dataset, key or the reference does not exist.
            ResultsError: per-image outcomes contradict the accuracies.
        """
        from robust201.dataset.derived import derive_metrics

        dataset_names = None if datasets is None else as_names(datasets, "datasets")
        key_names = None if keys is None else as_names(keys, "keys")
        reference_id = None if reference is None else parse_architecture_id(self.get_uid(reference))
        return derive_metrics(self.select(), dataset_names, key_names, reference=reference_id)

    def worst_case(
        self, dataset: str, tasks: Sequence[tuple[str, float]], *, weights: str | None = None
    ) -> "pd.DataFrame":
        """Return the fraction of images that each architecture classifies correctly under every task in `tasks`.

        Args:
            dataset: name of the dataset.
            tasks: pairs of a key and a strength; clean images are ``("clean", 0)``.
            weights: name of the weights.

        Returns:
            `accuracy`, `low` and `high` (its 95% interval) of the architectures that have outcomes for all tasks.

        Raises:
            ConfigError: `tasks` is empty.
            ResultsError: outcomes of a task are not stored.
        """
        from robust201.dataset.derived import worst_case_accuracies

        if not tasks:
            raise ConfigError(
                f"Computing the worst case failed for {dataset}: `tasks` is empty. Choose at least one task."
            )
        outcomes = [self.outcomes(dataset, key, strength, weights=weights) for key, strength in tasks]
        accuracies = worst_case_accuracies(outcomes)
        low, high = accuracy_intervals(accuracies, outcomes[0].n_images)
        return accuracies.to_frame("accuracy").assign(low=low, high=high)

    def _check_strength(self, action: str, dataset: str, key: str, strength: float) -> float:
        return as_strength(strength, self.strengths(dataset, key), f"{action} failed for {dataset} {key}")

    def join(
        self,
        frame: "pd.DataFrame",
        data: NameOrNames | None = None,
        key: NameOrNames | None = None,
        *,
        weights: str | None = None,
    ) -> "pd.DataFrame":
        """Return the rows of `to_frame`, with the columns of another table about the same architectures.

        Args:
            frame: one row per architecture, with its id in the column `architecture`, or one per architecture and
                dataset, if it also has the column `dataset`.
            data: names of datasets.
            key: names of keys.
            weights: name of the weights.

        Raises:
            ConfigError: the table has no column `architecture`, or several rows for one architecture.
        """
        identity = [name for name in ("architecture", "dataset") if name in frame.columns]
        if "architecture" not in identity or frame.duplicated(identity).any():
            raise ConfigError(
                f"Joining failed for {self.path}: the table must have one row per {' and '.join(identity) or 'id'}, "
                "with the id in the column `architecture`. Rename the column, or remove the duplicates."
            )
        return self.to_frame(data, key, weights=weights).merge(frame, on=identity, how="left")

    def to_frame(
        self,
        data: NameOrNames | None = None,
        key: NameOrNames | None = None,
        measure: str = "accuracy",
        *,
        wide: bool = False,
        isomorphs: bool = False,
        weights: str | None = None,
        intervals: bool = False,
    ) -> "pd.DataFrame":
        """Return results as a tidy DataFrame, one row per architecture, dataset, key and strength.

        Args:
            data: names of datasets.
            key: names of keys.
            measure: name of the measurement. Values other than numbers are nested lists or dictionaries, as in the
                files.
            wide: whether to return one row per architecture and dataset, with columns (key, strength).
            isomorphs: whether to include all architectures of an evaluated isomorphism class.
            weights: name of the weights.
            intervals: whether to add the bounds `low` and `high` of each accuracy's 95% interval over samples of images
                (see `statistics.intervals.accuracy_intervals`); not with `wide`.

        Returns:
            Columns `architecture` (int64, or text in spaces whose architectures are not numbered), `isomorph` (the
            evaluated architecture, with the same type), `spec` (the cell string, or the id), `dataset`, `key`
            (categories), `strength` (float64; 0 for ``clean``), `value` and `n_images` (NaN if unknown). If the folder
            has clean values, attacks start with the clean value at epsilon 0. A clean evaluation therefore has one row
            under ``clean`` and one under every attack, except attacks that were evaluated at 0, such as grids of
            rotations.
        """
        if intervals and (wide or as_name(measure, "measurement") != "accuracy"):
            raise ConfigError(
                f"Making a table failed for {measure}: intervals are only available for accuracies in the long form. "
                f"Omit {'`wide`' if wide else '`measure`'} or `intervals`."
            )
        chosen = self.with_weights(weights)
        evaluations = chosen._find_evaluations(data, key, as_name(measure, "measurement"))
        frames = [chosen._tidy(dataset, key_name, measure) for dataset, key_name in evaluations]
        frame = chosen._describe_networks(frames, isomorphs=isomorphs)
        for name, values in zip(("dataset", "key"), zip(*evaluations, strict=True), strict=False):
            frame[name] = pd.Categorical(frame[name], list(dict.fromkeys(values)))
        if intervals:
            low, high = accuracy_intervals(frame["value"].to_numpy(np.float64), frame["n_images"].to_numpy(np.float64))
            return frame.assign(low=low, high=high)
        if not wide:
            return frame
        identity = ["architecture", "isomorph", "spec", "dataset", "key", "strength"]
        return frame.set_index(identity)["value"].unstack(["key", "strength"]).sort_index(axis="columns")

    def _find_evaluations(
        self, data: NameOrNames | None, key: NameOrNames | None, measurement: str
    ) -> list[tuple[str, str]]:
        """Return the datasets and keys that have a measurement, among those requested.

        Raises:
            ResultsError: a requested dataset or key has no such files.
        """
        datasets = self.data if data is None else as_names(data, "dataset")
        keys = self.keys_all if key is None else as_names(key, "key")
        is_explicit = data is not None and key is not None
        evaluations = [
            (dataset, key_name)
            for dataset, key_name in itertools.product(datasets, keys)
            if is_explicit or self.has(dataset, key_name, measurement)
        ]
        found_datasets, found_keys = ({evaluation[index] for evaluation in evaluations} for index in (0, 1))
        for dataset, key_name in itertools.product(datasets, keys):
            is_missing = (data is not None and dataset not in found_datasets) or (
                key is not None and key_name not in found_keys
            )
            if is_missing:
                self._folders_with(dataset, key_name, measurement)
        return evaluations

    def _tidy(self, dataset: str, key: str, measurement: str) -> pd.DataFrame:
        """Return a key's table; those of attacks begin with the clean value, unless the attack was evaluated at 0."""
        table = self._values(dataset, key, measurement)
        if self.uses_clean_at_zero(dataset, key) and self.has(dataset, CLEAN, measurement):
            clean = self._values(dataset, CLEAN, measurement)
            table = pd.concat([clean[clean["architecture"].isin(table["architecture"])], table])
        return table.sort_values(["architecture", "strength"]).assign(dataset=dataset, key=key)

    def _values(self, dataset: str, key: str, measurement: str) -> pd.DataFrame:
        if is_scalar(measurement):
            return self.table(dataset, key, measurement)
        cells = list(self._iter_cells(dataset, key, measurement))
        frame = pd.DataFrame(cells, columns=["architecture", "strength", "value"])
        return frame.assign(n_images=np.nan)

    def _describe_networks(self, frames: Sequence[pd.DataFrame], *, isomorphs: bool) -> pd.DataFrame:
        """Concatenate tables, and add the columns `isomorph` and `spec`."""
        columns = ["architecture", "isomorph", "spec", "dataset", "key", "strength", "value", "n_images"]
        if not frames:
            return pd.DataFrame(columns=columns)
        ids = self.meta["ids"].items()
        frame = pd.concat(frames, ignore_index=True).assign(isomorph=lambda table: table["architecture"])
        if isomorphs:
            members = pd.DataFrame(
                [
                    (parse_architecture_id(str(fields.get("isomorph", name))), parse_architecture_id(name))
                    for name, fields in ids
                ],
                columns=["isomorph", "architecture"],
            )
            order = frame.drop(columns="architecture").assign(table=frame["dataset"] + " " + frame["key"])
            frame = order.merge(members, on="isomorph")
            positions = {name: position for position, name in enumerate(order["table"].unique())}
            frame = frame.assign(table=frame["table"].map(positions)).sort_values(
                ["table", "architecture", "strength"], ignore_index=True
            )
        codes, architectures = pd.factorize(frame["architecture"], sort=True)
        specs = [str(self.meta["ids"][str(name)].get("nb201-string", name)) for name in architectures]
        return frame.assign(spec=pd.Categorical.from_codes(codes, pd.Index(specs)))[columns]

    def accuracies(self, dataset: str, column: str = "value") -> pd.DataFrame:
        """Return all accuracies of a dataset, or the numbers of images (`n_images`) on which they were computed.

        Accuracies of attacks do not include the clean accuracies.

        Returns:
            float64 by architecture (index, ascending) and (key, strength). Keys are in the paper's style and in the
            order of `TASKS`, and strengths are ascending. Missing evaluations are NaN. There are no columns if all are
            missing.
        """
        columns = {}
        for key in sort_by_task_order(self.keys_all):
            table = self.table(dataset, key) if self.has(dataset, key) else None
            if table is not None and len(table):
                frame = table.pivot(index="architecture", columns="strength", values=column)
                columns[paper_key(key)] = frame.sort_index(axis=1)
        if not columns:
            return pd.DataFrame()
        wide = pd.concat(columns, axis=1, names=["key", "strength"]).rename_axis("architecture").sort_index()
        # An architecture's numbers must be contiguous, because the last bits of their sum depend on the memory layout.
        return pd.DataFrame(np.ascontiguousarray(wide.to_numpy(np.float64)), wide.index, wide.columns, copy=False)

    def _find_id(self, architecture: int | str) -> str:
        if isinstance(architecture, str):
            name = self.map_str_to_id.get(architecture, architecture)
        else:
            try:
                # NumPy integers are accepted, but bool, which is a subclass of int, is not.
                name = repr(architecture) if isinstance(architecture, bool) else str(operator.index(architecture))
            except TypeError:
                name = repr(architecture)
        if name in self.meta["ids"]:
            return name
        space = self.space
        if space is None:
            raise ArchitectureError(
                f"Looking up an architecture failed for {self.path}: expected one of its ids, got {architecture!r}."
                f"{did_you_mean(name, self.meta['ids'])}"
            )
        if "|" in name:
            space.parse(name)  # raises an error that describes the problem
        raise ArchitectureError(
            f"Looking up an architecture failed for {architecture!r}: expected an id from 0 to "
            f"{len(self.meta['ids']) - 1} or a cell string such as {self.meta['ids']['0']['nb201-string']}, "
            "got neither. Use a number or a string of this form."
        )

    def _is_intentionally_absent(
        self, dataset: str, key: str, measurements: Sequence[str], *, is_explicit: bool
    ) -> bool:
        """Return whether a key has no files because it is not in the sweep, or because it was never published.

        `is_explicit` is true if the caller named the key. A named key that is not in the sweep counts as missing,
        unless it was never published.
        """
        if any(self.has(dataset, key, measurement) for measurement in measurements):
            return False
        plans = [plan for folder in self.folders if (plan := folder.planned_strengths(dataset)) is not None]
        if plans:
            if any(spelling in plan for plan in plans for spelling in spellings(key)):
                return False
            if not is_explicit:
                return True
        return dataset == self.data_imagenet16 and kind_of(key) == "corruption"


def _union(name_lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for name_list in name_lists for name in name_list))


def _incompatible_folder_error(folder: DatasetFolder, expected: str) -> ConfigError:
    return ConfigError(
        f"Opening several datasets failed for {folder.path}: expected {expected}. Use folders of the same space and "
        "the same datasets."
    )


def as_name(name: object, argument_name: str) -> str:
    """Return a name; raise ConfigError if it is not text."""
    if not isinstance(name, str):
        raise ConfigError(
            f"Reading failed for {argument_name} {name!r}: expected text, got {type(name).__name__}. Use one name."
        )
    return name


def as_names(names: object, argument_name: str) -> list[str]:
    """Return a name or several names as a list; raise ConfigError for anything else."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise ConfigError(
            f"Reading failed for {argument_name} {names!r}: expected a name or a list of names, got "
            f"{type(names).__name__}. Use names, or omit the argument."
        )
    return [as_name(name, argument_name) for name in names]


def as_strength(strength: object, known_strengths: Sequence[float], error_prefix: str) -> float:
    """Return a strength as a float; raise ConfigError unless it is known, or 0 for clean images."""
    is_number = isinstance(strength, numbers.Real) and not isinstance(strength, bool)
    number = float(strength) if is_number else math.nan  # type: ignore[arg-type]
    if number in known_strengths or number == 0:
        return number
    advice = ""
    if math.isfinite(number) and known_strengths:
        advice = f" The closest is {min(known_strengths, key=lambda known: abs(known - number)):g}."
        matching = [known for known in known_strengths if math.isclose(255 * number, known, rel_tol=0.015)]
        if matching and number < 1:
            advice = f" Epsilons are in units of 1/255: write {matching[0]:g} for {matching[0]:g}/255."
    strengths = ", ".join(f"{known:g}" for known in known_strengths)
    shown = repr(strength) if math.isnan(number) else f"{number:g}"
    raise ConfigError(
        f"{error_prefix}: expected one of the strengths {strengths}, got {shown}.{advice} Choose one of the expected "
        "strengths."
    )
