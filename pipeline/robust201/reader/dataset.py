"""`RobustnessDataset`, the reader of exported and published datasets.

Scripts for the helper class that the authors published with the dataset (github.com/steffen-jung/robustness-dataset,
robustness_dataset.py) also work with this class: it has the same interface and the same nesting of results. In
addition, it accepts both spellings of a key (``pgd``, ``pgd@Linf``), looks up any architecture of the space, reads
measures and results of other spaces, and returns results as a pandas DataFrame.
"""

import copy
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from robust201.core.errors import ArchitectureError, ConfigError, did_you_mean
from robust201.core.records import CLEAN_STRENGTH, format_architecture
from robust201.reader.arguments import as_folder, as_name, as_names, as_strength
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import (
    PUBLISHED_DATASETS,
    ResultFiles,
    kind_of,
    list_values_per_strength,
    spellings,
)
from robust201.reader.value_checks import format_id, parse_architecture_id
from robust201.statistics.intervals import accuracy_intervals
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, TASKS
from robust201.tasks.columns import PUBLISHED

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from robust201.reader.derived import DerivedMetrics
    from robust201.reader.outcomes import Outcomes


PAPER_ATTACKS = tuple(TASKS[key].published_key for key in PAPER_KEYS if kind_of(key) == "attack")
"""The paper's attacks, spelled as in the published files."""

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
        files: reader of the files in the folder or folders (see `reader.result_files`).
        meta: content of meta.json: ``ids`` (id → ``nb201-string``, ``isomorph``, if architectures are cells) and
            ``epsilons`` (attack → list, in units of 1/255 for the paper's attacks).
        sweep: content of sweep.json; None for a folder without this file, such as the published dataset, and for
            several folders, each of which has its own.
        missing: content of missing.json, which lists the missing strengths of a partial export as
            {dataset: {key: {id: strengths}}}.
        non_isomorph_ids: ids, as strings, of the architectures that represent their isomorphism class.
        weights: names of the weights, if the folder has results of named weights.
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
        """Open a dataset, or overlay several datasets.

        Args:
            path: the folder that contains meta.json and a folder for each dataset.
            others: further folders. Each evaluation (dataset, key, measurement, architecture, strength) is read from
                the first folder that has it.
            weights: name of the weights whose results are read by default; only needed if there are several.

        Raises:
            ConfigError: an argument is not a path, the folders are for different spaces, a dataset has different
                numbers of classes in different folders, or there are no weights with this name.
            ResultsError: a folder does not exist, or its meta.json is missing or invalid.
            FormatVersionError: sweep.json has a format that this version does not know.
        """
        folders = [ResultFiles(as_folder(folder)) for folder in (path, *others)]
        files: ResultFiles = OverlaidFiles(folders) if others else folders[0]
        self._set_files(self._choose_weights(files, weights))

    def _set_files(self, files: ResultFiles) -> None:
        self.files, self.path = files, files.path
        self.meta, self.sweep, self.missing = self.files.meta, self.files.sweep, self.files.missing
        # This is equivalent to `files.spec` and `files.isomorph`, but avoids 31,250 calls.
        id_items = self.meta["ids"].items()
        self.map_str_to_id: dict[str, str] = {
            str(fields.get("nb201-string", identifier)): identifier for identifier, fields in id_items
        }
        self.non_isomorph_ids: list[str] = [
            identifier for identifier, fields in id_items if str(fields.get("isomorph", identifier)) == identifier
        ]
        self.weights = self.files.weight_names
        self.data, self.measures = self.files.datasets, self.files.measurements
        keys_by_kind = self.files.keys_by_kind()
        self.keys_clean, self.keys_adv, self.keys_cc = (
            keys_by_kind["clean"],
            keys_by_kind["attack"],
            keys_by_kind["corruption"],
        )
        self.keys_measure, self.keys_other = keys_by_kind["measure"], keys_by_kind["other"]
        self.keys_all = self.keys_clean + self.keys_adv + self.keys_cc + self.keys_measure + self.keys_other

    def __repr__(self) -> str:
        has_several_weights = len(self.weights) > 1 and self.files.weights is None
        n_architectures = self.files.restrict_to_weights(
            self.weights[0] if has_several_weights else None
        ).count_architectures(self.data, self.keys_all)
        keys_text = "1 key" if len(self.keys_all) == 1 else f"{len(self.keys_all)} keys"
        architectures_text = "1 architecture" if n_architectures == 1 else f"{n_architectures:,} architectures"
        contents = f"{', '.join(self.data)}; {keys_text}, {architectures_text}"
        source = self.files.describe_source(self.data, self.keys_all)
        folders = self.files.layers if isinstance(self.files, OverlaidFiles) else (self.files,)
        paths = ", ".join(str(folder.path) for folder in folders)
        weights = f"; weights {', '.join(self.weights)}" if has_several_weights else ""
        mixed_source = "" if source in {"JSON", "Parquet", ""} else f"; {source}"
        return f"<{type(self).__name__} {paths}: {contents}{mixed_source}{weights}>"

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
        from robust201.reader.networks import narrow_files

        names = None
        if networks is not None:
            network_list: list[int | str] = [networks] if isinstance(networks, str) else [*networks]
            names = [self._find_network_name(network) for network in network_list]
        selected = copy.copy(self)
        selected._set_files(narrow_files(self.files, names, None if keys is None else as_names(keys, "key")))
        return selected

    def _find_network_name(self, network: int | str) -> str:
        """Return a network's name in the files. An unknown name is returned unchanged; `narrow_files` rejects it."""
        name = str(network)
        try:
            return self.get_uid(int(name) if name.isdecimal() and self.files.space is not None else name)
        except ArchitectureError:
            return name

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
        files = self._choose_weights(self.files, weights)
        datasets = self.data if data is None else as_names(data, "dataset")
        keys = self.keys_all if key is None else as_names(key, "key")
        requested_measurements = None if measure is None else as_names(measure, "measurement")
        requests = [
            (dataset, key_name, requested_measurements or self.measurements(dataset, key_name))
            for dataset in datasets
            for key_name in keys
        ]
        n_files = sum(len(measurements) for _, _, measurements in requests)
        progress_bar = getattr(tqdm, "tqdm", tqdm)(total=n_files) if tqdm is not None else None
        result: dict[str, dict[str, dict[str, dict[str, Any]]]] = {dataset: {} for dataset in datasets}
        for dataset, key_name, measurements in requests:
            values_by_measurement: dict[str, dict[str, Any]] = {}
            is_absent = self._is_intentionally_absent(dataset, key_name, measurements, is_explicit=key is not None)
            for measurement in () if is_absent else measurements:
                if not (missing_ok and files.find(dataset, key_name, measurement) is None):
                    values_by_measurement[measurement] = files.read(dataset, key_name, measurement)
            if values_by_measurement or is_absent:
                result[dataset][key_name] = values_by_measurement
            if progress_bar is not None:
                progress_bar.update(len(measurements))
        if progress_bar is not None:
            progress_bar.close()
        return result

    def measurements(self, dataset: str, key: str) -> list[str]:
        """Return the names of a key's measurements.

        The attribute `measures` lists the measurements of clean images, attacks and corruptions. A measure's
        measurements are its columns. An unknown key's measurements are those in its files.
        """
        return self.files.measurements_of(as_name(dataset, "dataset"), as_name(key, "key"))

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Return the strengths of a key's values, in order.

        Returns:
            Epsilons (in units of 1/255 in an L∞ ball), severities, or ``(0.0,)`` for ``clean`` and measures.
        """
        return self.files.strengths(as_name(dataset, "dataset"), as_name(key, "key"))

    def get_uid(self, i: int | str) -> str:
        """Return the id, as text, of the architecture that represents an architecture's isomorphism class."""
        return self.files.isomorph(self._find_id(i))

    def id_to_string(self, i: int | str) -> str:
        """Return the cell string of an id, or the id itself in a space without cells."""
        return self.files.spec(self._find_id(i))

    def string_to_id(self, s: str) -> str:
        """Return the id, as text, of a cell string."""
        return self._find_id(s)

    def draw_arch(self, s: str | None = None, i: int | str | None = None) -> "alt.LayerChart":
        """Draw a cell, given its string or id, as a chart that notebooks display and whose `save` writes files."""
        architecture = s if s is not None else i
        if architecture is None:
            raise ArchitectureError("Drawing failed: a cell string or an id is needed. Pass s=… or i=….")
        identifier = self._find_id(architecture)
        space = self.files.space
        if space is None:
            raise ArchitectureError(
                f"Drawing failed for {format_architecture(identifier)}: the architectures "
                f"of the space {self.files.space_name or 'of these files'} are not cells. Only cells can be drawn."
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
        strengths = self.strengths(dataset, key)
        values = list_values_per_strength(accuracies, strengths, f"{format_id(identifier)} {dataset} {key} accuracy")
        accuracy: float = values[strengths.index(strength_value)]
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

        The value is the same as in `query`: a single value, or a list in the order of `strengths`. A JSON file is read
        completely and cached (see `reader.file_cache`), whereas only a part of a Parquet file is read. Convert large
        JSON files with `export.conversion.convert_dataset` first. Threads and forked processes may share a dataset.
        """
        identifier, uid = self._find_id(architecture), self.get_uid(architecture)
        for argument_name, name in (("dataset", dataset), ("key", key), ("measurement", measure)):
            as_name(name, argument_name)
        try:
            return self._choose_weights(self.files, weights).value(dataset, key, measure, uid)
        except KeyError as error:
            if isinstance(error, ArchitectureError):
                raise
            raise ArchitectureError(
                f"Looking up {measure} failed for {format_id(identifier)}: {format_id(uid)} was not evaluated on "
                f"{dataset} under {key}. Evaluate it, or look up another architecture."
            ) from error

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
        from robust201.reader.outcomes import read_outcomes

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
        return read_outcomes(self._choose_weights(self.files, weights), dataset, key, strength_value)

    def images(self, dataset: str) -> "pd.DataFrame":
        """Return the table of the images in `outcomes`.

        Returns:
            One row per position in the outcomes: `row` (index of the image in the dataset's split), `label`, and
            `sha256` (hash of the pixels as uint8, channels first).
        """
        from robust201.reader.outcomes import make_images_frame

        return make_images_frame(self.files, as_name(dataset, "dataset"))

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
        from robust201.reader.frames import rank_by_value

        # If architectures have several sets of weights, `select` makes each set a network of its own.
        if weights is None and (separated_dataset := self.select()).files is not self.files:
            return separated_dataset.rank(
                dataset, key, strength, measure=measure, lowest_first=lowest_first, isomorphs=isomorphs
            )
        known_strengths = self.strengths(dataset, key)
        ranked_strengths = (
            known_strengths if strength is None else (self._check_strength("Ranking", dataset, key, strength),)
        )
        frame = self.to_frame(dataset, key, measure, isomorphs=isomorphs, weights=weights)
        return rank_by_value(frame, ranked_strengths, lowest_first=lowest_first, label=f"{dataset} {key} {measure}")

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
        from robust201.reader.derived import derive_metrics

        datasets_and_keys = (
            (None if names is None else as_names(names, argument_name))
            for names, argument_name in ((datasets, "datasets"), (keys, "keys"))
        )
        reference_id = None if reference is None else parse_architecture_id(self.get_uid(reference))
        files = self.select().files
        return derive_metrics(files, *datasets_and_keys, reference=reference_id)

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
        from robust201.reader.derived import worst_case_accuracies

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
            (categories), `strength` (float64; 0 for ``clean``) and `value`. If the folder has clean values,
            attacks start with the clean value at epsilon 0. A clean evaluation therefore has one row under ``clean``
            and one under every attack, except attacks that were evaluated at 0, such as grids of rotations.
        """
        from robust201.reader.frames import read_frame

        datasets = None if data is None else as_names(data, "dataset")
        keys = None if key is None else as_names(key, "key")
        measure = as_name(measure, "measurement")
        if intervals and (wide or measure != "accuracy"):
            raise ConfigError(
                f"Making a table failed for {measure}: intervals are only available for accuracies in the long form. "
                f"Omit {'`wide`' if wide else '`measure`'} or `intervals`."
            )
        files = self._choose_weights(self.files, weights)
        frame = read_frame(files, datasets, keys, measure, wide=wide, isomorphs=isomorphs)
        if not intervals:
            return frame
        from robust201.reader.error_bars import add_intervals

        return add_intervals(frame, files)

    @staticmethod
    def _choose_weights(files: ResultFiles, weights: str | None) -> ResultFiles:
        return files.restrict_to_weights(None if weights is None else as_name(weights, "weights"))

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
        space = self.files.space
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
        if any(self.files.find(dataset, key, measurement) is not None for measurement in measurements):
            return False
        planned_strengths = self.files.find_planned_strengths(dataset)
        if planned_strengths is not None:
            if any(spelling in planned_strengths for spelling in spellings(key)):
                return False
            if not is_explicit:
                return True
        return dataset == self.data_imagenet16 and kind_of(key) == "corruption"
