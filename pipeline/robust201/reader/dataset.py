"""`RobustnessDataset`, the reader of exported and published datasets.

Its interface and the nesting of results are those of the helper class that the authors published with the dataset
(github.com/steffen-jung/robustness-dataset, robustness_dataset.py), so that scripts written for it keep working. In
addition, it accepts both spellings of a key (``pgd``, ``pgd@Linf``), looks up any architecture of the space, reads
measures and other spaces, and returns results as a pandas DataFrame.
"""

import copy
import operator
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from robust201.core.errors import ArchitectureError, ConfigError, closest
from robust201.core.records import CLEAN_STRENGTH, show_architecture
from robust201.reader.arguments import as_folder, as_name, as_names, as_strength
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import (
    PUBLISHED_DATASETS,
    ResultFiles,
    kind_of,
    spellings,
    values_by_strength,
)
from robust201.reader.value_checks import architecture_of, show_id
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, TASKS
from robust201.tasks.columns import PUBLISHED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from robust201.reader.derived import DerivedMetrics
    from robust201.reader.outcomes import Outcomes


ATTACKS = tuple(TASKS[key].published_key for key in PAPER_KEYS if kind_of(key) == "attack")
"""The paper's attacks, spelled as in the published files."""

Names = str | Sequence[str]


class RobustnessDataset:
    """Results of an exported or published dataset.

    Class attributes describe the published dataset; attributes of an instance describe its folder, in the folder's
    spelling (an export lists its contents in sweep.json, the published dataset only its attacks in meta.json).

    In all methods, an architecture is identified by its id, as a number or text, or by its cell string, and has the
    results of its isomorphism class. Keys may have either spelling. Datasets, keys and measurements are names or lists
    of names, by default all. A strength is an epsilon (in units of 1/255 in an L∞ ball), a severity, or 0 for clean
    images. `weights` is the name of the weights whose results are read; it is needed only if there are several.

    Raises:
        ArchitectureError: there is no such architecture (also a KeyError), or it was not evaluated.
        ConfigError: a name is not text, the key was not evaluated at the strength, there are several weights and none
            was named, or several folders have a measure under different protocols.
        ResultsError: a required file is missing or damaged.

    Attributes:
        path: the folder, or the first of several.
        files: its files.
        meta: content of meta.json: ``ids`` (id → ``nb201-string``, ``isomorph``, if architectures are cells) and
            ``epsilons`` (attack → list, in units of 1/255 for the paper's attacks).
        sweep: content of sweep.json; None for a folder without the file, such as the published dataset, and for several
            folders, since each has its own.
        missing: content of missing.json: strengths that a partial export lacks, {dataset: {key: {id: strengths}}}.
        non_isomorph_ids: ids of the architectures that represent their isomorphism class, as strings.
        weights: names of the weights, if the folder has results of named weights.
        keys_clean: ``["clean"]``.
        keys_adv: adversarial attacks.
        keys_cc: common corruptions.
        keys_measure: measures of the networks themselves.
        keys_other: keys that are unknown to this version.
        keys_all: all keys.
        data: names of the datasets.
        measures: measurements under all keys except measures (see `measurements`).
    """

    # Lists on the class, because scripts for the published helper concatenate them: `keys_clean + keys_adv`.
    keys_clean: list[str] = ["clean"]  # noqa: RUF012
    keys_adv: list[str] = list(ATTACKS)  # noqa: RUF012
    keys_cc: list[str] = list(CORRUPTIONS)  # noqa: RUF012
    keys_measure: list[str] = []  # noqa: RUF012
    keys_other: list[str] = []  # noqa: RUF012
    keys_all: list[str] = ["clean", *ATTACKS, *CORRUPTIONS]  # noqa: RUF012
    data_cifar10, data_cifar100, data_imagenet16 = PUBLISHED_DATASETS
    data: list[str] = list(PUBLISHED_DATASETS)  # noqa: RUF012
    measures: list[str] = list(PUBLISHED)  # noqa: RUF012

    def __init__(self, path: str | Path = "robustness-data", *others: str | Path, weights: str | None = None) -> None:
        """Open a dataset, or overlay several datasets.

        Args:
            path: the folder that contains meta.json and a folder for each dataset.
            others: further folders. Each evaluation (dataset, key, measurement, architecture, strength) is read from
                the first folder that has it (see `sources`).
            weights: name of the weights whose results are read by default; needed only if there are several.

        Raises:
            ConfigError: an argument is not a path, the folders are for different spaces, a dataset has different
                numbers of classes in them, or there are no such weights.
            ResultsError: there is no such folder, or its meta.json is missing or invalid.
            FormatVersionError: sweep.json has a format that is unknown to this version.
        """
        folders = [ResultFiles(as_folder(folder)) for folder in (path, *others)]
        files: ResultFiles = OverlaidFiles(folders) if others else folders[0]
        self._read_from(self._choose(files, weights))

    def _read_from(self, files: ResultFiles) -> None:
        self.files, self.path = files, files.path
        self.meta, self.sweep, self.missing = self.files.meta, self.files.sweep, self.files.missing
        # Equivalent to `files.spec` and `files.isomorph`, but without 31,250 calls.
        rows = self.meta["ids"].items()
        self.map_str_to_id: dict[str, str] = {str(row.get("nb201-string", i)): i for i, row in rows}
        self.non_isomorph_ids: list[str] = [i for i, row in rows if str(row.get("isomorph", i)) == i]
        self.weights = self.files.weight_names
        self.data, self.measures = self.files.datasets, self.files.measures
        by_kind = self.files.keys_by_kind()
        self.keys_clean, self.keys_adv, self.keys_cc = by_kind["clean"], by_kind["attack"], by_kind["corruption"]
        self.keys_measure, self.keys_other = by_kind["measure"], by_kind["other"]
        self.keys_all = self.keys_clean + self.keys_adv + self.keys_cc + self.keys_measure + self.keys_other

    def __repr__(self) -> str:
        has_several_weights = len(self.weights) > 1 and self.files.weights is None
        count = self.files.choosing(self.weights[0] if has_several_weights else None).count_architectures(
            self.data, self.keys_all
        )
        contents = f"{', '.join(self.data)}; {len(self.keys_all)} keys, {count:,} architectures"
        source = self.files.describe_source(self.data, self.keys_all)
        folders = self.files.layers if isinstance(self.files, OverlaidFiles) else (self.files,)
        paths = ", ".join(str(folder.path) for folder in folders)
        weights = f"; weights {', '.join(self.weights)}" if has_several_weights else ""
        return f"<{type(self).__name__} {paths}: {contents}{f'; {source}' if ', but' in source else ''}{weights}>"

    def select(self, networks: "Names | Sequence[int] | None" = None, keys: Names | None = None) -> Self:
        """Return a dataset with the results of some networks and keys.

        If architectures have accuracies of several sets of weights and none was chosen, each set is a separate network,
        named ``ARCHITECTURE@WEIGHTS``, such as ``resnet18@plain-e30-s0``.

        Args:
            networks: names of networks, or ids or cell strings of architectures, which select all their trainings.
            keys: keys in addition to clean images.

        Raises:
            ConfigError: there is no such network or key.
        """
        from robust201.reader.networks import narrow_files

        names = None
        if networks is not None:
            listed: list[int | str] = [networks] if isinstance(networks, str) else [*networks]
            names = [self._find_network_name(network) for network in listed]
        selected = copy.copy(self)
        selected._read_from(narrow_files(self.files, names, None if keys is None else as_names(keys, "key")))
        return selected

    def _find_network_name(self, network: int | str) -> str:
        """Return a network's name in the files; an unknown name is returned unchanged, to be rejected later."""
        name = str(network)
        try:
            return self.get_uid(int(name) if name.isdecimal() and self.files.space is not None else name)
        except ArchitectureError:
            return name

    def query(
        self,
        data: Names | None = None,
        key: Names | None = None,
        measure: Names | None = None,
        missing_ok: bool = False,
        tqdm: Any = None,
        *,
        weights: str | None = None,
    ) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        """Read results in the nesting of the files; by default all `measurements` of each key.

        A missing file is an error unless `missing_ok` is true. `tqdm` shows progress: the module, its class, or a
        compatible object.

        Returns:
            {dataset: {key: {measure: {id: value}}}}, with keys in the caller's spelling. Ids are strings; only
            evaluated architectures are included (see `get_uid`). There is one value for ``clean`` and for a measure
            with one strength, else a list by strength (see `strengths`); means over no image are None. As in the
            published helper, the corruptions of ImageNet16-120, which were never published, give an empty entry if
            they have no files.
        """
        files = self._choose(self.files, weights)
        datasets = self.data if data is None else as_names(data, "dataset")
        keys = self.keys_all if key is None else as_names(key, "key")
        requested = None if measure is None else as_names(measure, "measurement")
        jobs = [(dataset, name, requested or self.measurements(dataset, name)) for dataset in datasets for name in keys]
        total = sum(len(measures) for _, _, measures in jobs)
        bar = getattr(tqdm, "tqdm", tqdm)(total=total) if tqdm is not None else None
        result: dict[str, dict[str, dict[str, dict[str, Any]]]] = {dataset: {} for dataset in datasets}
        for dataset, name, measures in jobs:
            by_measure: dict[str, dict[str, Any]] = {}
            absent = self._is_intentionally_absent(dataset, name, measures, explicit=key is not None)
            for measurement in () if absent else measures:
                if not (missing_ok and files.find(dataset, name, measurement) is None):
                    by_measure[measurement] = files.read(dataset, name, measurement)
            if by_measure or absent:
                result[dataset][name] = by_measure
            if bar is not None:
                bar.update(len(measures))
        if bar is not None:
            bar.close()
        return result

    def measurements(self, dataset: str, key: str) -> list[str]:
        """Return the measurements under a key: `measures`, a measure's columns, or those stored for an unknown key."""
        return self.files.measurements_of(as_name(dataset, "dataset"), as_name(key, "key"))

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Return the strengths of a key's values, in order.

        Returns:
            Epsilons (in units of 1/255 in an L∞ ball), severities, or ``(0.0,)`` for ``clean`` and measures.
        """
        return self.files.strengths(as_name(dataset, "dataset"), as_name(key, "key"))

    def get_uid(self, i: int | str) -> str:
        """Return the id, as text, of the evaluated architecture that an architecture is isomorphic to."""
        return self.files.isomorph(self._resolve(i))

    def id_to_string(self, i: int | str) -> str:
        """Return the cell string of an id, or the id itself in a space without cells."""
        return self.files.spec(self._resolve(i))

    def string_to_id(self, s: str) -> str:
        """Return the id, as text, of a cell string."""
        return self._resolve(s)

    def draw_arch(self, s: str | None = None, i: int | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Draw a cell, by its string or id; by default on pyplot's current axes, as the published helper does."""
        architecture = s if s is not None else i
        if architecture is None:
            raise ArchitectureError("Drawing failed: expected a cell string or an id, got neither. Pass s=… or i=….")
        identifier = self._resolve(architecture)
        space = self.files.space
        if space is None:
            raise ArchitectureError(
                f"Drawing failed for {show_architecture(identifier)}: expected a cell, got an "
                f"architecture of the space {self.files.space_name or 'of these files'}. Only cells can be drawn."
            )
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.gca()
        return space.draw_cell(ax, self.id_to_string(identifier), f"#{identifier}")

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

        Without a strength, return the list of accuracies at all `strengths`, or a number for ``clean``.
        """
        identifier = self._resolve(architecture)
        what = f"Looking up {show_id(identifier)}"
        strength_value = None if strength is None else self._strength(what, dataset, key, strength)
        if strength_value == CLEAN_STRENGTH and strength_value not in self.strengths(dataset, key):
            key = "clean"
        accuracies: float | list[float] = self.value(architecture, dataset, key, weights=weights)
        if strength_value is None:
            return list(accuracies) if isinstance(accuracies, list) else accuracies
        strengths = self.strengths(dataset, key)
        each = values_by_strength(accuracies, strengths, f"{show_id(identifier)} {dataset} {key} accuracy")
        accuracy: float = each[strengths.index(strength_value)]
        return accuracy

    def estimates(self, dataset: str | None = None, key: str | None = None) -> "pd.DataFrame":
        """Return the accuracies that were estimated from samples of the images; empty if there are none.

        No other method returns estimates: accuracies, ranks and figures are based on counts.

        Returns:
            One row per network, key and strength: `dataset`, `key`, `architecture`, `strength`, `value`,
            `standard_error`, `low` and `high` (the 95% interval), `n_seen`, `n_images` and `design`.
        """
        from robust201.reader.estimates import read_estimates

        frame = read_estimates(self.files)
        for column, name in (("dataset", dataset), ("key", key)):
            if name is not None:
                frame = frame[frame[column].isin(spellings(as_name(name, column)))]
        return frame.reset_index(drop=True)

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

        The value is the same as in `query`: a single value, or a list in the order of `strengths`. A JSON file is read
        as a whole and cached (see `reader.file_cache`), whereas only a part of a Parquet file is read: convert JSON
        files of gigabytes with ``robust201 convert`` first. Threads and forked processes may share a dataset.
        """
        identifier, uid = self._resolve(architecture), self.get_uid(architecture)
        for what, name in (("dataset", dataset), ("key", key), ("measurement", measure)):
            as_name(name, what)
        try:
            return self._choose(self.files, weights).value(dataset, key, measure, uid)
        except KeyError as error:
            if isinstance(error, ArchitectureError):
                raise
            raise ArchitectureError(
                f"Looking up {measure} failed for {show_id(identifier)}: {show_id(uid)} was not evaluated on {dataset} "
                f"under {key}. Evaluate it, or look up another architecture."
            ) from error

    def outcomes(
        self, dataset: str, key: str, strength: float | None = None, *, weights: str | None = None
    ) -> "Outcomes":
        """Return per-image outcomes: which images each architecture classified correctly.

        The strength may be left out if there is only one. At 0, an attack has the clean outcomes.

        Returns:
            The evaluated architectures with outcomes, and their packed bits in the order of `images`.

        Raises:
            ResultsError: the dataset has no outcomes, or several folders have outcomes for different images.
        """
        from robust201.reader.outcomes import read_outcomes

        known_strengths = self.strengths(dataset, key)
        if strength is None and len(known_strengths) > 1:
            strengths = ", ".join(f"{known:g}" for known in known_strengths)
            raise ConfigError(
                f"Reading outcomes failed for {dataset} {key}: expected a strength of {strengths}, got none. "
                "Name a strength."
            )
        strength_value = (
            known_strengths[0] if strength is None else self._strength("Reading outcomes", dataset, key, strength)
        )
        if strength_value == CLEAN_STRENGTH and strength_value not in known_strengths:
            key = "clean"
        return read_outcomes(self._choose(self.files, weights), dataset, key, strength_value)

    def images(self, dataset: str) -> "pd.DataFrame":
        """Return the table of the images of `outcomes`.

        Returns:
            For each position in the outcomes: `row` in the dataset's split, `label`, and `sha256` of the pixels (uint8,
            channels first).
        """
        from robust201.reader.outcomes import images_frame

        return images_frame(self.files, as_name(dataset, "dataset"))

    def sources(self) -> "pd.DataFrame":
        """Return which folder results are read from; for overlaid folders this shows what each of them adds.

        Returns:
            One row per dataset, key and folder from which results are read: `dataset`, `key`, `strengths` (a tuple,
            ascending), `architectures` (number of evaluated ones) and `folder`. Only the first available measurement
            is considered, which is accuracy if there are accuracies.
        """
        from robust201.reader.frames import list_sources

        return list_sources(self.files, self.data, self.keys_all)

    @overload
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
        ties: None = None,
    ) -> "pd.Series[int]": ...

    @overload
    def rank(
        self,
        dataset: str,
        key: str,
        strength: float | None = None,
        *,
        isomorphs: bool = False,
        weights: str | None = None,
        ties: float,
    ) -> "pd.DataFrame": ...

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
        ties: float | None = None,
    ) -> "pd.Series[int] | pd.DataFrame":
        """Rank architectures by accuracy, or by the numbers of a measure.

        Args:
            dataset: name of the dataset.
            key: the key.
            strength: strength; by default, architectures are ranked by their mean over all strengths.
            measure: the measurement.
            lowest_first: whether the lowest value has rank 1 instead of the highest.
            isomorphs: whether to include all architectures of an evaluated isomorphism class.
            weights: name of the weights.
            ties: level of significance, such as 0.05, at which architectures are compared with the best one; for
                accuracies at one strength only.

        Returns:
            Rank by architecture (int64; architectures int64 or text), starting at 1; equal values share the lowest
            rank. Architectures without a value at the strength are left out. With `ties`, a DataFrame by architecture
            with `rank`, `value`, `p_value` (of the difference from the best one, Holm-adjusted) and `tied`: whether the
            difference is not significant on these images (see `statistics.significance.ties_with_best`).

        Warns:
            UnpairedTestWarning: `ties` is given, and per-image outcomes are not stored.
        """
        from robust201.reader.frames import rank_by_value

        if weights is None and (by_training := self.select()).files is not self.files:
            options: Any = {"measure": measure, "lowest_first": lowest_first, "isomorphs": isomorphs, "ties": ties}
            ranked: pd.Series[int] | pd.DataFrame = by_training.rank(dataset, key, strength, **options)
            return ranked
        known_strengths = self.strengths(dataset, key)
        ranked_strengths = known_strengths if strength is None else (self._strength("Ranking", dataset, key, strength),)
        frame = self.to_frame(dataset, key, measure, isomorphs=isomorphs, weights=weights)
        what = f"{dataset} {key} {measure}"
        if ties is None:
            return rank_by_value(frame, ranked_strengths, lowest_first=lowest_first, what=what)
        if measure != "accuracy" or lowest_first or len(ranked_strengths) != 1:
            raise ConfigError(
                f"Ranking with ties failed for {what}: expected accuracies at one strength, the highest first, got "
                f"{len(ranked_strengths)} strengths. Name a strength, or rank without ties."
            )
        from robust201.reader.error_bars import UnpairedTestWarning, evaluated_image_count, rank_with_ties
        from robust201.reader.outcomes import has_outcomes_of

        files = self._choose(self.files, weights)
        n_images = evaluated_image_count(files, dataset, key)
        stored = (
            "clean" if ranked_strengths[0] == CLEAN_STRENGTH and ranked_strengths[0] not in known_strengths else key
        )
        outcomes = (
            self.outcomes(dataset, key, ranked_strengths[0], weights=weights)
            if has_outcomes_of(files, dataset, stored)
            else None
        )
        ranked, compared = rank_with_ties(frame, ranked_strengths[0], n_images, outcomes, level=ties, what=what)
        if not compared.paired:
            warnings.warn(
                "Networks are compared by accuracy alone, because per-image outcomes are not stored: "
                "differences that a paired test would detect may be missed. Measure `predictions`, and export with "
                "--outcomes",
                UnpairedTestWarning,
                stacklevel=2,
            )
        return ranked

    def metrics(
        self,
        datasets: Names | None = None,
        keys: Names | None = None,
        *,
        reference: int | str | None = None,
        ties: float = 0.05,
        n_draws: int = 0,
        seed: int = 0,
    ) -> "DerivedMetrics":
        """Compute rankings with their uncertainty, and derived metrics.

        If architectures have several sets of weights, each set is a separate network (see `select`).

        Args:
            datasets: names of datasets.
            keys: keys.
            reference: network that corruption errors are relative to.
            ties: level of significance for ties with the best network.
            n_draws: number of bootstrap draws for intervals of medians, ranks and rank correlations, at least 2; 0 for
                no intervals.
            seed: seed of the bootstrap draws.

        Raises:
            ConfigError: there is no such dataset, key or reference, the level is not between 0 and 1, or there is a
                single draw.
            ResultsError: per-image outcomes contradict the accuracies.
        """
        from robust201.reader.derived import derive_metrics

        datasets_and_keys = (
            (None if names is None else as_names(names, what))
            for names, what in ((datasets, "datasets"), (keys, "keys"))
        )
        network = None if reference is None else architecture_of(self.get_uid(reference))
        files = self.select().files
        return derive_metrics(files, *datasets_and_keys, reference=network, level=ties, n_draws=n_draws, seed=seed)

    @overload
    def worst_case(
        self,
        dataset: str,
        tasks: Sequence[tuple[str, float]],
        *,
        weights: str | None = None,
        intervals: Literal[False] = False,
    ) -> "pd.Series[float]": ...

    @overload
    def worst_case(
        self,
        dataset: str,
        tasks: Sequence[tuple[str, float]],
        *,
        weights: str | None = None,
        intervals: Literal[True],
    ) -> "pd.DataFrame": ...

    def worst_case(
        self,
        dataset: str,
        tasks: Sequence[tuple[str, float]],
        *,
        weights: str | None = None,
        intervals: bool = False,
    ) -> "pd.Series[float] | pd.DataFrame":
        """Return the fraction of images that each architecture classifies correctly under all of several tasks.

        Args:
            dataset: name of the dataset.
            tasks: keys and strengths; clean images are ``("clean", 0)``.
            weights: name of the weights.
            intervals: whether to return 95% intervals as well.

        Returns:
            Accuracies of the architectures that have outcomes for all tasks; with intervals, a DataFrame with
            `accuracy`, `low` and `high`.

        Raises:
            ConfigError: `tasks` is empty.
            ResultsError: outcomes of a task are not stored.
        """
        from robust201.reader.derived import worst_case_accuracies

        if not tasks:
            raise ConfigError(
                f"Computing the worst case failed for {dataset}: expected at least one task, got none. Name tasks."
            )
        outcomes = [self.outcomes(dataset, key, strength, weights=weights) for key, strength in tasks]
        accuracies = worst_case_accuracies(outcomes)
        if not intervals:
            return accuracies
        low, high = accuracy_intervals(accuracies, outcomes[0].n_images)
        return accuracies.to_frame("accuracy").assign(low=low, high=high)

    def _strength(self, what: str, dataset: str, key: str, strength: float) -> float:
        return as_strength(strength, self.strengths(dataset, key), f"{what} failed for {dataset} {key}")

    def join(
        self,
        table: "str | Path | pd.DataFrame",
        data: Names | None = None,
        key: Names | None = None,
        *,
        weights: str | None = None,
    ) -> "pd.DataFrame":
        """Join accuracies with another table about the same architectures.

        The table is a DataFrame, CSV or Parquet file with a column that identifies architectures (see
        `reader.joined_tables.NAMING_COLUMNS`) by id, cell string or operations, and optionally a column `dataset`; or
        the published JSON file of NAS-RobBench-201 or NAS-Bench-Suite-Zero, or the pickle file of HW-NAS-Bench.

        Returns:
            One row per dataset and evaluated architecture on either side: `architecture`, `spec`, `dataset`, one column
            per key and strength, such as ``clean`` and ``pgd:1``, and the table's columns of numbers; `` (joined)`` is
            appended to a name that exists already.

        Raises:
            ConfigError: there is no such file, or it has no column to join by, no numbers, or duplicate rows.
            ResultsError: the file is damaged or has an unknown format.
            ArchitectureError: a row's architecture is not in the space.
        """
        from robust201.reader.joined_tables import join_tables

        return join_tables(self.to_frame(data, key, weights=weights), self.read_table(table), self.files)

    def read_table(self, table: "str | Path | pd.DataFrame") -> "pd.DataFrame":
        """Read a table (see `join`): one row per evaluated architecture and, if the table has the column, dataset."""
        from robust201.reader.joined_tables import read_joined

        return read_joined(table, self.files, self._resolve)

    def to_frame(
        self,
        data: Names | None = None,
        key: Names | None = None,
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
            key: keys.
            measure: the measurement. Values other than numbers are nested lists or dictionaries as in the files.
            wide: whether to return one row per architecture and dataset, with columns (key, strength).
            isomorphs: whether to include all architectures of an evaluated isomorphism class.
            weights: name of the weights.
            intervals: whether to add the bounds `low` and `high` of each accuracy's 95% interval for sampling of images
                (see `statistics.intervals.accuracy_intervals`); not with `wide`.

        Returns:
            Columns `architecture` (int64, or text in spaces without indices), `isomorph` (the evaluated architecture,
            likewise), `spec` (the cell string, or the id), `dataset`, `key` (categories), `strength` (float64; 0 for
            ``clean``) and `value`. Attacks start with the clean value at epsilon 0, if the folder has it: a clean
            evaluation therefore has one row under ``clean`` and one under every attack, except for attacks evaluated at
            0 themselves, such as grids of rotations. For overlaid folders there is also `source`, the folder that a
            value was read from, unless `wide` is true.
        """
        from robust201.reader.frames import read_frame

        datasets = None if data is None else as_names(data, "dataset")
        keys = None if key is None else as_names(key, "key")
        measure = as_name(measure, "measurement")
        if intervals and (wide or measure != "accuracy"):
            raise ConfigError(
                f"Making a table failed for {measure}: intervals are available only for accuracies in the long form, "
                f"got {'the wide form' if wide else 'another measurement'}. Leave `wide` or `intervals` out."
            )
        files = self._choose(self.files, weights)
        frame = read_frame(files, datasets, keys, measure, wide=wide, isomorphs=isomorphs)
        if not intervals:
            return frame
        from robust201.reader.error_bars import add_intervals

        return add_intervals(frame, files)

    @staticmethod
    def _choose(files: ResultFiles, weights: str | None) -> ResultFiles:
        return files.choosing(None if weights is None else as_name(weights, "weights"))

    def _resolve(self, architecture: int | str) -> str:
        if isinstance(architecture, str):
            name = self.map_str_to_id.get(architecture, architecture)
        else:
            try:
                # Accept NumPy integers, but not bool, which is a subclass of int.
                name = repr(architecture) if isinstance(architecture, bool) else str(operator.index(architecture))
            except TypeError:
                name = repr(architecture)
        if name in self.meta["ids"]:
            return name
        space = self.files.space
        if space is None:
            raise ArchitectureError(
                f"Looking up an architecture failed for {self.path}: expected one of its ids, got {architecture!r}."
                f"{closest(name, self.meta['ids'])}"
            )
        if "|" in name:
            space.parse(name)  # raises an error that describes the problem
        raise ArchitectureError(
            f"Looking up an architecture failed for {architecture!r}: expected an id from 0 to "
            f"{len(self.meta['ids']) - 1} or a cell string such as {self.meta['ids']['0']['nb201-string']}, "
            "got neither. Give a number or a string of this form."
        )

    def _is_intentionally_absent(self, dataset: str, key: str, measures: Sequence[str], *, explicit: bool) -> bool:
        """Return whether a key without files is not an error: it is not in the sweep, or was never published."""
        if any(self.files.find(dataset, key, measure) is not None for measure in measures):
            return False
        planned = self.files.planned(dataset)
        if planned is not None:
            if any(spelling in planned for spelling in spellings(key)):
                return False
            if not explicit:
                return True
        return dataset == self.data_imagenet16 and kind_of(key) == "corruption"
