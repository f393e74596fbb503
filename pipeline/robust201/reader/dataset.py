"""Reading an exported dataset, or the published one: `RobustnessDataset`.

The interface and the nesting of answers are those of the helper class that the authors publish with the dataset
(github.com/steffen-jung/robustness-dataset, robustness_dataset.py), so that scripts written for it go on working.
Beyond it, both spellings of a key are understood (``pgd``, ``pgd@Linf``), any architecture of the space can be looked
up, measures and other spaces are read, and results come as a pandas DataFrame.
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
"""The paper's attacks as the published files spell them."""

Names = str | Sequence[str]


class RobustnessDataset:
    """Results of an exported or published dataset.

    Class attributes name what the published dataset holds; an instance names what its folder holds, in the folder's
    spelling, as far as the folder says (an export does in sweep.json, the published dataset only in its epsilons).

    In all methods, an architecture is named by its id, as a number or text, or its cell string, and has the results of
    its isomorphism class; keys are taken in either spelling; datasets, keys and measurements are names or lists of
    them, by default all. A strength is an epsilon, in units of 1/255 in an L∞ ball, a severity, or 0 for clean images.
    `weights` names those whose results are read, and may be left out where there is one choice.

    Raises:
        ArchitectureError: there is no such architecture (a KeyError too), or it was not evaluated.
        ConfigError: a name is no text, or the key was not evaluated at the strength, or there are several weights and
            none is named, or several folders have a measure under different protocols.
        ResultsError: a file that was asked for is missing or damaged.

    Attributes:
        path: the folder; the first of several.
        files: its files.
        meta: content of meta.json: ``ids`` (id → ``nb201-string``, ``isomorph``, where architectures are cells) and
            ``epsilons`` (attack → list, in units of 1/255 for the paper's).
        sweep: content of sweep.json, or None in a folder that has none, such as the published dataset, and of several
            folders, which have each their own.
        missing: content of missing.json: what a partial export lacks, {dataset: {key: {id: strengths}}}.
        non_isomorph_ids: ids of the architectures that stand for their isomorphism class, as strings.
        weights: names of the weights whose results the folder has, where it has those of several per architecture.
        keys_clean: ``["clean"]``.
        keys_adv: the adversarial attacks.
        keys_cc: the common corruptions.
        keys_measure: measures of the networks themselves.
        keys_other: keys that this version does not know, with the strengths that the folder names.
        keys_all: all keys.
        data: the datasets.
        measures: the measurements under the keys that are no measures (see `measurements`).
    """

    # Lists, and on the class, because scripts for the published helper add them up: `keys_clean + keys_adv`.
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
        """Open a dataset, or see several as one.

        Args:
            path: the folder that holds meta.json and a folder for each dataset.
            others: further folders. Of each evaluation (dataset, key, measurement, architecture, strength) the first
                folder that has it answers (see `sources`).
            weights: whose results a query gives that names none; may be left out where there is one choice.

        Raises:
            ConfigError: one is no path, or they are of different spaces, or a dataset has different classes in them, or
                there are no such weights.
            ResultsError: there is no such folder, or no sound meta.json in it.
            FormatVersionError: sweep.json is of a format that this version does not know.
        """
        folders = [ResultFiles(as_folder(folder)) for folder in (path, *others)]
        files: ResultFiles = OverlaidFiles(folders) if others else folders[0]
        self._read_from(self._choose(files, weights))

    def _read_from(self, files: ResultFiles) -> None:
        self.files, self.path = files, files.path
        self.meta, self.sweep, self.missing = self.files.meta, self.files.sweep, self.files.missing
        # As `files.spec` and `files.isomorph` say, without 31,250 calls.
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
        several = len(self.weights) > 1 and self.files.weights is None
        count = self.files.choosing(self.weights[0] if several else None).count_architectures(self.data, self.keys_all)
        held = f"{', '.join(self.data)}; {len(self.keys_all)} keys, {count:,} architectures"
        source = self.files.describe_source(self.data, self.keys_all)
        folders = self.files.layers if isinstance(self.files, OverlaidFiles) else (self.files,)
        paths = ", ".join(str(folder.path) for folder in folders)
        weights = f"; weights {', '.join(self.weights)}" if several else ""
        return f"<{type(self).__name__} {paths}: {held}{f'; {source}' if ', but' in source else ''}{weights}>"

    def select(self, networks: "Names | Sequence[int] | None" = None, keys: Names | None = None) -> Self:
        """Return the results of some networks and keys, as a dataset of its own.

        Where the folder has accuracies of several weights per architecture and none was chosen, every training of an
        architecture is a network of its own, named ``ARCHITECTURE@WEIGHTS``, such as ``resnet18@plain-e30-s0``.

        Args:
            networks: names of networks, or ids or cell strings of architectures, which stand for all their trainings.
            keys: key or keys; clean images stay.

        Raises:
            ConfigError: there is no such network or key.
        """
        from robust201.reader.networks import narrow_files

        named = None
        if networks is not None:
            listed: list[int | str] = [networks] if isinstance(networks, str) else [*networks]
            named = [self._network_name(one) for one in listed]
        selected = copy.copy(self)
        selected._read_from(narrow_files(self.files, named, None if keys is None else as_names(keys, "key")))
        return selected

    def _network_name(self, network: int | str) -> str:
        """Return the name that a network has in the files; an unknown one stays, to be rejected."""
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
        """Read results as they lie in the files, of each key its `measurements`.

        What has no file is an error, or left out if `missing_ok`. Progress is shown by `tqdm`: the module, its class,
        or anything like them.

        Returns:
            {dataset: {key: {measure: {id: value}}}}, keys spelled as asked. Ids are strings; only evaluated
            architectures have one (see `get_uid`). There is one value for ``clean`` and a measure of one strength, else
            a list by strength (see `strengths`); means over no image are None. As with the published helper,
            corruptions of ImageNet16-120, which were never published, give an empty entry where they have no files.
        """
        files = self._choose(self.files, weights)
        datasets = self.data if data is None else as_names(data, "dataset")
        keys = self.keys_all if key is None else as_names(key, "key")
        asked = None if measure is None else as_names(measure, "measurement")
        jobs = [(dataset, name, asked or self.measurements(dataset, name)) for dataset in datasets for name in keys]
        total = sum(len(measures) for _, _, measures in jobs)
        bar = getattr(tqdm, "tqdm", tqdm)(total=total) if tqdm is not None else None
        result: dict[str, dict[str, dict[str, dict[str, Any]]]] = {dataset: {} for dataset in datasets}
        for dataset, name, measures in jobs:
            found: dict[str, dict[str, Any]] = {}
            absent = self._absent_on_purpose(dataset, name, measures, explicit=key is not None)
            for measurement in () if absent else measures:
                if not (missing_ok and files.find(dataset, name, measurement) is None):
                    found[measurement] = files.read(dataset, name, measurement)
            if found or absent:
                result[dataset][name] = found
            if bar is not None:
                bar.update(len(measures))
        if bar is not None:
            bar.close()
        return result

    def measurements(self, dataset: str, key: str) -> list[str]:
        """List what is measured under a key: `measures`, the columns of a measure, or whatever an unknown key has."""
        return self.files.measurements_of(as_name(dataset, "dataset"), as_name(key, "key"))

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Strengths that the values of a key stand for, in order.

        Returns:
            Epsilons (in units of 1/255 in an L∞ ball), severities, or ``(0.0,)`` for ``clean`` and a measure.
        """
        return self.files.strengths(as_name(dataset, "dataset"), as_name(key, "key"))

    def get_uid(self, i: int | str) -> str:
        """Return the id, as text, of the evaluated architecture that an architecture is isomorphic to."""
        return self.files.isomorph(self._resolve(i))

    def id_to_string(self, i: int | str) -> str:
        """Return the cell string of an id; of a space without cells the id."""
        return self.files.spec(self._resolve(i))

    def string_to_id(self, s: str) -> str:
        """Return the id, as text, of a cell string."""
        return self._resolve(s)

    def draw_arch(self, s: str | None = None, i: int | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Draw a cell, by its string or id; by default on pyplot's current axes, as the published helper does."""
        architecture = s if s is not None else i
        if architecture is None:
            raise ArchitectureError(
                "Drawing failed for no architecture: expected a cell string or an id, got neither. Give s=… or i=…."
            )
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
        """Look up the accuracy of any architecture of the space: at a strength, or a list of those at all `strengths`.

        Without a strength, ``clean`` has one number.
        """
        identifier = self._resolve(architecture)
        what = f"Looking up {show_id(identifier)}"
        wanted = None if strength is None else self._strength(what, dataset, key, strength)
        if wanted == CLEAN_STRENGTH and wanted not in self.strengths(dataset, key):
            key = "clean"
        accuracies: float | list[float] = self.value(architecture, dataset, key, weights=weights)
        if wanted is None:
            return list(accuracies) if isinstance(accuracies, list) else accuracies
        strengths = self.strengths(dataset, key)
        each = values_by_strength(accuracies, strengths, f"{show_id(identifier)} {dataset} {key} accuracy")
        found: float = each[strengths.index(wanted)]
        return found

    def estimates(self, dataset: str | None = None, key: str | None = None) -> "pd.DataFrame":
        """Return the accuracies that were estimated from samples of the images; empty where all were counted.

        No other method gives estimates: accuracies, ranks and figures are of counts.

        Returns:
            A row per network, key and strength: `dataset`, `key`, `architecture`, `strength`, `value`,
            `standard_error`, `low` and `high` (the 95% interval), `n_seen`, `n_images` and `design`.
        """
        from robust201.reader.estimates import read_estimates

        frame = read_estimates(self.files)
        for column, wanted in (("dataset", dataset), ("key", key)):
            if wanted is not None:
                frame = frame[frame[column].isin(spellings(as_name(wanted, column)))]
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
        """Look up a measurement of any architecture of the space; of Parquet without reading the others'.

        The value is that of `query`: one, or a list in the order of `strengths`. A JSON file is read whole, and kept
        for the next look-up (see `reader.file_cache`): convert one of gigabytes to Parquet first, by ``robust201
        convert``. Threads and forks may share this.
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
                f"Looking up {measure} failed for {show_id(identifier)}: expected {show_id(uid)} among the "
                f"architectures evaluated on {dataset} under {key}, got none. Evaluate it, or ask for another."
            ) from error

    def outcomes(
        self, dataset: str, key: str, strength: float | None = None, *, weights: str | None = None
    ) -> "Outcomes":
        """Read which images each architecture classified correctly, where an export has outcomes by image.

        The strength may be left out where there is one. At 0, an attack has the clean outcomes.

        Returns:
            The evaluated architectures that have outcomes, and packed bits of the images of `images`, in their order.

        Raises:
            ResultsError: no folder has them, or several folders have them of different images.
        """
        from robust201.reader.outcomes import read_outcomes

        known = self.strengths(dataset, key)
        if strength is None and len(known) > 1:
            strengths = ", ".join(f"{one:g}" for one in known)
            raise ConfigError(
                f"Reading outcomes failed for {dataset} {key}: expected a strength of {strengths}, got none. Name one."
            )
        wanted = known[0] if strength is None else self._strength("Reading outcomes", dataset, key, strength)
        if wanted == CLEAN_STRENGTH and wanted not in known:
            key = "clean"
        return read_outcomes(self._choose(self.files, weights), dataset, key, wanted)

    def images(self, dataset: str) -> "pd.DataFrame":
        """List the images that `outcomes` are of.

        Returns:
            By position among the outcomes: `row` of the dataset's split, `label`, and `sha256` of the pixels (uint8,
            channels first).
        """
        from robust201.reader.outcomes import images_frame

        return images_frame(self.files, as_name(dataset, "dataset"))

    def sources(self) -> "pd.DataFrame":
        """List which folder answers for what; of several folders this is what each adds to those before it.

        Returns:
            One row per dataset, key and folder that answers for an evaluation of it: `dataset`, `key`, `strengths` (a
            tuple, ascending), `architectures` (how many evaluated ones) and `folder`. What counts is the first
            measurement that there is, accuracies if there are any.
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
        """Rank architectures by accuracy, or by the numbers of a measure, the highest first unless `lowest_first`.

        They are ranked at a strength, by default by the mean over all; with `isomorphs` all architectures whose class
        was evaluated. `ties` is a level of significance, such as 0.05, at which architectures are compared with the
        best (accuracies at one strength only).

        Returns:
            Rank by architecture (int64; architectures int64 or text), from 1; equal values share the best rank among
            them. Those without a value at the strength have none. With `ties` a DataFrame by architecture of `rank`,
            `value`, `p_value` (of the difference from the best, adjusted by Holm) and `tied`: whether these images do
            not tell it from the best (see `statistics.significance.ties_with_best`).

        Warns:
            UnpairedTestWarning: ties are asked for, and outcomes by image are not stored.
        """
        from robust201.reader.frames import rank_by_value

        if weights is None and (by_training := self.select()).files is not self.files:
            options: Any = {"measure": measure, "lowest_first": lowest_first, "isomorphs": isomorphs, "ties": ties}
            ranked: pd.Series[int] | pd.DataFrame = by_training.rank(dataset, key, strength, **options)
            return ranked
        known = self.strengths(dataset, key)
        wanted = known if strength is None else (self._strength("Ranking", dataset, key, strength),)
        frame = self.to_frame(dataset, key, measure, isomorphs=isomorphs, weights=weights)
        what = f"{dataset} {key} {measure}"
        if ties is None:
            return rank_by_value(frame, wanted, lowest_first=lowest_first, what=what)
        if measure != "accuracy" or lowest_first or len(wanted) != 1:
            raise ConfigError(
                f"Ranking with ties failed for {what}: expected accuracies at one strength, the highest first, got "
                f"{len(wanted)} strengths. Name a strength, or rank without ties."
            )
        from robust201.reader.error_bars import UnpairedTestWarning, images_behind, rank_with_ties
        from robust201.reader.outcomes import has_outcomes_of

        files = self._choose(self.files, weights)
        n_images = images_behind(files, dataset, key)
        stored = "clean" if wanted[0] == CLEAN_STRENGTH and wanted[0] not in known else key
        found = (
            self.outcomes(dataset, key, wanted[0], weights=weights) if has_outcomes_of(files, dataset, stored) else None
        )
        ranked, compared = rank_with_ties(frame, wanted[0], n_images, found, level=ties, what=what)
        if not compared.paired:
            warnings.warn(
                "Networks are compared by accuracy alone, since the outcomes of single images are not stored: "
                "differences that a paired test would find may be missed. Measure `predictions`, and export with "
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
        """Compute what follows from the stored results: rankings with their uncertainty, and derived metrics.

        Of several weights per architecture, every training is a network of its own (see `select`). Corruption errors
        are relative to the network `reference`; `ties` is the level of significance for ties with the best. `n_draws`
        bootstrap draws, two or more, give intervals of medians, ranks and rank correlations; 0 for none.

        Raises:
            ConfigError: no such dataset, key or reference, a level not between 0 and 1, or a single draw.
            ResultsError: outcomes by image give other accuracies than the folder's.
        """
        from robust201.reader.derived import derive_metrics

        named = (
            (None if names is None else as_names(names, what))
            for names, what in ((datasets, "datasets"), (keys, "keys"))
        )
        network = None if reference is None else architecture_of(self.get_uid(reference))
        files = self.select().files
        return derive_metrics(files, *named, reference=network, level=ties, n_draws=n_draws, seed=seed)

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
        """Give the share of images that each architecture classifies correctly under every one of several tasks.

        Args:
            dataset: its name.
            tasks: keys and strengths; a clean one is ``("clean", 0)``.
            weights: whose results are read.
            intervals: whether to give 95 % intervals, too.

        Returns:
            Accuracies by architecture, of those that have outcomes of all tasks; with intervals a DataFrame with
            `accuracy`, `low` and `high`.

        Raises:
            ConfigError: no task is named.
            ResultsError: outcomes of a task are not stored.
        """
        from robust201.reader.derived import worst_case_accuracies

        if not tasks:
            raise ConfigError(
                f"Computing the worst case failed for {dataset}: expected one task or more, got none. Name some."
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
        """Put a table of others about the same architectures beside the accuracies.

        The table is a DataFrame, CSV or Parquet file with a column that names architectures (see
        `reader.joined_tables.NAMING_COLUMNS`) by id, cell string or operations, and perhaps a column `dataset`; or, as
        published, the JSON of NAS-RobBench-201 or NAS-Bench-Suite-Zero, or the pickle of HW-NAS-Bench.

        Returns:
            One row per dataset and evaluated architecture that either side has: `architecture`, `spec`, `dataset`, one
            column per key and strength, such as ``clean`` and ``pgd:1``, and the table's columns of numbers, under
            their names, or with `` (joined)`` behind a name that there is already.

        Raises:
            ConfigError: there is no such file, or it has no column to join by, no numbers, or rows that repeat.
            ResultsError: the file is damaged or of an unknown form.
            ArchitectureError: a row names no architecture of the space.
        """
        from robust201.reader.joined_tables import join_tables

        return join_tables(self.to_frame(data, key, weights=weights), self.read_table(table), self.files)

    def read_table(self, table: "str | Path | pd.DataFrame") -> "pd.DataFrame":
        """Read a table of others (see `join`): one row per evaluated architecture and, if it has them, dataset."""
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

        With `wide`, there is one row per architecture and dataset, with columns (key, strength). With `isomorphs`, all
        architectures are there whose isomorphism class was evaluated. `intervals` adds the ends `low` and `high` of a
        95 % interval of each accuracy, for the sampling of the images (see `statistics.intervals.accuracy_intervals`;
        not with `wide`). Values that are no numbers are the nested list or dict of the file.

        Returns:
            Columns `architecture` (int64, or text in spaces without indices), `isomorph` (the architecture evaluated,
            likewise), `spec` (its cell string, or its id), `dataset`, `key` (categories), `strength` (float64; 0 for
            ``clean``) and `value`. Attacks begin with the clean value, as epsilon 0, where the folder has it: a clean
            evaluation so has a row under ``clean`` and one under every attack, but for those evaluated at 0 themselves,
            such as grids of rotations. Of several folders `source` besides, the folder that a value comes from, but
            for `wide`.
        """
        from robust201.reader.frames import read_frame

        datasets = None if data is None else as_names(data, "dataset")
        keys = None if key is None else as_names(key, "key")
        measure = as_name(measure, "measurement")
        if intervals and (wide or measure != "accuracy"):
            raise ConfigError(
                f"Making a table failed for {measure}: expected accuracies in the long form for intervals, got "
                f"{'the wide form' if wide else 'another measurement'}. Leave `wide` or `intervals` out."
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
                # NumPy's integers are no int, and True is one.
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
            space.parse(name)  # says what is wrong with it
        raise ArchitectureError(
            f"Looking up an architecture failed for {architecture!r}: expected an id from 0 to "
            f"{len(self.meta['ids']) - 1} or a cell string such as {self.meta['ids']['0']['nb201-string']}, "
            "got neither. Give a number or a string of this form."
        )

    def _absent_on_purpose(self, dataset: str, key: str, measures: Sequence[str], *, explicit: bool) -> bool:
        """Whether a key was never meant to be there: not in the sweep, or never published."""
        if any(self.files.find(dataset, key, measure) is not None for measure in measures):
            return False
        planned = self.files.planned(dataset)
        if planned is not None:
            if any(spelling in planned for spelling in spellings(key)):
                return False
            if not explicit:
                return True
        return dataset == self.data_imagenet16 and kind_of(key) == "corruption"
