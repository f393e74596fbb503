"""Several dataset folders read as one dataset: selection of networks, keys and weights; a table of all accuracies."""

import copy
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ArchitectureError, ConfigError, did_you_mean
from robust201.core.files import resolve_bundled
from robust201.core.records import ArchitectureId
from robust201.dataset.folder import DatasetFolder
from robust201.dataset.layout import (
    CLEAN,
    WEIGHTS_SEPARATOR,
    paper_key,
    parse_architecture_id,
    sort_by_task_order,
    spellings,
)
from robust201.dataset.row_block import RowBlock
from robust201.dataset.table import has_single_column, read_single_column
from robust201.tasks import expand_keys
from robust201.tasks.constraints import Constraint
from robust201.tasks.strengths import unit_of

if TYPE_CHECKING:
    import pandas as pd

NameOrNames = str | Sequence[str]

VALUE_COLUMNS = ["architecture", "strength", "value", "n_images"]
TABLE_COLUMNS = ["dataset", "key", "strength", "network", "accuracy", "n_images", "kind", "standard_error"]


class MergedFolders:
    """Several dataset folders read as one dataset, which can be restricted to some networks, keys and weights.

    Each row is read from the last folder that has it. `Dataset` describes the attributes.
    """

    def __init__(self, path: str | Path = "robustness-data", *others: str | Path, weights: str | None = None) -> None:
        """Open a dataset, or several datasets as one.

        Args:
            path: the folder that contains meta.json. The prefix ``bundled:`` means a dataset that ships with
                robust201: ``bundled:benchmark_data/cells-cifar10``.
            others: further folders. Each evaluation (dataset, key, strength, network) is read from the last folder that
                has it.
            weights: name of the weights whose results are read by default; only needed if there are several.

        Raises:
            ConfigError: the folders have different search spaces, or no weights have this name.
            ResultsError: a folder does not exist or lacks meta.json, or its meta.json or sweep.json is invalid.
            FormatVersionError: sweep.json has a format that this version does not know.
        """
        self.folders = tuple(DatasetFolder(resolve_bundled(folder)) for folder in (path, *others))
        first = self.folders[0]
        self.path = first.path
        self.sweep = first.sweep if len(self.folders) == 1 else None
        self.missing = first.missing if len(self.folders) == 1 else {}
        self.space_name, self.cost_space, self.space = first.space_name, first.space, first.space
        self._numbers: dict[tuple[Any, ...], RowBlock] = {}
        self._networks: frozenset[str] | None = None
        self._keys: frozenset[str] | None = None
        self._separates_weights = False
        self._weights: str | None = None
        self._check_folders()
        epsilons: dict[str, list[float]] = {}
        for folder in self.folders:
            for key, strengths in folder.meta["epsilons"].items():
                merged_key = next((spelling for spelling in spellings(key) if spelling in epsilons), key)
                epsilons[merged_key] = sorted({*epsilons.get(merged_key, ()), *strengths}) if others else strengths
        ids = {identifier: fields for folder in self.folders for identifier, fields in folder.meta["ids"].items()}
        self.weights = _union(folder.weights for folder in self.folders)
        self._unselected_meta = {"ids": ids, "epsilons": epsilons} if others else first.meta
        self._set_meta(self._unselected_meta)
        self._set_weights(weights)

    def _check_folders(self) -> None:
        """Raise ConfigError if folders have different search spaces."""
        first = self.folders[0]
        for folder in self.folders[1:]:
            # In a space of cells, `ids` contains all cells. In other spaces, it contains evaluated architectures only.
            is_same = first.space is None or folder.meta["ids"] == first.meta["ids"]
            if folder.space_name != first.space_name or not is_same:
                raise ConfigError(
                    f"Opening several datasets failed for {folder.path}: expected the architectures of {first.path}, "
                    "got architectures of another space. Use folders of the same space."
                )

    def _set_meta(self, meta: dict[str, Any]) -> None:
        """Set the attributes that depend on `meta` and on the selected keys."""
        self.meta, id_items = meta, meta["ids"].items()
        self.map_str_to_id: dict[str, str] = {
            str(fields.get("nb201-string", identifier)): identifier for identifier, fields in id_items
        }
        self.non_isomorph_ids: list[str] = [
            identifier for identifier, fields in id_items if str(fields.get("isomorph", identifier)) == identifier
        ]
        self.data = _union(folder.datasets for folder in self.folders)
        self.measures = _union(folder.measurements for folder in self.folders)
        spelling_by_paper_key: dict[str, str] = {}
        for key in (key for folder in self.folders for key in folder.keys):
            if self._keys is None or paper_key(key) in self._keys:
                spelling_by_paper_key.setdefault(paper_key(key), key)
        keys = sort_by_task_order(spelling_by_paper_key.values())
        kinds = {key: self.kind_of(key) for key in keys}
        self.keys_clean, self.keys_adv, self.keys_cc, self.keys_measure, self.keys_other = (
            [key for key in keys if kinds[key] == kind] for kind in (CLEAN, "attack", "corruption", "measure", "other")
        )
        self.keys_all = self.keys_clean + self.keys_adv + self.keys_cc + self.keys_measure + self.keys_other

    def _set_weights(self, weights: str | None) -> None:
        if weights is not None and weights not in self.weights:
            names = self.weights
            problem = f"expected {', '.join(names)}" if names else "the folder's weights have no names"
            advice = did_you_mean(weights, names) if names else " Omit the name."
            raise ConfigError(f"Reading {self.path} failed for weights {weights!r}: {problem}.{advice}")
        self._weights = weights

    def __repr__(self) -> str:
        lists_weights = self._weights is None and not self._separates_weights and len(self.weights) > 1
        keys = "1 key" if len(self.keys_all) == 1 else f"{len(self.keys_all)} keys"
        paths = ", ".join(str(folder.path) for folder in self.folders)
        weights = f"; weights {', '.join(self.weights)}" if lists_weights else ""
        return f"<{type(self).__name__} {paths}: {', '.join(self.data)}; {keys}{weights}>"

    def select(self, networks: "NameOrNames | Sequence[int] | None" = None, keys: NameOrNames | None = None) -> Self:
        """Return a dataset with the results of some networks and keys only.

        If architectures have accuracies for several sets of weights and none was chosen, each set is a separate
        network, named ``ARCHITECTURE@WEIGHTS``, such as ``resnet18@plain-e30-s0``.

        Args:
            networks: names of networks, or ids or cell strings of architectures; an architecture selects all of its
                networks.
            keys: keys to select; clean images are always selected.

        Raises:
            ConfigError: a network or key does not exist.
        """
        selected = copy.copy(self)
        if keys is not None:
            selected._keys = frozenset({CLEAN, *self._find_keys(as_names(keys))})
        selected._separates_weights = self._weights is None and any(len(folder.weights) > 1 for folder in self.folders)
        if networks is not None:
            network_list: list[int | str] = [networks] if isinstance(networks, str) else [*networks]
            selected._networks = frozenset(self._find_network_name(network) for network in network_list)
        meta = self.meta
        if selected._separates_weights:
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
                hint = " Leave out the strength." if ":" in key else did_you_mean(key, known_keys)
                raise ConfigError(f"Reading {self.path} failed for {key!r}: it has no results for this key.{hint}")
        return requested_keys

    def _find_network_name(self, network: int | str) -> str:
        """Return a network's name in the files. An unknown name is returned unchanged; `select` rejects it."""
        name = str(network)
        try:
            return self.get_uid(int(name) if name.isdecimal() and self.space is not None else name)
        except ArchitectureError:
            return name

    def _check_networks(self, unselected: "MergedFolders") -> None:
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
            self.read_table(dataset, key)["architecture"]
            for dataset, key in itertools.product(self.data, self.keys_all)
            if self.has(dataset, key)
        ]
        return list(dict.fromkeys(str(name) for table in tables for name in table.unique()))

    def with_weights(self, weights: str | None) -> Self:
        """Return a dataset that reads only the results of the weights with this name; `self` if the name is None.

        Folders whose weights have no names are included. Folders that have only weights with other names are left out.
        """
        if weights is None or weights == self._weights:
            return self
        selected = copy.copy(self)
        selected._set_weights(weights)
        if self._separates_weights:
            selected._separates_weights, selected.space = False, self.cost_space
            suffix = f"{WEIGHTS_SEPARATOR}{weights}"
            selected._networks = self._networks and frozenset(name.removesuffix(suffix) for name in self._networks)
            selected._set_meta(self._unselected_meta)
        return selected

    def name_networks(
        self, folder: DatasetFolder, architectures: NDArray[Any], weights: NDArray[Any] | None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the networks of the selected rows of a file, and the positions of these rows."""
        positions = np.arange(len(architectures))
        if self._weights is not None and folder.weights:
            if weights is not None and any(weights):
                positions = np.flatnonzero(weights == self._weights)
            elif self._weights not in folder.weights:
                positions = positions[:0]
        elif self._separates_weights:
            architectures = architectures.astype(str).astype(object)
            if len(folder.weights) > 1:
                suffixes = "" if weights is None else weights.astype(str).astype(object)
                architectures = architectures + WEIGHTS_SEPARATOR + suffixes
        networks = architectures[positions]
        if self._networks is not None:
            selected = self._networks
            names = map(str, networks.tolist())
            is_selected = [name in selected or name.partition(WEIGHTS_SEPARATOR)[0] in selected for name in names]
            networks, positions = networks[is_selected], positions[is_selected]
        return networks, positions

    def has(self, dataset: str, key: str, measurement: str = "accuracy") -> bool:
        """Return whether a folder has a file with a key's measurement."""
        return any(folder.find(dataset, key, measurement) is not None for folder in self.folders)

    def _folders_with(self, dataset: str, key: str, measurement: str) -> list[DatasetFolder]:
        folders = [folder for folder in self.folders if folder.find(dataset, key, measurement) is not None]
        if not folders:
            folder = next((folder for folder in self.folders if dataset in folder.datasets), self.folders[0])
            raise folder.missing_file_error(dataset, key, measurement)
        self.check_protocols(dataset, key)
        for folder in folders:
            self.check_weights(folder, dataset, key)
        return folders

    def check_weights(self, folder: DatasetFolder, dataset: str, key: str) -> None:
        """Raise ConfigError if a file has rows of several sets of weights, and none was chosen."""
        names = folder.weights_of(dataset, key)
        is_unambiguous = self._separates_weights or (self._weights is not None and folder.weights)
        if len(names) > 1 and not is_unambiguous:
            raise ConfigError(
                f"Reading failed for {dataset} {key} of {folder.path}: expected weights "
                f"{' or '.join(map(repr, names))}, got no name. Choose one with --weights-name, or weights=… in Python."
            )

    def check_protocols(self, dataset: str, key: str) -> None:
        """Check that all folders computed a key under the same protocol, as far as sweep.json describes it.

        Results of different attacks, cells or corrupted images must not be combined, nor, for a measure, of different
        images.

        Raises:
            ConfigError: protocols differ.
        """
        if len(self.folders) < 2:
            return
        protocols = [
            (folder, self._comparable_fields(protocol))
            for folder in self.folders
            if folder.has_key(dataset, key)
            for protocol in folder.protocols_of(dataset, paper_key(key))
        ]
        for folder, fields in protocols[1:]:
            from robust201.sweep.protocol import list_differences

            first_folder, first_fields = protocols[0]
            # Earlier versions wrote fewer fields.
            differences = [text for text in list_differences(first_fields, fields) if "absent" not in text]
            if differences:
                raise ConfigError(
                    f"Reading {key} of {dataset} failed for {first_folder.path} and {folder.path}: their protocols "
                    f"differ ({', '.join(differences)}). Read the folders one by one; `robust201 diff` compares them."
                )

    def _comparable_fields(self, protocol: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a protocol that must be equal in all folders; rows may have different `n_images`."""
        if self.kind_of(protocol["key"]) == "measure":
            return protocol
        names = ("parameters", "file_sha256", *(["network"] if self.cost_space is not None else []))
        fields = {name: protocol[name] for name in names if name in protocol}
        if source := protocol.get("corruption", {}).get("source"):
            fields["corruption"] = {"source": "generated" if source == "generated" else "published"}
        return fields | {"version": protocol.get("version", protocol.get("semantics_version", "absent"))}

    def kind_of(self, key: str) -> str:
        """Return the kind of a key: ``clean``, ``attack``, ``corruption``, ``measure`` or, if unknown, ``other``."""
        return next((kind for folder in self.folders if (kind := folder.kind_of(key)) != "other"), "other")

    def norm_ball_of(self, key: str) -> Constraint | None:
        """Return an attack's norm ball; None for attacks without a ball, and for other keys."""
        return next((ball for folder in self.folders if (ball := folder.norm_ball_of(key))), None)

    def unit_of(self, key: str) -> str:
        """Return the unit of a key's strengths (see `tasks.strengths.unit_of`)."""
        return unit_of(self.norm_ball_of(key), self.kind_of(key))

    def protocols_of(self, dataset: str, key: str) -> list[Mapping[str, Any]]:
        """Return the payloads of a key's protocols from sweep.json; empty if there are none, or for several folders."""
        return self.folders[0].protocols_of(dataset, key) if len(self.folders) == 1 else []

    def count_classes(self, dataset: str) -> int | None:
        """Return the number of classes of a dataset; None if unknown."""
        return next((count for folder in self.folders if (count := folder.count_classes(dataset))), None)

    def measurements(self, dataset: str, key: str) -> list[str]:
        """Return the names of a key's measurements.

        The attribute `measures` lists the measurements of clean images, attacks and corruptions. A measure's
        measurements are its columns.
        """
        return _union(folder.measurements_of(dataset, key) for folder in self.folders)

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Return the strengths of a key's values, in order.

        Returns:
            Epsilons (in units of 1/255 in an L∞ ball), severities, strengths of a custom attack in its own units, or
            ``(0.0,)`` for ``clean`` and measures.
        """
        folders = [folder for folder in self.folders if folder.has_key(dataset, key)]
        if not folders:
            folders = [next((folder for folder in self.folders if folder.mentions_key(key)), self.folders[0])]
        if len(folders) == 1:
            return folders[0].strengths(dataset, key)
        return tuple(sorted({strength for folder in folders for strength in folder.strengths(dataset, key)}))

    def _has_single_value(self, dataset: str, key: str) -> bool:
        kind = self.kind_of(key)
        return kind == CLEAN or (kind == "measure" and len(self.strengths(dataset, key)) == 1)

    def read_table(self, dataset: str, key: str, measurement: str = "accuracy") -> "pd.DataFrame":
        """Return a key's values at the strengths at which it was evaluated.

        Returns:
            One row per network and strength: `architecture` (int64 or text), `strength`, `value`, and `n_images`
            (float64, NaN if unknown).
        """
        import pandas as pd

        tables = []
        folders = self._folders_with(dataset, key, measurement)
        for folder in folders:
            for block in self._blocks_of(folder, dataset, key, measurement):
                rows = self._select_rows(folder, block)
                is_nested = not has_single_column(measurement)
                values = rows.nested_values(measurement) if is_nested else rows.columns[measurement]
                n_images = folder.count_images(dataset, key) if rows.n_images is None else rows.n_images
                columns = {"architecture": rows.architectures, "strength": rows.strengths}
                tables.append(pd.DataFrame({**columns, "value": values, "n_images": n_images}))
        table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=VALUE_COLUMNS, dtype=float)
        return table.drop_duplicates(["architecture", "strength"], keep="last") if len(folders) > 1 else table

    def _blocks_of(
        self,
        folder: DatasetFolder,
        dataset: str,
        key: str,
        measurement: str,
        architecture: ArchitectureId | None = None,
    ) -> Iterable[RowBlock]:
        """Return one folder's rows for one architecture or all; scalar measurements stay in memory."""
        if not has_single_column(measurement):
            return folder.iter_rows(dataset, key, measurement, architecture)
        cache_key = (folder, dataset, paper_key(key), measurement)
        if cache_key not in self._numbers:
            self._numbers[cache_key] = read_single_column(folder, dataset, key, measurement)
        rows = self._numbers[cache_key]
        return [rows if architecture is None else rows.take(rows.architectures == architecture)]

    def accuracies(self, dataset: str, column: str = "accuracy") -> "pd.DataFrame":
        """Return all accuracies of a dataset, or the numbers of images (`n_images`) on which they were computed.

        Accuracies of attacks do not include the clean accuracies.

        Returns:
            float64 by architecture (index, ascending) and (key, strength). Keys are in the paper's style and in the
            order of `TASKS`, and strengths are ascending. Missing evaluations are NaN. There are no columns if all are
            missing.
        """
        import pandas as pd

        rows = self._collect([dataset])
        if not len(rows):
            return pd.DataFrame()
        networks, positions = np.unique(rows["network"].to_numpy(), return_inverse=True)
        evaluations = rows.groupby(["key", "strength"], observed=True)
        # An architecture's numbers must be contiguous, because the last bits of their sum depend on the memory layout.
        values = np.full((len(networks), evaluations.ngroups), np.nan)
        values[positions, evaluations.ngroup()] = rows[column]
        names = pd.MultiIndex.from_tuples(evaluations.groups.keys(), names=["key", "strength"])  # type: ignore[arg-type]
        return pd.DataFrame(values, pd.Index(networks, name="architecture"), names, copy=False)

    @property
    def table(self) -> "pd.DataFrame":
        """All accuracies.

        Returns:
            One row per dataset, key, strength and network: `dataset` and `key` (categories, in the paper's style),
            `strength` (float64), `network` (int64 or text), `accuracy`, `n_images` (NaN if unknown), `kind` (category:
            ``counted``, since all images were evaluated) and `standard_error` (over samples of images; NaN if the
            number of images is unknown). Rows of `robust201.sampling.estimate` also have these columns, but their
            errors come from the choice of images, and are 0 for the kind ``counted``; the other kind is ``estimated``.
        """
        return self._collect(self.data)

    def _collect(self, datasets: Sequence[str]) -> "pd.DataFrame":
        """Return the rows of `table` for some datasets."""
        import pandas as pd

        keys = sort_by_task_order(self.keys_all)
        pairs = [pair for pair in itertools.product(datasets, keys) if self.has(*pair)]
        tables = [self.read_table(*pair) for pair in pairs]
        if not tables:
            return pd.DataFrame(columns=TABLE_COLUMNS)
        rows = pd.concat(tables, ignore_index=True).rename(columns={"architecture": "network", "value": "accuracy"})
        lengths = list(map(len, tables))
        for name, values in zip(("dataset", "key"), zip(*pairs, strict=True), strict=True):
            texts = list(map(paper_key, values)) if name == "key" else list(values)
            categories = list(dict.fromkeys(texts))
            codes = np.repeat([categories.index(text) for text in texts], lengths)
            rows[name] = pd.Categorical.from_codes(codes, pd.Index(categories))
        rows["kind"] = pd.Categorical.from_codes(np.zeros(len(rows), np.int8), pd.Index(["counted"]))
        rows["standard_error"] = np.sqrt(rows["accuracy"] * (1 - rows["accuracy"]) / rows["n_images"])
        return rows[TABLE_COLUMNS]

    def iter_rows(
        self, dataset: str, key: str, measurement: str, network: ArchitectureId | None = None
    ) -> Iterator[RowBlock]:
        """Read a measurement of all networks or of one network, with a few rows in memory at a time.

        The last folder is read first; its rows are skipped in the other folders.
        """
        architecture = network
        if isinstance(network, str) and self._separates_weights:
            architecture = parse_architecture_id(network.rpartition(WEIGHTS_SEPARATOR)[0] or network)
        seen: set[tuple[Any, float]] = set()
        folders = self._folders_with(dataset, key, measurement)
        for folder in reversed(folders):
            seen_in_folder: set[tuple[Any, float]] = set()
            for block in self._blocks_of(folder, dataset, key, measurement, architecture):
                rows = self._select_rows(folder, block, network)
                if len(folders) > 1:
                    identities = list(zip(rows.architectures.tolist(), rows.strengths.tolist(), strict=True))
                    rows = rows.take(np.array([identity not in seen for identity in identities], bool))
                    seen_in_folder.update(identities)
                if len(rows):
                    yield rows
            seen |= seen_in_folder

    def _select_rows(self, folder: DatasetFolder, rows: RowBlock, network: ArchitectureId | None = None) -> RowBlock:
        names, positions = self.name_networks(folder, rows.architectures, rows.weights)
        if network is not None:
            is_network = names == network
            names, positions = names[is_network], positions[is_network]
        return replace(rows if len(positions) == len(rows) else rows.take(positions), architectures=names)

    def get_uid(self, i: int | str) -> str:
        """Return the id, as text, of the architecture that represents an architecture's isomorphism class."""
        return str(self.meta["ids"][identifier := self._find_id(i)].get("isomorph", identifier))

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


def as_names(names: NameOrNames) -> list[str]:
    """Return a name or several names as a list."""
    return [names] if isinstance(names, str) else [*names]


def _union(name_lists: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for name_list in name_lists for name in name_list))
