"""Verification of a results folder: its files and values, what is missing, and an export of its results."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from robust201.core.errors import IncompleteError, InputError, StorageError
from robust201.dataset.card import CARD_FILE
from robust201.dataset.diff import read_numbers
from robust201.dataset.export import export_results
from robust201.dataset.json_rows import read_object
from robust201.dataset.layout import IMAGES_FOLDER, MISSING_FILE, SWEEP_FILE
from robust201.dataset.listing import REEXPORT, check_listing, read_listing
from robust201.dataset.shard_check import Finding, check_files
from robust201.dataset.shard_rows import KeyRows
from robust201.dataset.side_files import VERSIONS_FILE
from robust201.dataset.unstable_networks import find_unstable_networks
from robust201.evaluation.attack_flags import AttackFlag, find_flags
from robust201.images.specs import UNKNOWN_COUNT
from robust201.statistics.weights_check import ACCURACY_TOLERANCE, CleanAccuracy, WeightsCheck, check_accuracies
from robust201.store.folder import ResultsFolder
from robust201.sweep.explain import explain
from robust201.sweep.parts import compare
from robust201.sweep.plan import Plan, open_results

REPAIRED_BY_RUN = {"damaged", "record", "missing"}
"""Kinds of findings that the next run repairs, by computing or writing the missing parts again."""


@dataclass(frozen=True)
class Verdict:
    """Result of verifying a results folder.

    Attributes:
        findings: faults, and missing parts.
        export_problems: messages about faults in the files of the export.
        n_files: number of shards, each of them a file or in a pack.
        n_evaluations: number of complete evaluations.
        n_planned: number of evaluations in the plan.
        n_exported: number of files that the export lists; None if no export was checked.
        weights: comparison of clean accuracies with those recorded with the weights; None if there are faults.
        flags: signs of weak attacks; None if these were not requested, or there are faults. Neither `weights` nor
            `flags` affects `code`.
    """

    findings: tuple[Finding, ...]
    export_problems: tuple[str, ...]
    n_files: int
    n_evaluations: int
    n_planned: int
    n_exported: int | None
    weights: WeightsCheck | None
    flags: tuple[AttackFlag, ...] | None

    @property
    def faults(self) -> tuple[Finding, ...]:
        """Findings except missing parts."""
        return tuple(finding for finding in self.findings if finding.kind != "missing")

    @property
    def code(self) -> int:
        """Exit code: 4 for contradictions, export problems or unstable networks, else 3 for other findings, else 0."""
        if self.export_problems or any(finding.kind not in REPAIRED_BY_RUN for finding in self.findings):
            return 4
        return 3 if self.findings else 0

    def to_payload(self) -> dict[str, Any]:
        return {
            "valid": not (self.faults or self.export_problems),
            "findings": [finding._asdict() for finding in self.findings],
            "export": list(self.export_problems),
            "files": self.n_files,
            "evaluations": self.n_evaluations,
            "planned": self.n_planned,
            "missing": self.n_planned - self.n_evaluations,
            "exported_files": self.n_exported,
            "weights": None if self.weights is None else self.weights.to_payload(),
            "flags": None if self.flags is None else [flag.to_payload() for flag in self.flags],
        }


def verify_results(
    results: Path,
    *,
    export: Path | None = None,
    attack_flags: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Check a results folder and optionally an export of its results; damaged files are moved aside.

    Args:
        results: the results folder.
        export: folder of the export to compare with the results, file by file.
        attack_flags: whether to search the accuracies for signs of weak attacks.
        on_progress: called after each file with the number of checked files and the total number of files.

    Raises:
        InputError: the folder does not exist, or it has no plan.
        ResultsError: `export` does not contain a complete export.
        StorageError: a file cannot be read at the moment.
    """
    n_exported = None if export is None else len(read_listing(export))
    plan, folder = open_results(results)
    damaged_packs: list[str] = []
    listing = folder.list(damaged_packs.append)
    findings = [Finding("damaged", "packs", message) for message in damaged_packs]
    findings += check_files(plan, folder, listing, on_progress)
    listing = folder.list()
    state = compare(plan, listing, folder.read_tuple)
    causes = explain(plan, state, listing, folder.read_tuple, folder.read_protocols())
    findings += [Finding("missing", ", ".join(cause.keys), str(cause)) for cause in causes]
    unstable = find_unstable_networks(plan, state.keys, results)
    findings += [Finding("unstable", *network) for network in unstable.values()]
    is_valid = all(finding.kind == "missing" for finding in findings)
    return Verdict(
        findings=tuple(findings),
        export_problems=() if export is None else tuple(check_export(plan, folder, export)),
        n_files=sum(map(len, listing.values())),
        n_evaluations=state.n_done,
        n_planned=plan.n_evaluations,
        n_exported=n_exported,
        weights=check_clean_accuracy(plan, folder) if is_valid else None,
        flags=_find_attack_flags_of_plan(results, plan) if is_valid and attack_flags else None,
    )


