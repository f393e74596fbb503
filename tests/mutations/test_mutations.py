"""After random damage to files of every kind, readers and commands give an error, a warning or the correct result.

By default there are few mutations. For many mutations, run
``MUTATIONS=500 MUTATIONS_SEED=1 python -m pytest -n 0 --timeout 3600 tests/mutations``.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from robust201.reader.listings import MissingFilesWarning
from tests.mutations.damage import DAMAGES, damages_of
from tests.mutations.probes import PROBES, Probe, find_problem
from tests.mutations.workspace import CommandResult, Workspace


def run_probe(probe: Probe, root: Path) -> tuple[CommandResult, Any, bool]:
    """Run a probe; return its result, its data, and whether a warning reported missing files."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        result, data = probe.run(root)
    return result, data, any(issubclass(warning.category, MissingFilesWarning) for warning in recorded)


def pick(options: Any, rng: np.random.Generator) -> Any:
    return options[int(rng.integers(len(options)))]


def test_damaged_files_give_errors_warnings_or_correct_results(tmp_path: Path) -> None:
    n_mutations = int(os.environ.get("MUTATIONS", "16"))
    seed = int(os.environ.get("MUTATIONS_SEED", "2"))
    workspace = Workspace(tmp_path)
    undamaged_data: dict[tuple[str, str], Any] = {}
    damages, exit_codes, problems = set(), set(), []
    for index in range(n_mutations):
        rng = np.random.default_rng([seed, index])
        file_kind = list(PROBES)[index % len(PROBES)]
        probe_name = pick(list(PROBES[file_kind]), rng)
        probe = PROBES[file_kind][probe_name]
        if (file_kind, probe_name) not in undamaged_data:
            _, undamaged_data[file_kind, probe_name], has_warned = run_probe(probe, workspace.root)
            assert not has_warned
            workspace.restore()
        files = workspace.files(file_kind)
        path = pick(files, rng)
        damage = pick(damages_of(path), rng)
        siblings = [file for file in files if file != path and file.suffix == path.suffix]
        damage = "bit flipped" if damage == "swapped" and not siblings else damage
        DAMAGES[damage](path, siblings, rng)
        result, data, has_warned = run_probe(probe, workspace.root)
        problem = "" if has_warned else find_problem(probe, result, data, undamaged_data[file_kind, probe_name])
        if problem:
            problems.append(f"{path.relative_to(workspace.root)} {damage}, {probe_name}: {problem}")
        damages.add(damage)
        exit_codes.add(result.code)
        workspace.restore()
    assert not problems, "\n".join(problems)
    assert len(damages) > 4
    assert exit_codes >= {0, 2}
