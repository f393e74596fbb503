"""What a sweep is narrowed to."""

from dataclasses import dataclass

from robust201.core.errors import ConfigError, closest
from robust201.core.records import ArchitectureId, show_architecture
from robust201.planning.config import SweepConfig
from robust201.planning.plan import Plan
from robust201.tasks import KEY_GROUPS, TASKS, closest_key


@dataclass(frozen=True)
class Filters:
    """The part of a sweep that a command works on; None keeps everything."""

    architectures: tuple[ArchitectureId, ...] | None = None
    datasets: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    def check(self, config: SweepConfig) -> None:
        """Check that something is left of a sweep."""
        datasets = self.datasets or tuple(config.datasets)
        for given, known, others, what in (
            (datasets, list(config.datasets), (), "dataset"),
            (self.keys or (), list(config.parameters), (*TASKS, *KEY_GROUPS), "key"),
        ):
            for name in given:
                if name not in known:
                    # A misspelt key may mean one that this sweep lacks; for others the sweep's are named.
                    likely = known if name in others else [*known, *(key for key in others if key not in known)]
                    near = closest_key(name, likely) if what == "key" else closest(name, likely)
                    raise ConfigError(
                        f"Narrowing the sweep failed for {config.name}: expected one of its {what}s, got {name!r}."
                        f"{near}"
                    )
        keys = {key for dataset in datasets for key in config.keys_of(dataset)}
        # A single key must exist; a range of architectures may extend beyond the sweep.
        lacking = [key for key in self.keys or () if key not in keys]
        if lacking:
            raise ConfigError(
                f"Narrowing the sweep failed for {', '.join(lacking)}: expected some of {config.name}'s keys on "
                f"{', '.join(datasets)}, got none of them. Correct the option, or add them to the sweep."
            )
        names = self.architectures
        if names is not None and not {*names} & {*config.selected_architectures}:
            raise ConfigError(
                f"Narrowing the sweep failed for {', '.join(map(show_architecture, names[:5]))}: expected some of "
                f"{config.name}'s architectures, got none of them. Correct the option, or add them to the sweep."
            )

    def narrow(self, plan: Plan) -> Plan:
        return plan.narrow(architectures=self.architectures, datasets=self.datasets, keys=self.keys)


EVERYTHING = Filters()