def check_clean_accuracy(plan: Plan, folder: ResultsFolder) -> WeightsCheck:
    """Compare the clean accuracies in a results folder with the recorded accuracies, for networks that have both.

    Raises:
        ShardDamagedError: a file is damaged.
        StorageError: a file cannot be read at the moment.
    """
    listing, accuracies = folder.list(), []
    clean_plan = plan.comparable.narrow(keys=("clean",))
    for state in compare(clean_plan, listing, folder.read_tuple).keys:
        rows, n_test = KeyRows(folder, state.key, listing), plan.config.dataset_spec(state.key.dataset).n_test
        for position in range(len(state.key.networks)):
            unit = state.key.unit(position)
            recorded = plan.facts.recorded_accuracies.get(unit.checkpoint_sha256)
            if recorded is None or n_test == UNKNOWN_COUNT or any(True for _ in state.missing_parts(position)):
                continue
            measured = float(rows.read(position, ("accuracy",))["accuracy"][0])
            tolerance = ACCURACY_TOLERANCE[plan.config.precision]
            network = unit.dataset, unit.architecture, unit.weights
            accuracies.append(CleanAccuracy(*network, measured, recorded, unit.n_images, n_test, tolerance))
    return check_accuracies(accuracies)


def find_attack_flags(
    numbers: pd.DataFrame, *, n_images: Mapping[str, int], n_classes: Mapping[str, int]
) -> tuple[AttackFlag, ...]:
    """Find signs of weak attacks on each dataset whose numbers of images and classes are known.

    Args:
        numbers: accuracies (see `read_numbers`); different weights of the same architectures are examined separately.
        n_images: number of images by dataset.
        n_classes: number of classes by dataset.
    """
    flags: list[AttackFlag] = []
    for (_, group_name), rows in numbers.groupby(["weights", "dataset"], sort=False):
        dataset = str(group_name)
        if dataset in n_images and dataset in n_classes:
            accuracies = {
                (str(key), float(str(strength))): dict(zip(group["architecture"], group["value"], strict=True))
                for (key, strength), group in rows.groupby(["key", "strength"], sort=False)
            }
            flags += find_flags(dataset, accuracies, n_images=n_images[dataset], n_classes=n_classes[dataset])
    return tuple(flags)


def _find_attack_flags_of_plan(results: Path, plan: Plan) -> tuple[AttackFlag, ...]:
    # Measures have columns instead of accuracies.
    n_images = {key.dataset: key.n_images for key in plan.comparable.keys if not key.task.columns}
    n_classes = {dataset: plan.config.dataset_spec(dataset).n_classes for dataset in n_images}
    return find_attack_flags(read_numbers(results), n_images=n_images, n_classes=n_classes)


def check_export(plan: Plan, folder: ResultsFolder, out: Path) -> Iterator[str]:
    """Compare an export's files with its listing, and with a new export of the results, which is deleted afterwards.

    Yields a message for each difference, with a remedy. README.md, versions.json and sweep.json's version of robust201
    are not compared with the new export. Damaged files are also reported in messages, not as exceptions.

    Raises:
        ResultsError: the folder is not an export.
    """
    digests = read_listing(out)
    yield from check_listing(out, digests)
    try:
        with tempfile.TemporaryDirectory(prefix=".verify-", dir=folder.root) as temporary:
            options, new_export = _read_export_options(out, digests), Path(temporary) / "export"
            export_results(plan, folder, new_export, **options)
            yield from _compare_exports(out, digests, new_export)
    except (OSError, IncompleteError, InputError, StorageError) as error:
        yield f"Verifying failed for {out}: {error}"


def _read_export_options(out: Path, names: Collection[str]) -> dict[str, Any]:
    """Return the arguments of `export_dataset` with which an export was written."""
    sweep = read_object(out / SWEEP_FILE) or {}
    exported_weights = [*sweep.get("weights", {})]
    suffixes = {PurePath(name).suffix for name in names if "/" in name and not name.startswith(f"{IMAGES_FOLDER}/")}
    return {
        "key_style": str(sweep.get("key_style")),
        "round_to": sweep.get("round_to"),
        "outcomes": sweep.get("outcomes"),
        "weights": exported_weights[0] if len(exported_weights) == 1 else None,
        "formats": [suffix[1:] for suffix in (".json", ".parquet") if suffix in suffixes],
        "partial": MISSING_FILE in names,
    }


def _compare_exports(out: Path, digests: Mapping[str, str], new_export: Path) -> Iterator[str]:
    """Compare an export with a new export of the same results (see `check_export`)."""
    sweeps = [(read_object(folder / SWEEP_FILE) or {}) | {"robust201": None} for folder in (out, new_export)]
    if sweeps[0] != sweeps[1]:
        yield (
            f"Verifying failed for {out / SWEEP_FILE}: it is not the sweep of these results. Use the folder to which "
            f"these results were exported. {REEXPORT}"
        )
        return
    new_digests = read_listing(new_export)
    for name in sorted((digests.keys() | new_digests.keys()) - {SWEEP_FILE, CARD_FILE, VERSIONS_FILE}):
        if digests.get(name) != new_digests.get(name):
            yield (
                f"Verifying failed for {out / name}: the file differs from a new export of these results, or only one "
                f"of them has it (Parquet files also differ if another version of pyarrow wrote them). {REEXPORT}"
            )
