"""Trials: one file damaged, one question asked, the answer judged."""

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robust201.reader.listings import MissingFilesWarning
from tests.mutations.damage import DAMAGES, damages_of
from tests.mutations.probes import PROBES, judge
from tests.mutations.workspace import Workspace


@dataclass(frozen=True)
class Trial:
    """What was damaged, how, what was asked, how that ended, and what is wrong with it (empty: nothing)."""

    kind: str
    damage: str
    file: str
    probe: str
    code: int | None
    seconds: float
    problem: str


def run_trials(folder: Path, count: int, seed: int, tell: Callable[[Trial], None] = lambda _trial: None) -> list[Trial]:
    """Damage files at random, each kind as often as the others."""
    workspace = Workspace.make(folder)
    undamaged: dict[tuple[str, str], Any] = {}
    trials = []
    kinds = list(PROBES)
    for number in range(count):
        draws = np.random.default_rng([seed, number])
        kind = kinds[number % len(kinds)]
        names = list(PROBES[kind])
        name = names[int(draws.integers(len(names)))]
        if (kind, name) not in undamaged:
            with _collecting_warnings() as warned:
                _, undamaged[kind, name] = PROBES[kind][name].ask(workspace.root)
            assert not warned, warned
            workspace.restore()
        trials.append(_run_trial(workspace, kind, name, draws, undamaged[kind, name]))
        tell(trials[-1])
        workspace.restore()
    return trials


def _run_trial(workspace: Workspace, kind: str, name: str, draws: np.random.Generator, undamaged: Any) -> Trial:
    files = workspace.files(kind)
    path = files[int(draws.integers(len(files)))]
    possible = damages_of(kind, path)
    damage = possible[int(draws.integers(len(possible)))]
    siblings = [other for other in files if other != path and other.suffix == path.suffix]
    if damage == "swapped" and not siblings:
        damage = "bit flipped"
    DAMAGES[damage](path, siblings, draws)
    probe = PROBES[kind][name]
    started = time.monotonic()
    with _collecting_warnings() as warned:
        ended, answer = probe.ask(workspace.root)
    problem = "" if warned else judge(probe, ended, answer, undamaged)
    file = path.relative_to(workspace.root).as_posix()
    return Trial(kind, damage, file, name, ended.code, time.monotonic() - started, problem)


@contextmanager
def _collecting_warnings() -> Iterator[list[str]]:
    """Collect the warnings of missing files: they report damage."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(one.message) for one in caught if issubclass(one.category, MissingFilesWarning)]


def run_in_folder(count: int, seed: int, tell: Callable[[Trial], None]) -> list[Trial]:
    """Run trials in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="robust201-mutations-") as folder:
        return run_trials(Path(folder), count, seed, tell)
