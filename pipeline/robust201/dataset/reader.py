"""`Dataset`, the reader of exported and published datasets.

Scripts for the helper class that Jung et al. published with their dataset (github.com/steffen-jung/robustness-dataset,
robustness_dataset.py) also work with this class: it has the same interface and the same nesting of results. In
addition, it accepts both spellings of a key (``pgd``, ``pgd@Linf``), looks up any architecture of the space, reads
measures and results of other spaces, and returns results as a pandas DataFrame.
"""

import itertools
import math
import numbers
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId, format_architecture
from robust201.dataset.layout import CLEAN, PUBLISHED_DATASETS, format_id, kind_of, parse_architecture_id, spellings
from robust201.tasks import CORRUPTIONS, PAPER_KEYS, TASKS
from robust201.tasks.columns import PUBLISHED_MEASUREMENTS

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

    from robust201.dataset.derived import DerivedMetrics
    from robust201.dataset.outcomes import Outcomes
from robust201.dataset.merged_folders import MergedFolders, NameOrNames, as_names

PAPER_ATTACKS = tuple(TASKS[key].published_key for key in PAPER_KEYS if kind_of(key) == "attack")
"""The paper's attacks, spelled as in the published files."""

MEAN_DECIMALS = 12
"""Number of decimals to which means of accuracies are rounded.

Without rounding, means of equal numbers in a different order could differ at the 16th decimal, which would hide ties.
"""


