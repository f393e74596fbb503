"""Filters that select a part of a sweep."""

from dataclasses import dataclass

from robust201.core.errors import ConfigError, closest
from robust201.core.records import ArchitectureId, show_architecture
from robust201.planning.config import SweepConfig
from robust201.planning.plan import Plan
from robust201.tasks import KEY_GROUPS, TASKS, closest_key


@dataclass(frozen=True)
class Filters:
    """Selection of a part of a sweep; None selects everything."""

    architectures: tuple[ArchitectureId, ...] | None = None
    datasets: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    def check(self, config: SweepConfig) -> None:
        """Raise ConfigError unless the filters select a part of a sweep and all selected names are known."""
        datasets = self.datasets or tuple(config.datasets)
        for selected, known, others, what in (
            (datasets, list(config.datasets), (), "dataset"),
            (self.keys or (), list(config.parameters), (*TASKS, *KEY_GROUPS), "key"),
        ):
            for name in selected:
                if name not in known:
                    # Suggest the sweep's keys; if the name is misspelt, also keys that the sweep lacks.
                    candidates = known if name in others else [*known, *(key for key in others if key not in known)]
                    near = closest_key(name, candidates) if what == "key" else closest(name, candidates)
                    raise ConfigError(
                        f"Narrowing the sweep failed for {config.name}: expected one of its {what}s, got {name!r}."
                        f"{near}"
                    )
        keys = {key for dataset in datasets for key in config.keys_of(dataset)}
        # Every key must exist; a range of architectures may extend beyond the sweep.
        missing = [key for key in self.keys or () if key not in keys]
        if missing:
            raise ConfigError(
                f"Narrowing the sweep failed for {', '.join(missing)}: {config.name} does not evaluate these keys on "
                f"{', '.join(datasets)}. Correct the option, or add them to the sweep."
            )
        names = self.architectures
        if names is not None and not {*names} & {*config.selected_architectures}:
            raise ConfigError(
                f"Narrowing the sweep failed for {', '.join(map(show_architecture, names[:5]))}: {config.name} has "
                "none of the architectures. Correct the option, or add them to the sweep."
            )

    def narrow(self, plan: Plan) -> Plan:
        return plan.narrow(architectures=self.architectures, datasets=self.datasets, keys=self.keys)


EVERYTHING = Filters()
