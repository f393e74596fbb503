"""Values of several keys as one DataFrame."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from robust201.core.errors import ConfigError
from robust201.core.records import (
    ArchitectureId,
)
from robust201.dataset.arguments import as_name, as_names
from robust201.dataset.layout import (
    CLEAN,
    paper_key,
    parse_architecture_id,
    sort_by_task_order,
)
from robust201.dataset.merged_folders import MergedFolders, NameOrNames
from robust201.dataset.table import is_scalar
from robust201.statistics.intervals import accuracy_intervals

TABLE_COLUMNS = ["dataset", "key", "strength", "network", "accuracy", "n_images", "kind", "standard_error"]


class ResultTables(MergedFolders):
    """Values of several keys as one DataFrame (see `Dataset`)."""

    def _iter_cells(
        self, dataset: str, key: str, measurement: str, network: ArchitectureId | None = None
    ) -> Iterator[tuple[ArchitectureId, float, Any]]:
        """Yield network, strength and value, nested as in JSON files."""
        if is_scalar(measurement):
            table = self.read_table(dataset, key, measurement)
            table = table if network is None else table[table["architecture"] == network]
            values = [None if isinstance(value, float) and math.isnan(value) else value for value in table["value"]]
            yield from zip(table["architecture"].tolist(), table["strength"].tolist(), values, strict=True)
            return
        for rows in self.iter_rows(dataset, key, measurement, network):
            values = rows.nested_values(measurement)
            yield from zip(rows.architectures.tolist(), rows.strengths.tolist(), values, strict=True)

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
            return self.read_table(dataset, key, measurement)
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

    def accuracies(self, dataset: str, column: str = "accuracy") -> pd.DataFrame:
        """Return all accuracies of a dataset, or the numbers of images (`n_images`) on which they were computed.

        Accuracies of attacks do not include the clean accuracies.

        Returns:
            float64 by architecture (index, ascending) and (key, strength). Keys are in the paper's style and in the
            order of `TASKS`, and strengths are ascending. Missing evaluations are NaN. There are no columns if all are
            missing.
        """
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
    def table(self) -> pd.DataFrame:
        """All accuracies.

        Returns:
            One row per dataset, key, strength and network: `dataset` and `key` (categories, in the paper's style),
            `strength` (float64), `network` (int64 or text), `accuracy`, `n_images` (NaN if unknown), `kind` (category:
            ``counted``, since all images were evaluated) and `standard_error` (over samples of images; NaN if the
            number of images is unknown). Rows of `robust201.sampling.estimate` have the same columns, but their errors
            are those of the choice of images: 0 for the kind ``counted``, more for ``estimated``.
        """
        return self._collect(self.data)

    def _collect(self, datasets: Sequence[str]) -> pd.DataFrame:
        """Return the rows of `table` for some datasets."""
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
