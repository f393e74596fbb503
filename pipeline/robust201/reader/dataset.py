"""Reading an exported dataset, or the published one: `RobustnessDataset`.

The interface and the nesting of answers are those of the helper class that the authors publish with the dataset
(github.com/steffen-jung/robustness-dataset, robustness_dataset.py), so that scripts written for it go on working.
Beyond it, both spellings of a key are understood (``pgd``, ``pgd@Linf``), any of the 15,625 architectures can be looked
up, and results come as a pandas DataFrame.
"""

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from robust201.core.errors import ArchitectureError
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.arguments import as_folder, as_name, as_names, as_strength
from robust201.reader.overlay import OverlaidFiles
from robust201.reader.result_files import (
    MEASURES,
    OPTIONAL_MEASURES,
    PUBLISHED_DATASETS,
    ResultFiles,
    kind_of,
    spellings,
    values_by_strength,
)
from robust201.reader.sources import describe_source
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks import CORRUPTIONS, PERTURBATIONS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


ATTACKS = tuple(row.published_key for row in PERTURBATIONS.values() if row.kind == "attack")
"""Attacks as the published files spell them."""

Names = str | Sequence[str]


class RobustnessDataset:
    """Results of an exported or published dataset.

    Class attributes name what the published dataset holds; an instance names what its folder holds, in the folder's
    spelling, as far as the folder tells (an export does in sweep.json, the published dataset only in its epsilons).

    Attributes:
        path: the folder; the first of several.
        files: its files.
        meta: content of meta.json: ``ids`` (id → ``nb201-string``, ``isomorph``) and ``epsilons`` (attack → list, in
            units of 1/255).
        sweep: content of sweep.json, or None in a folder that has none, such as the published dataset, and of several
            folders, which have each their own.
        missing: content of missing.json: what a partial export lacks, {dataset: {key: {id: strengths}}}.
        non_isomorph_ids: ids of the 6,466 architectures that stand for their isomorphism class, as strings.
        keys_clean: ``["clean"]``.
        keys_adv: the adversarial attacks.
        keys_cc: the common corruptions.
        keys_other: keys that this version does not know, with the strengths that the folder tells of.
        keys_all: all keys.
        data: the datasets.
        measures: the measurements.
    """

    # Lists, and on the class, because scripts for the published helper add them up: `keys_clean + keys_adv`.
    keys_clean: list[str] = ["clean"]  # noqa: RUF012
    keys_adv: list[str] = list(ATTACKS)  # noqa: RUF012
    keys_cc: list[str] = list(CORRUPTIONS)  # noqa: RUF012
    keys_other: list[str] = []  # noqa: RUF012
    keys_all: list[str] = ["clean", *ATTACKS, *CORRUPTIONS]  # noqa: RUF012
    data_cifar10, data_cifar100, data_imagenet16 = PUBLISHED_DATASETS
    data: list[str] = list(PUBLISHED_DATASETS)  # noqa: RUF012
    measures: list[str] = list(MEASURES)  # noqa: RUF012

    def __init__(self, path: str | Path = "robustness-data", *others: str | Path) -> None:
        """Open a dataset, or see several as one.

        Args:
            path: the folder that holds meta.json and a folder for each dataset.
            others: further folders. Of each evaluation (dataset, key, measurement, architecture, strength) the first
                folder that has it answers (see `sources`).

        Raises:
            ConfigError: one is no path, or they are of different spaces, or a dataset has different classes in them.
            ResultsError: there is no such folder, or no sound meta.json in it.
            FormatVersionError: sweep.json is of a format that this version does not know.
        """
        folders = [ResultFiles(as_folder(folder)) for folder in (path, *others)]
        self.files: ResultFiles = OverlaidFiles(folders) if others else folders[0]
        self.path = self.files.path
        self.meta, self.sweep, self.missing = self.files.meta, self.files.sweep, self.files.missing
        self.map_str_to_id: dict[str, str] = {row["nb201-string"]: i for i, row in self.meta["ids"].items()}
        self.non_isomorph_ids: list[str] = [i for i, row in self.meta["ids"].items() if row["isomorph"] == i]
        self.data, self.measures = self.files.datasets, self.files.measures
        keys = self.files.keys
        self.keys_clean = [key for key in keys if kind_of(key) == "clean"]
        self.keys_adv = [key for key in keys if kind_of(key) == "attack"]
        self.keys_cc = [key for key in keys if kind_of(key) == "corruption"]
        self.keys_other = [key for key in keys if kind_of(key) == "other"]
        self.keys_all = self.keys_clean + self.keys_adv + self.keys_cc + self.keys_other

    def __repr__(self) -> str:
        count = self.files.count_architectures(self.data, self.keys_all)
        held = f"{', '.join(self.data)}; {len(self.keys_all)} keys, {count:,} architectures"
        source = describe_source(self.files, self.data, self.keys_all)
        folders = self.files.layers if isinstance(self.files, OverlaidFiles) else (self.files,)
        paths = ", ".join(str(folder.path) for folder in folders)
        return f"<{type(self).__name__} {paths}: {held}{f'; {source}' if ', but' in source else ''}>"

    def query(
        self,
        data: Names | None = None,
        key: Names | None = None,
        measure: Names | None = None,
        missing_ok: bool = False,
        tqdm: Any = None,
    ) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        """Read results as they lie in the files.

        Args:
            data: dataset or datasets; by default all that the folder tells of.
            key: key or keys, in either spelling; by default all.
            measure: ``"accuracy"``, ``"confidence"``, ``"cm"`` or ``"predictions"``, or several; by default the first
                three, as far as they were measured.
            missing_ok: leave out what has no file instead of raising an error.
            tqdm: the `tqdm` module, its class, or anything like them, to show progress.

        Returns:
            {dataset: {key: {measure: {id: value}}}}, keys spelled as asked. Ids are strings; only evaluated
            architectures have one (see `get_uid`). A value is a number for ``clean``, else a list by strength (see
            `strengths`); means over no image are None. As with the published helper, corruptions of ImageNet16-120,
            which were never published, give an empty entry where they have no files.

        Raises:
            ConfigError: an argument is neither a name nor a list of names.
            ResultsError: a file is missing or damaged.
        """
        datasets = self.data if data is None else as_names(data, "dataset")
        keys = self.keys_all if key is None else as_names(key, "key")
        measures = self.measures if measure is None else as_names(measure, "measurement")
        bar = getattr(tqdm, "tqdm", tqdm)(total=len(datasets) * len(keys) * len(measures)) if tqdm is not None else None
        result: dict[str, dict[str, dict[str, dict[str, Any]]]] = {dataset: {} for dataset in datasets}
        for dataset in datasets:
            for name in keys:
                found: dict[str, dict[str, Any]] = {}
                absent = self._absent_on_purpose(dataset, name, measures, explicit=key is not None)
                for measurement in () if absent else measures:
                    if not (missing_ok and self.files.find(dataset, name, measurement) is None):
                        found[measurement] = self.files.read(dataset, name, measurement)
                if found or absent:
                    result[dataset][name] = found
                if bar is not None:
                    bar.update(len(measures))
        if bar is not None:
            bar.close()
        return result

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Strengths that the values of a key stand for, in order.

        Args:
            dataset: name of the dataset.
            key: in either spelling.

        Returns:
            Epsilons in units of 1/255, severities, or ``(0.0,)`` for ``clean``.

        Raises:
            ConfigError: a name is no text.
            ResultsError: the folder does not tell.
        """
        return self.files.strengths(as_name(dataset, "dataset"), as_name(key, "key"))

    def get_uid(self, i: int | str) -> str:
        """Name the evaluated architecture that an architecture is isomorphic to.

        Args:
            i: id, as a number or text, or cell string, of any of the 15,625 architectures.

        Returns:
            The id under which results are found.

        Raises:
            ArchitectureError: there is no such architecture (a KeyError too).
        """
        return str(self.meta["ids"][self._resolve(i)]["isomorph"])

    def id_to_string(self, i: int | str) -> str:
        """Give the NAS-Bench-201 cell string of an id (see `get_uid` for the argument and errors)."""
        return str(self.meta["ids"][self._resolve(i)]["nb201-string"])

    def string_to_id(self, s: str) -> str:
        """Give the id, as text, of a NAS-Bench-201 cell string (see `get_uid` for the errors)."""
        return self._resolve(s)

    def draw_arch(self, s: str | None = None, i: int | str | None = None, *, ax: "Axes | None" = None) -> "Axes":
        """Draw the cell of an architecture.

        Args:
            s: its cell string, or
            i: its id.
            ax: where to draw; by default pyplot's current axes, as the published helper does.

        Returns:
            The axes; in a script, `matplotlib.pyplot.show` shows them.

        Raises:
            ArchitectureError: there is no such architecture, or neither argument was given.
        """
        from robust201.spaces.nasbench201.drawing import draw_cell

        given = s if s is not None else i
        if given is None:
            raise ArchitectureError(
                "Drawing failed for no architecture: expected a cell string or an id, got neither. Give s=… or i=…."
            )
        identifier = self._resolve(given)
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.gca()
        return draw_cell(ax, self.id_to_string(identifier), f"#{identifier}")

    @overload
    def accuracy(self, architecture: int | str, dataset: str, key: str, strength: float) -> float: ...

    @overload
    def accuracy(
        self, architecture: int | str, dataset: str, key: str, strength: None = None
    ) -> float | list[float]: ...

    def accuracy(
        self, architecture: int | str, dataset: str, key: str, strength: float | None = None
    ) -> float | list[float]:
        """Look up the accuracy of any of the 15,625 architectures.

        Args:
            architecture: id or cell string; stands for its isomorphism class.
            dataset: name of the dataset.
            key: in either spelling.
            strength: epsilon in units of 1/255 or severity; 0 is clean. None gives all strengths.

        Returns:
            Accuracy as a fraction, or the list of accuracies in the order of `strengths` (one number for ``clean``).

        Raises:
            ArchitectureError: there is no such architecture, or it was not evaluated.
            ConfigError: the key was not evaluated at this strength, or a name is no text.
            ResultsError: a file is missing or damaged.
        """
        identifier = self._resolve(architecture)
        wanted = None if strength is None else self._strength(f"Looking up #{identifier}", dataset, key, strength)
        if wanted == CLEAN_STRENGTH and wanted not in self.strengths(dataset, key):
            key = "clean"
        accuracies: float | list[float] = self.value(architecture, dataset, key)
        if wanted is None:
            return list(accuracies) if isinstance(accuracies, list) else accuracies
        strengths = self.strengths(dataset, key)
        each = values_by_strength(accuracies, strengths, f"#{identifier} {dataset} {key} accuracy")
        found: float = each[strengths.index(wanted)]
        return found

    def value(self, architecture: int | str, dataset: str, key: str, measure: str = "accuracy") -> Any:
        """Look up a measurement of any of the 15,625 architectures; of Parquet without reading the others'.

        A JSON file is read whole, and kept for the next look-up (see `reader.kept_files`): convert one of gigabytes to
        Parquet first, by ``robust201 convert``. Threads and forks may share this.

        Args:
            architecture: id or cell string; stands for its isomorphism class.
            dataset: name of the dataset.
            key: in either spelling.
            measure: ``"accuracy"``, ``"confidence"``, ``"cm"`` or ``"predictions"``.

        Returns:
            The value as `query` gives it: one for ``clean``, else a list in the order of `strengths`.

        Raises:
            ArchitectureError: there is no such architecture, or it was not evaluated.
            ResultsError: a file is missing or damaged.
        """
        identifier, uid = self._resolve(architecture), self.get_uid(architecture)
        for what, name in (("dataset", dataset), ("key", key), ("measurement", measure)):
            as_name(name, what)
        try:
            return self.files.value(dataset, key, measure, uid)
        except KeyError as error:
            if isinstance(error, ArchitectureError):
                raise
            raise ArchitectureError(
                f"Looking up {measure} failed for #{identifier}: expected #{uid} among the architectures evaluated on "
                f"{dataset} under {key}, got none. Evaluate it, or ask for another."
            ) from error

    def sources(self) -> "pd.DataFrame":
        """Tell which folder answers for what; of several folders this is what each adds to those before it.

        Returns:
            One row per dataset, key and folder that answers for an evaluation of it: `dataset`, `key`, `strengths` (a
            tuple, ascending), `architectures` (how many evaluated ones) and `folder`. What counts is the first
            measurement that there is, accuracies if there are any.

        Raises:
            ResultsError: a file is damaged.
        """
        from robust201.reader.frames import list_sources

        return list_sources(self.files, self.data, self.keys_all, (*MEASURES, *OPTIONAL_MEASURES))

    def rank(
        self, dataset: str, key: str, strength: float | None = None, *, isomorphs: bool = False
    ) -> "pd.Series[int]":
        """Rank architectures by accuracy, the best first.

        Args:
            dataset: name of the dataset.
            key: in either spelling.
            strength: epsilon in units of 1/255 or severity; None ranks by the mean over all strengths.
            isomorphs: rank all architectures whose class was evaluated, not only the evaluated ones.

        Returns:
            Rank by architecture (int64 both), 1 for the best; equal accuracies share the best rank among them. Those
            without an accuracy at the strength have none.

        Raises:
            ConfigError: the key was not evaluated at this strength.
            ResultsError: the file is missing or damaged.
        """
        from robust201.reader.frames import rank_by_accuracy

        known = self.strengths(dataset, key)
        wanted = known if strength is None else (self._strength("Ranking", dataset, key, strength),)
        return rank_by_accuracy(self.to_frame(dataset, key, isomorphs=isomorphs), wanted)

    def _strength(self, what: str, dataset: str, key: str, strength: float) -> float:
        return as_strength(strength, self.strengths(dataset, key), f"{what} failed for {dataset} {key}")

    def to_frame(
        self,
        data: Names | None = None,
        key: Names | None = None,
        measure: str = "accuracy",
        *,
        wide: bool = False,
        isomorphs: bool = False,
    ) -> "pd.DataFrame":
        """Give results as a tidy DataFrame, one row per architecture, dataset, key and strength.

        Args:
            data: dataset or datasets; by default all that the folder holds.
            key: key or keys, in either spelling; by default all that the folder holds.
            measure: ``"accuracy"``; with any other measurement a value is the nested list or dict of the file.
            wide: one row per architecture and dataset instead, with columns (key, strength).
            isomorphs: give all architectures whose isomorphism class was evaluated, not only the evaluated ones.

        Returns:
            Columns `architecture` (int64), `isomorph` (int64, the architecture evaluated), `spec`, `dataset`, `key`
            (categories), `strength` (float64: epsilon in units of 1/255, where 0 is clean, or severity; 0 for
            ``clean``) and `value`. Attacks begin with the clean value, as epsilon 0, where the folder has it: a clean
            evaluation so has a row under ``clean`` and one under every attack. Of several folders `source` besides,
            the folder that a value comes from, but for `wide`.

        Raises:
            ResultsError: a file that was asked for by name is missing or damaged.
        """
        from robust201.reader.frames import make_frame, read_table

        datasets = self.data if data is None else as_names(data, "dataset")
        keys = self.keys_all if key is None else as_names(key, "key")
        measure, explicit = as_name(measure, "measurement"), data is not None and key is not None
        tables = [
            read_table(self.files, dataset, name, measure)
            for dataset in datasets
            for name in keys
            if explicit or self.files.find(dataset, name, measure) is not None
        ]
        for name in () if data is None or not keys else datasets:
            if name not in {table.dataset for table in tables}:
                raise self.files.absence(name, keys[0], measure)
        for name in () if key is None or not datasets else keys:
            if name not in {table.key for table in tables}:
                raise self.files.absence(datasets[0], name, measure)
        return make_frame(tables, self.meta["ids"], numeric=measure == "accuracy", wide=wide, isomorphs=isomorphs)

    def _resolve(self, architecture: int | str) -> str:
        """Give the id of an architecture as meta.json spells it."""
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
        if "|" in name:
            nasbench201.parse(name)  # says what is wrong with it
        raise ArchitectureError(
            f"Looking up an architecture failed for {architecture!r}: expected an id from 0 to "
            f"{len(self.meta['ids']) - 1} or a cell string such as {self.meta['ids']['0']['nb201-string']}, "
            "got neither. Give a number or a string of this form."
        )

    def _absent_on_purpose(self, dataset: str, key: str, measures: Sequence[str], *, explicit: bool) -> bool:
        """Say whether a key was never meant to be there: not in the sweep, or never published."""
        if any(self.files.find(dataset, key, measure) is not None for measure in measures):
            return False
        planned = self.files.planned(dataset)
        if planned is not None:
            if any(spelling in planned for spelling in spellings(key)):
                return False
            if not explicit:
                return True
        return dataset == self.data_imagenet16 and kind_of(key) == "corruption"
