"""Filters that select a subset of a sweep."""

from dataclasses import dataclass
from typing import Any

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import ArchitectureId, format_architecture
from robust201.sweep.config import SweepConfig
from robust201.tasks import KEY_GROUPS, TASKS, suggest_key


@dataclass(frozen=True)
class Filters:
    """Selection of a subset of a sweep; None selects everything."""

    architectures: tuple[ArchitectureId, ...] | None = None
    datasets: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    def check(self, config: SweepConfig) -> None:
        """Check that the filters have only known names and select something.

        Raises:
            ConfigError: a selected name is not in the sweep, or nothing is selected.
        """
        datasets = self.datasets or tuple(config.datasets)
        for selected_names, sweep_names, all_known_names, noun in (
            (datasets, list(config.datasets), (), "dataset"),
            (self.keys or (), list(config.parameters), (*TASKS, *KEY_GROUPS), "key"),
        ):
            for name in selected_names:
                if name not in sweep_names:
                    # Suggest the sweep's names; if the name is misspelt, also suggest names that this sweep lacks.
                    candidates = (
                        sweep_names
                        if name in all_known_names
                        else [*sweep_names, *(key for key in all_known_names if key not in sweep_names)]
                    )
                    suggestion = suggest_key(name, candidates) if noun == "key" else did_you_mean(name, candidates)
                    raise ConfigError(
                        f"Narrowing the sweep failed for {config.name}: expected one of its {noun}s, got "
                        f"{name!r}.{suggestion}"
                    )
        keys = {key for dataset in datasets for key in config.keys_of(dataset)}
        # Every key must exist; a range of architectures may extend beyond the sweep.
        missing_keys = [key for key in self.keys or () if key not in keys]
        if missing_keys:
            raise ConfigError(
                f"Narrowing the sweep failed for {', '.join(missing_keys)}: {config.name} does not evaluate these keys "
                f"on {', '.join(datasets)}. Correct the option, or add the keys to the sweep."
            )
        architectures = self.architectures
        if architectures is not None and not {*architectures} & {*config.selected_architectures}:
            raise ConfigError(
                f"Narrowing the sweep failed for {', '.join(map(format_architecture, architectures[:5]))}: "
                f"{config.name} has none of these architectures. Correct the option, or add the architectures to the "
                "sweep."
            )

    def narrow(self, plan: Any) -> Any:
        """Return a plan of the selected units."""
        return plan.narrow(architectures=self.architectures, datasets=self.datasets, keys=self.keys)


EVERYTHING = Filters()
