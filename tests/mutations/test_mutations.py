"""Files of every kind are damaged at random: no reader or command may fail with a traceback or return a wrong result.

A short run; ``MUTATIONS=500 MUTATIONS_SEED=1 python -m pytest -n 0 --timeout 3600 tests/mutations`` is a long one.
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


def ask(probe: Probe, root: Path) -> tuple[CommandResult, Any, bool]:
    """Run a probe; the third value is whether a warning reported missing files."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        result, answer = probe.ask(root)
    return result, answer, any(issubclass(warning.category, MissingFilesWarning) for warning in recorded)


def pick(values: Any, draws: np.random.Generator) -> Any:
    return values[int(draws.integers(len(values)))]


def test_damaged_files_give_errors_or_correct_results(tmp_path: Path) -> None:
    count, seed = (int(os.environ.get(name, default)) for name, default in (("MUTATIONS", 16), ("MUTATIONS_SEED", 2)))
    workspace = Workspace(tmp_path)
    undamaged: dict[tuple[str, str], Any] = {}
    damages, codes, problems = set(), set(), []
    for number in range(count):
        draws = np.random.default_rng([seed, number])
        kind = list(PROBES)[number % len(PROBES)]
        name = pick(list(PROBES[kind]), draws)
        probe = PROBES[kind][name]
        if (kind, name) not in undamaged:
            _, undamaged[kind, name], has_warned = ask(probe, workspace.root)
            assert not has_warned
            workspace.restore()
        files = workspace.files(kind)
        path = pick(files, draws)
        damage = pick(damages_of(kind, path), draws)
        siblings = [other for other in files if other != path and other.suffix == path.suffix]
        damage = "bit flipped" if damage == "swapped" and not siblings else damage
        DAMAGES[damage](path, siblings, draws)
        result, answer, has_warned = ask(probe, workspace.root)
        problem = "" if has_warned else find_problem(probe, result, answer, undamaged[kind, name])
        if problem:
            problems.append(f"{path.relative_to(workspace.root)} {damage}, {name}: {problem}")
        damages.add(damage)
        codes.add(result.code)
        workspace.restore()
    assert not problems, "\n".join(problems)
    assert len(damages) > 4
    assert codes >= {0, 2}
