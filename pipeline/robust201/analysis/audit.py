"""Audit of a sweep: both engines attack a sample of its networks, and their results are compared image by image.

The engines are `reference`, which calls Foolbox and AutoAttack, and `fused`. Each engine evaluates the same networks on
the same images, as a separate small sweep in another folder and in this process. Therefore an audit can be resumed, and
does not modify the audited sweep.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, IncompleteError
from robust201.core.records import ArchitectureId
from robust201.dataset.shard_rows import KeyRows
from robust201.run.driver import run_work
from robust201.run.sweep import prepare_run
from robust201.run.work import Say
from robust201.statistics.significance import holm_adjust, mcnemar_p_values
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import EVERYTHING
from robust201.sweep.inputs import Inputs
from robust201.sweep.plan import open_results
from robust201.tasks import ENGINES, TASKS
from robust201.tasks.columns import PREDICTIONS

AUDIT_LEVEL = 0.01
"""Significance level: the maximum probability that an audit finds a difference between equally strong engines."""

_SEED = 0
"""Seed for sampling architectures and images."""

_EvaluationId = tuple[str, ArchitectureId, str, str, float]
"""Dataset, architecture, weights, key and strength."""


def sample_sweep(config: SweepConfig, *, networks: int, images: int, out: Path) -> dict[str, SweepConfig]:
    """Return the small sweeps of an audit, by engine.

    Args:
        config: the sweep to audit.
        networks: number of architectures to sample.
        images: number of test images per dataset to sample.
        out: folder of the audit.

    Raises:
        ConfigError: the sweep has no built-in attack that both engines support with its parameters, or the folder
            contains other files.
        DatasetError: images are missing or damaged.
    """
    other_files = [path.name for path in sorted(out.iterdir()) if path.name not in ENGINES] if out.is_dir() else []
    if other_files:
        raise ConfigError(
            f"Auditing failed for {out}: expected a new folder or the folder of a previous audit, got a folder that "
            f"contains {other_files[0]}. Move other files away."
        )
    auditable_keys = [
        key
        for key, parameters in config.parameters.items()
        if key in TASKS
        and TASKS[key].kind == "attack"
        and all(parameters.unsupported_engine_reason(engine) is None for engine in ENGINES)
    ]
    if not auditable_keys:
        raise ConfigError(
            f"Auditing failed for {config.name}: it has no attack that both engines support with its parameters. Audit "
            "another sweep."
        )
    full_inputs = Inputs(config.model_copy(update={"images": config.images.model_copy(update={"count": None})}))
    n_images = min(images, *(len(full_inputs.images(dataset)) for dataset in config.datasets))
    architectures = config.selected_architectures
    sampled_indices = np.random.default_rng(_SEED).choice(
        len(architectures), size=min(networks, len(architectures)), replace=False
    )
    common_fields = {
        "architectures": tuple(architectures[index] for index in sorted(sampled_indices.tolist())),
        "images": config.images.model_copy(update={"count": n_images, "seed": _SEED}),
        "keys": {key: config.keys[key] for key in auditable_keys},
        "datasets": {
            name: section.model_copy(update={"corruptions": None}) for name, section in config.datasets.items()
        },
        "shards": None,
        "execution": config.execution.model_copy(update={"executor": "inline"}),
    }
    return {
        engine: config.model_copy(update=common_fields | {"results": out / engine, "engine": engine})
        for engine in ENGINES
    }


def audit_sweep(sweeps: Mapping[str, SweepConfig], say: Say) -> pd.DataFrame:
    """Evaluate the sample with both engines, and test whether the engines are equally strong.

    Returns:
        One row per network, key and strength: `dataset`, `architecture`, `weights`, `key`, `strength`, `n_images`; the
        numbers of images that are classified correctly under each engine's attack (`reference`, `fused`), and under
        only one engine's attack (`only_reference`, `only_fused`); `p_value` (McNemar's exact test, two-sided),
        `adjusted_p_value` (Holm's method over all rows), and `differs` (whether that is below `AUDIT_LEVEL`).

    Raises:
        InputError: bad input; nothing was started.
        IncompleteError: some evaluations are missing; rerunning the audit resumes it.
    """
    outcomes_by_engine: list[dict[_EvaluationId, NDArray[np.bool_]]] = []
    for config in sweeps.values():
        with prepare_run(config, EVERYTHING, say) as work:
            is_complete = run_work(work, say).is_complete
        if not is_complete:
            raise IncompleteError(
                f"Auditing failed for {config.results}: some evaluations of the sample are missing. Rerun the same "
                "command to resume the audit."
            )
        outcomes_by_engine.append(dict(_read_outcomes(config)))
    rows = [
        (*evaluation_id, len(first), first.sum(), second.sum(), (first & ~second).sum(), (second & ~first).sum())
        for evaluation_id, first in outcomes_by_engine[0].items()
        for second in (outcomes_by_engine[1][evaluation_id],)
    ]
    counts = (*sweeps, *(f"only_{engine}" for engine in sweeps))
    table = pd.DataFrame(rows, columns=["dataset", "architecture", "weights", "key", "strength", "n_images", *counts])
    p_values = mcnemar_p_values(*(table[f"only_{engine}"].to_numpy() for engine in sweeps))
    adjusted = holm_adjust(p_values)
    return table.assign(p_value=p_values, adjusted_p_value=adjusted, differs=adjusted < AUDIT_LEVEL)


def _read_outcomes(config: SweepConfig) -> Iterator[tuple[_EvaluationId, NDArray[np.bool_]]]:
    """Yield the id of each evaluation of a complete sweep, and whether each image was classified correctly."""
    (plan, folder), inputs = open_results(config.results), Inputs(config)
    listing = folder.list()
    for key in plan.keys:
        labels = np.asarray(inputs.images(key.dataset, key.parameters.image_selection).labels)
        for unit, columns in KeyRows(folder, key, listing):
            for strength, predictions in zip(unit.strengths, columns[PREDICTIONS], strict=True):
                evaluation_id = unit.dataset, unit.architecture, unit.weights, unit.key, strength
                yield evaluation_id, predictions == labels
