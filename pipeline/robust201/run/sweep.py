"""A run of a sweep: plans once, compares the plan with the results folder, and computes the missing parts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from robust201.core.errors import InputError
from robust201.core.files import remove_leftovers
from robust201.run.lock import hold_lock
from robust201.store.folder import ResultsFolder
from robust201.sweep.config import SweepConfig
from robust201.sweep.facts import gather_facts, save_plan
from robust201.sweep.filters import Filters
from robust201.sweep.inputs import Inputs
from robust201.sweep.parts import SweepState, compare
from robust201.sweep.plan import Plan, choose_slices, make_plan

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a part.

    Attributes:
        label: the part, for messages.
        strengths: strengths that were stored.
        seconds: wall time.
        failure: one line about the error; empty if the part was stored.
    """

    label: str
    strengths: tuple[float, ...] = ()
    seconds: float = 0.0
    failure: str = ""


@dataclass
class Tally:
    """What a run did: numbers of stored and planned evaluations (of all images), and failures."""

    n_planned: int
    n_done_before: int
    n_parts: int = 0
    failures: list[Outcome] = field(default_factory=list)
    is_drained: bool = False

    def count(self, outcome: Outcome) -> None:
        self.n_parts += 1
        if outcome.failure:
            self.failures.append(outcome)


@dataclass(frozen=True)
class PreparedRun:
    """A plan and its state, after everything that workers read has been written."""

    folder: ResultsFolder
    plan: Plan
    state: SweepState


@contextmanager
def prepare_run(config: SweepConfig, filters: Filters, say: Say) -> Iterator[PreparedRun]:
    """Check all inputs, hold the lock, and write the plan and the inputs of workers.

    Raises:
        ConfigError: a filter has an unknown name; nothing was written.
        InputError: an input is missing or wrong; nothing was written.
        LeaseHeldError: another driver is working in the folder.
    """
    filters.check(config)
    inputs = Inputs(config, say, keys=filters.keys, datasets=filters.datasets)
    inputs.check()
    facts = gather_facts(config, say)
    folder = ResultsFolder.create(config.results, choose_slices(config), config.shards or "")
    _check_device(config, folder)
    with hold_lock(config.results):
        full_plan = make_plan(config, facts, folder.slices)
        full_plan.save_records(folder)
        save_plan(config, facts)
        inputs.copy_images()
        inputs.save_code_copies()
        remove_leftovers(config.results)
        plan = full_plan.narrow(architectures=filters.architectures, datasets=filters.datasets, keys=filters.keys)
        yield PreparedRun(folder, plan, compare(plan, folder.list(), folder.read_tuple))


def _check_device(config: SweepConfig, folder: ResultsFolder) -> None:
    """Keep results of CPUs and of other devices apart, because their last bits differ."""
    if config.execution.is_on_cpu() != folder.slices.is_cpu:
        expected = "cpu" if folder.slices.is_cpu else "auto or cuda"
        raise InputError(
            f"Starting a run failed for {folder.root}: expected execution.device {expected}, with which the folder was "
            f"made, got {config.execution.device}. Change the device, or choose another folder."
        )


def make_corrupted_images(run: PreparedRun, say: Say) -> None:
    """Generate the corrupted images of missing parts."""
    inputs = Inputs(run.plan.config, say)
    keys: dict[str, set[str]] = {}
    for state in run.state.keys:
        if state.key.task.kind == "corruption" and not state.done.all():
            keys.setdefault(state.key.dataset, set()).add(state.key.key)
    for dataset, names in keys.items():
        inputs.generate_missing_corruptions(dataset, names)
