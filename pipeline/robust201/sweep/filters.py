"""Filters that select a subset of a sweep or of the training runs of a YAML."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import ArchitectureId, format_architecture
from robust201.sweep.config import SweepConfig
from robust201.sweep.training_config import TrainingConfig, TrainingRun
from robust201.tasks import suggest_key


@dataclass(frozen=True)
class Filters:
    """Selection of a subset; None selects everything. `keys` are for sweeps, and `recipes` for training runs."""

    architectures: tuple[ArchitectureId, ...] | None = None
    datasets: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    recipes: tuple[str, ...] | None = None

    @cached_property
    def _architectures(self) -> frozenset[ArchitectureId]:
        return frozenset(self.architectures or ())

    def selects(self, dataset: str, architecture: ArchitectureId) -> bool:
        """Return whether an architecture on a dataset is selected."""
        is_dataset_selected = self.datasets is None or dataset in self.datasets
        return is_dataset_selected and (self.architectures is None or architecture in self._architectures)

    def check(self, config: SweepConfig | TrainingConfig) -> None:
        """Check that the filters have only known names and select something.

        Raises:
            ConfigError: a selected name is not in the YAML, or nothing is selected.
        """
        self._check_names(config, "dataset", self.datasets, config.datasets)
        if isinstance(config, SweepConfig):
            self._check_names(config, "key", self.keys, config.parameters)
            self._check_keys(config)
        else:
            self._check_names(config, "recipe", self.recipes, config.recipes)
        # Every name must exist, but a range of architectures may extend beyond the YAML.
        architectures = self.architectures
        if architectures is not None and not self._architectures & {*config.selected_architectures}:
            raise ConfigError(
                f"Selecting failed for {', '.join(map(format_architecture, architectures[:5]))}: {config.name} has "
                "none of these architectures. Correct the option, or add the architectures to the YAML."
            )
        if isinstance(config, TrainingConfig) and not select_training_runs(config, self):
            raise ConfigError(
                f"Selecting failed for {config.name}: expected options that select a training run, but the selected "
                "recipes train on other datasets. Correct the options."
            )

    def _check_names(
        self,
        config: SweepConfig | TrainingConfig,
        noun: str,
        names: tuple[str, ...] | None,
        known_names: Collection[str],
    ) -> None:
        for name in names or ():
            if name not in known_names:
                suggestion = suggest_key(name, known_names) if noun == "key" else did_you_mean(name, known_names)
                raise ConfigError(
                    f"Selecting failed for {config.name}: expected one of its {noun}s, got {name!r}.{suggestion}"
                )

    def _check_keys(self, config: SweepConfig) -> None:
        datasets = self.datasets or tuple(config.datasets)
        keys = {key for dataset in datasets for key in config.keys_of(dataset)}
        missing_keys = [key for key in self.keys or () if key not in keys]
        if missing_keys:
            raise ConfigError(
                f"Selecting failed for {', '.join(missing_keys)}: {config.name} does not evaluate these keys on "
                f"{', '.join(datasets)}. Correct the option, or add the keys to the sweep."
            )

    def narrow(self, plan: Any) -> Any:
        """Return a plan of the selected units."""
        return plan.narrow(architectures=self.architectures, datasets=self.datasets, keys=self.keys)


EVERYTHING = Filters()


def select_training_runs(config: TrainingConfig, filters: Filters = EVERYTHING) -> list[TrainingRun]:
    """Return the selected training runs of a YAML."""
    return [
        training
        for training in config.training_runs()
        if filters.selects(training.dataset, training.architecture)
        and (filters.recipes is None or training.recipe in filters.recipes)
    ]