class Dataset(MergedFolders):
    """Results of an exported or published dataset.

    Class attributes describe the published dataset. Attributes of an instance describe its folder, and spell keys as
    the folder does. (An export lists its contents in sweep.json; the published dataset only lists its attacks, in
    meta.json.)

    In all methods, an architecture is identified by its id, as a number or text, or by its cell string. Its results are
    those of its isomorphism class. Keys may have either spelling. Arguments for datasets, keys and measurements are
    names or lists of names; by default, all are used. A strength is an epsilon (in units of 1/255 in an L∞ ball), a
    severity, or 0 for clean images. If architectures have several sets of weights, name one when you open the folder
    (`weights`), or call `select`.

    Raises:
        ArchitectureError: the architecture does not exist, or was not evaluated. This error is also a KeyError.
        ConfigError: the key was not evaluated at the strength, `weights` is missing although there
            are several, or folders have results of a key under different protocols.
        ResultsError: a required file is missing or damaged.

    Attributes:
        path: the folder, or the first of several folders.
        folders: the folders.
        meta: content of meta.json: ``ids`` (id → ``nb201-string``, ``isomorph``, if architectures are cells) and
            ``epsilons`` (attack → list of strengths).
        sweep: content of sweep.json; None for a folder without this file, such as the published dataset, and for
            several folders, each of which has its own.
        missing: content of missing.json, which lists the missing strengths of a partial export as
            {dataset: {key: {id: strengths}}}; empty for several folders.
        non_isomorph_ids: ids, as strings, of the architectures that represent their isomorphism class.
        space_name: name of the search space.
        cost_space: the search space that computes the costs of the networks; None if they are not cells.
        weights: names of the weights, if a folder has results of named weights.
        keys_clean: ``["clean"]``, or empty if clean images were not evaluated.
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
    measures: list[str] = list(PUBLISHED_MEASUREMENTS)  # noqa: RUF012

    def _read_nested(
        self, dataset: str, key: str, measurement: str, network: ArchitectureId | None = None
    ) -> dict[str, Any]:
        """Return a measurement by id: one value, or a list in the order of `strengths`, with None if missing."""
        by_id: dict[str, dict[float, Any]] = {}
        for architecture, strength, value in self._iter_values(dataset, key, measurement, network):
            by_id.setdefault(str(architecture), {})[strength] = value
        strengths, is_single = self.strengths(dataset, key), self._has_single_value(dataset, key)
        return {
            identifier: values.get(strengths[0]) if is_single else [values.get(strength) for strength in strengths]
            for identifier, values in by_id.items()
        }

    def _iter_values(
        self, dataset: str, key: str, measurement: str, network: ArchitectureId | None
    ) -> Iterator[tuple[ArchitectureId, float, Any]]:
        """Yield network, strength and value, nested as in JSON files."""
        for rows in self.iter_rows(dataset, key, measurement, network):
            values = rows.nested_values(measurement)
            yield from zip(rows.architectures.tolist(), rows.strengths.tolist(), values, strict=True)

    def query(
        self,
        data: NameOrNames | None = None,
        key: NameOrNames | None = None,
        measure: NameOrNames | None = None,
        missing_ok: bool = False,
        tqdm: Any = None,
    ) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        """Read results, nested as in the files; by default, all `measurements` of each key.

        A missing file is an error unless `missing_ok` is true. `tqdm` is the module tqdm, its class, or a compatible
        object; if it is given, it shows progress.

        Returns:
            {dataset: {key: {measure: {id: value}}}}, with keys in the caller's spelling. Ids are strings; only
            evaluated architectures are included (see `get_uid`). A value is a single value for ``clean`` and for a
            measure with one strength, or a list with one value per strength (see `strengths`). A mean over zero images
            is None. An entry without files is empty for the corruptions of ImageNet16-120, which were never published
            (as in the published helper class), and, if `key` is None, for keys that the sweep lacks on a dataset.
        """
        datasets = self.data if data is None else as_names(data)
        keys = self.keys_all if key is None else as_names(key)
        requested = None if measure is None else as_names(measure)
        requests = [
            (dataset, key_name, requested or self.measurements(dataset, key_name))
            for dataset, key_name in itertools.product(datasets, keys)
        ]
        result: dict[str, dict[str, dict[str, dict[str, Any]]]] = {dataset: {} for dataset in datasets}
        for dataset, key_name, measurements in requests if tqdm is None else getattr(tqdm, "tqdm", tqdm)(requests):
            is_absent = self._is_intentionally_absent(dataset, key_name, measurements, is_explicit=key is not None)
            values = {
                measurement: self._read_nested(dataset, key_name, measurement)
                for measurement in (() if is_absent else measurements)
                if not missing_ok or self.has(dataset, key_name, measurement)
            }
            if values or is_absent:
                result[dataset][key_name] = values
        return result

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

    def accuracy(
        self,
        architecture: int | str,
        dataset: str,
        key: str,
        strength: float | None = None,
    ) -> float | list[float]:
        """Return the accuracy of any architecture of the space at a strength.

        If no strength is given, return the list of accuracies at all `strengths`, or a number for ``clean``.
        """
        identifier = self._find_id(architecture)
        action = f"Looking up {format_id(identifier)}"
        strength_value = None if strength is None else self._check_strength(action, dataset, key, strength)
        if strength_value == CLEAN_STRENGTH and strength_value not in self.strengths(dataset, key):
            key = CLEAN
        accuracies: float | list[float] = self.value(architecture, dataset, key)
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
    ) -> Any:
        """Return a measurement of any architecture of the space.

        The value is the same as in `query`: a single value, or a list in the order of `strengths`. Numbers are read
        from tables that stay in memory (see `dataset.table`). Matrices are read from a JSON file as a stream, or from a
        part of a Parquet file. Threads and forked processes may share a dataset.
        """
        identifier, uid = self._find_id(architecture), self.get_uid(architecture)
        values = self._read_nested(dataset, key, measure, parse_architecture_id(uid))
        if uid not in values:
            raise ArchitectureError(
                f"Looking up {measure} failed for {format_id(identifier)}: {format_id(uid)} was not evaluated on "
                f"{dataset} under {key}. Evaluate it, or look up another architecture."
            )
        return values[uid]

    def outcomes(self, dataset: str, key: str, strength: float | None = None) -> "Outcomes":
        """Return per-image outcomes: whether each architecture classified each image correctly.

        The strength may be omitted if there is only one. At strength 0, an attack has the outcomes of clean images.

        Returns:
            The evaluated architectures that have outcomes, and their packed bits in the order of `images`.

        Raises:
            ResultsError: the dataset has no outcomes, or several folders have outcomes for different images.
        """
        from robust201.dataset.outcomes import read_image_outcomes

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
            key = CLEAN
        return read_image_outcomes(self, dataset, key, strength_value)

    def images(self, dataset: str) -> "pd.DataFrame":
        """Return the table of the images in `outcomes`.

        Returns:
            One row per position in the outcomes: `row` (index of the image in the dataset's split), `label`, and
            `sha256` (hash of the pixels as uint8, channels first).
        """
        import pandas as pd

        from robust201.dataset.outcomes import read_images

        return pd.DataFrame(read_images(self, dataset)).rename_axis("position")

    def metrics(self, datasets: NameOrNames | None = None, keys: NameOrNames | None = None) -> "DerivedMetrics":
        """Compute derived metrics of some datasets and keys.

        If architectures have several sets of weights, each set is a separate network (see `select`).

        Raises:
            ConfigError: a dataset or key does not exist.
            ResultsError: per-image outcomes contradict the accuracies.
        """
        from robust201.dataset.derived import derive_metrics

        return derive_metrics(self.select(keys=keys), None if datasets is None else as_names(datasets))

    def _check_strength(self, action: str, dataset: str, key: str, strength: object) -> float:
        """Return a strength as a float; raise ConfigError unless it is known, or 0 for clean images."""
        known_strengths = self.strengths(dataset, key)
        is_number = isinstance(strength, numbers.Real) and not isinstance(strength, bool)
        number = float(strength) if is_number else math.nan  # type: ignore[arg-type]
        if number in known_strengths or number == 0:
            return number
        matching = [epsilon for epsilon in known_strengths if math.isclose(255 * number, epsilon, rel_tol=0.015)]
        advice = ""
        if matching and number < 1:
            advice = f" Epsilons are in units of 1/255: write {matching[0]:g} for {matching[0]:g}/255."
        strengths = ", ".join(f"{known:g}" for known in known_strengths)
        raise ConfigError(
            f"{action} failed for {dataset} {key}: expected one of the strengths {strengths}, got {strength!r}."
            f"{advice} Choose one of the expected strengths."
        )

    def join(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """Return the rows of `table` with additional columns, taken from another table about the same networks.

        Args:
            frame: one row per network, with its name in the column `network`, or one per network and dataset, if it
                also has the column `dataset`.

        Raises:
            ConfigError: `frame` has no column `network`, or several rows for one network.
        """
        identity = [name for name in ("network", "dataset") if name in frame.columns]
        if "network" not in identity or frame.duplicated(identity).any():
            raise ConfigError(
                f"Joining failed for {self.path}: the table must have one row per {' and '.join(identity) or 'network'}"
                ", with the name in the column `network`. Rename the column, or remove the duplicates."
            )
        return self.table.merge(frame, on=identity, how="left")

    def _is_intentionally_absent(
        self, dataset: str, key: str, measurements: Sequence[str], *, is_explicit: bool
    ) -> bool:
        """Return whether a key has no files because it is not in the sweep, or because it was never published.

        `is_explicit` is true if the caller named the key. A named key that is not in the sweep counts as missing,
        unless it was never published.
        """
        if any(self.has(dataset, key, measurement) for measurement in measurements):
            return False
        sweeps = [planned for folder in self.folders if (planned := folder.planned_strengths(dataset)) is not None]
        if sweeps:
            if any(spelling in planned for planned in sweeps for spelling in spellings(key)):
                return False
            if not is_explicit:
                return True
        return dataset == self.data_imagenet16 and kind_of(key) == "corruption"
