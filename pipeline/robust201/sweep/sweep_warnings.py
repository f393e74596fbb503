"""Warnings about valid sweeps: omitted evaluations, and values that may be mistakes."""

from collections.abc import Iterator

from robust201.core.records import NO_NORMALISATION
from robust201.sweep.config import SpaceFile, SweepConfig
from robust201.sweep.facts import Facts
from robust201.sweep.training_config import TrainingConfig
from robust201.sweep.user_tasks import UserTaskParameters

_MAX_SHOWN_KEYS = 3


def find_unreadable_datasets(config: SweepConfig, facts: Facts) -> list[str]:
    """Return warnings about datasets whose images cannot be counted (see `sweep.facts.assumed_facts`)."""
    return [
        f"the images of {dataset} cannot be read from {config.datasets[dataset].path}, so the estimates exclude "
        f"{dataset}. Run `robust201 doctor` to find the cause."
        for dataset, dataset_facts in facts.datasets.items()
        if not dataset_facts.images_of().n_images
    ]


def find_sweep_warnings(config: SweepConfig) -> list[str]:
    """Return all warnings about a sweep that need only its YAML."""
    return [
        *_find_omitted_corruptions(config),
        *find_network_warnings(config),
        *_find_doubtful_parameters(config),
    ]


def _find_omitted_corruptions(config: SweepConfig) -> Iterator[str]:
    for dataset, section in config.datasets.items():
        keys = [key for key in config.tasks if key not in config.keys_of(dataset)]
        # `corruptions: null` excludes the group on purpose, but a corruption that `keys` names still needs a warning.
        if keys and ("corruptions" not in section.model_fields_set or any(key in config.keys for key in keys)):
            key_names = ", ".join(keys) if len(keys) <= _MAX_SHOWN_KEYS else f"{len(keys)} corruptions"
            yield (
                f"not evaluated on {dataset}: {key_names}, because datasets.{dataset} has no source of corrupted "
                f"images. To evaluate them, write `corruptions: {{source: generated}}` in datasets.{dataset}."
            )


def find_network_warnings(config: SweepConfig | TrainingConfig) -> Iterator[str]:
    """Warn about defaults for a user's networks: their cost, and the normalisation of images of built-in datasets.

    Users may not expect the normalisation, because `robust201 evaluate` does not normalise images.
    """
    if not isinstance(config.space, SpaceFile):
        return
    if "gmacs" not in config.space.model_fields_set:
        yield (
            f"space.gmacs: not set, so times are estimated as if each network made {config.space.gmacs:g} billion "
            "multiply-accumulates per image. Set it to the actual number."
        )
    for dataset, section in config.datasets.items():
        normalisation = config.dataset_spec(dataset).normalisation
        if section.normalisation is None and normalisation != NO_NORMALISATION.of_channels(len(normalisation.mean)):
            yield (
                f"the networks of {config.space.file} get the images of {dataset} normalised with mean "
                f"{_format_numbers(normalisation.mean)} and std {_format_numbers(normalisation.std)}. "
                "If they take pixels in [0, 1], as with `robust201 evaluate`, write `normalisation: {mean: [0, 0, 0], "
                f"std: [1, 1, 1]}}` in datasets.{dataset}; otherwise write these numbers there, and append them "
                "to the network of `evaluate` and `compare` as ,mean=… and ,std=…."
            )


def _format_numbers(numbers: tuple[float, ...]) -> str:
    return f"[{', '.join(f'{number:.4g}' for number in numbers)}]"


def _find_doubtful_parameters(config: SweepConfig) -> Iterator[str]:
    for key, parameters in config.parameters.items():
        for caution in parameters.cautions:
            yield f"keys.{key}.{caution.field}: {caution.problem}. {caution.remedy}"
        if isinstance(parameters, UserTaskParameters) and parameters.kind == "attack" and parameters.passes is None:
            yield (
                f"keys.{key}.passes: not set, so times are estimated as if the attack made one pass per image. "
                "Set it to the number of forward passes, with three for each gradient."
            )
