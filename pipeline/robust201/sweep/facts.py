"""Facts about a sweep's inputs that affect results: hashes of images, weights and code. They contain no paths."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from robust201.core.errors import CheckpointError, ConfigError, DatasetError, InputError
from robust201.core.files import write_text
from robust201.core.records import ArchitectureId, ImageSelection, Weights
from robust201.core.user_code import hash_files
from robust201.corruptions.folder import library_versions
from robust201.corruptions.generator import corruption_recipes
from robust201.images.selection import read_positions
from robust201.images.specs import UNKNOWN_COUNT
from robust201.sweep.config import CorruptionsSection, SweepConfig
from robust201.sweep.filters import Filters
from robust201.sweep.inputs import Inputs, frost_textures
from robust201.sweep.loading import load_config, override_config, parse_config
from robust201.sweep.weights import WeightsSource

PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True)
class Network:
    """One network of a sweep on one dataset.

    Attributes:
        weights: the weights, identified by their hash. The hash is empty if they were not found and no run needed them.
        name: short name of the weights if architectures have several; else empty.
        accuracy: accuracy on all test images that was recorded with the weights, if any. No result depends on it;
            `verify` compares it with the measured accuracy.
    """

    architecture: ArchitectureId
    weights: Weights
    name: str = ""
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Number of selected images, and their `ImageSet.sha256`."""

    n_images: int
    sha256: str


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about one dataset.

    Attributes:
        images: facts by key, for keys that select their own images; the empty key stands for the sweep's images.
        networks: its networks, in the order of architectures and weights.
        corruptions: identity of its corrupted images, by key: a content hash if they are published, and the recipe if
            they are generated.
    """

    images: dict[str, ImageFacts]
    networks: tuple[Network, ...]
    corruptions: dict[str, dict[str, Any]] = field(default_factory=dict)

    def images_of(self, key: str = "") -> ImageFacts:
        """Return the facts about the images of a key, by default the sweep's images."""
        return self.images.get(key, self.images[""])


@dataclass(frozen=True)
class Facts:
    """Facts about all inputs of a sweep.

    Attributes:
        datasets: facts about each dataset.
        code: SHA-256 of each Python file, by the YAML field that names it.
    """

    datasets: dict[str, DatasetFacts]
    code: dict[str, str] = field(default_factory=dict)

    @cached_property
    def recorded_accuracies(self) -> dict[str, float]:
        """Accuracies that were recorded with weights, by the SHA-256 of the weights."""
        networks = (network for dataset_facts in self.datasets.values() for network in dataset_facts.networks)
        return {network.weights.sha256: network.accuracy for network in networks if network.accuracy is not None}


@dataclass(frozen=True)
class _PlanRecord:
    """Content of ``plan.json``: the checked fields of the sweep, and the facts of the last run."""

    config: dict[str, Any]
    facts: Facts


_RECORD = TypeAdapter(_PlanRecord)


def gather_facts(config: SweepConfig, inputs: Inputs, earlier: tuple[SweepConfig, Facts] | None = None) -> Facts:
    """Hash the inputs of a sweep.

    Published corrupted images that the filters of `inputs` exclude are not read; their hashes in the `earlier` plan are
    kept. Networks that the filters exclude need no weights; if the weights are not found, their hashes in the earlier
    plan are kept, so that existing results of these networks still count.

    Raises:
        InputError: an input is missing or wrong.
    """
    code = hash_files(config.code_files())
    weights = WeightsSource(config, config.make_space(code))
    has_same_weights = earlier is not None and _weights_fields(config) == _weights_fields(earlier[0])
    datasets = {}
    for dataset in config.datasets:
        earlier_facts = earlier[1].datasets.get(dataset) if earlier else None
        networks = earlier_facts.networks if earlier_facts and has_same_weights else ()
        datasets[dataset] = _dataset_facts(config, dataset, inputs, weights, earlier_facts, networks)
    return Facts(datasets, code)


def _weights_fields(config: SweepConfig) -> dict[str, Any]:
    """Return the fields that select the weights of networks, without the paths of stores, which may move."""
    names = {"space", "network", "checkpoints", "weights"}
    return config.model_dump(mode="json", include=names, exclude={"checkpoints": {"path"}, "weights": {"path"}})


def _dataset_facts(
    config: SweepConfig,
    dataset: str,
    inputs: Inputs,
    weights: WeightsSource,
    earlier: DatasetFacts | None,
    known_networks: Iterable[Network],
) -> DatasetFacts:
    image_sets = {key: inputs.images(dataset, selection) for key, selection in _selections(config)}
    images = {key: ImageFacts(len(selected), selected.sha256) for key, selected in image_sets.items()}
    corruptions = dict(_identify_corruptions(config, dataset, inputs))
    if earlier is not None and earlier.images_of() == images[""]:
        corruptions = {
            key: identity for key, identity in earlier.corruptions.items() if identity["source"] == "published"
        } | corruptions
    networks = _find_networks(config, dataset, weights, inputs.filters)
    return DatasetFacts(images, _fill_hashes(networks, known_networks), corruptions)


def _selections(config: SweepConfig) -> Iterator[tuple[str, ImageSelection | None]]:
    """Yield ("", None) for the sweep's images, and then each key that selects other images, with its selection."""
    yield "", None
    selections = ((key, parameters.image_selection) for key, parameters in config.parameters.items())
    yield from ((key, selection) for key, selection in selections if selection)


def _find_networks(config: SweepConfig, dataset: str, source: WeightsSource, filters: Filters) -> Iterator[Network]:
    for architecture in config.selected_architectures:
        try:
            accuracy_by_weights = source.find(dataset, architecture)
        except CheckpointError:
            if filters.selects(dataset, architecture):
                raise
            accuracy_by_weights = dict.fromkeys(config.placeholder_weights(""))
        for weights, accuracy in accuracy_by_weights.items():
            yield Network(architecture, weights, weights.name if config.has_several_weights else "", accuracy)


def _fill_hashes(networks: Iterable[Network], known_networks: Iterable[Network]) -> tuple[Network, ...]:
    """Return the networks; if one of an architecture lacks a hash, use the architecture's known networks, if any."""
    networks, known = tuple(networks), _by_architecture(known_networks)
    filled = []
    for architecture, group in _by_architecture(networks).items():
        is_missing = not all(network.weights.sha256 for network in group)
        filled += known.get(architecture, group) if is_missing else group
    return tuple(filled)


def _by_architecture(networks: Iterable[Network]) -> dict[ArchitectureId, list[Network]]:
    groups: dict[ArchitectureId, list[Network]] = {}
    for network in networks:
        groups.setdefault(network.architecture, []).append(network)
    return groups


def _identify_corruptions(config: SweepConfig, dataset: str, inputs: Inputs) -> Iterator[tuple[str, dict[str, Any]]]:
    section = config.datasets[dataset].corruptions
    keys = [key for key in config.keys_of(dataset) if config.tasks[key].kind == "corruption"]
    if section is None or not keys:
        return
    if section.source == "generated":
        yield from generation_recipes(section, keys, config.dataset_spec(dataset).image_size).items()
        return
    selected = inputs.selected_corruption_keys(dataset)
    if selected:
        store = inputs.open_published_corruptions(dataset, verify=True)
        yield from ((key, store.identity(key)) for key in selected)


def generation_recipes(section: CorruptionsSection, keys: list[str], image_size: int) -> dict[str, dict[str, Any]]:
    """Return, by key, everything that affects the pixels of generated corruptions, except the clean images."""
    frost = frost_textures(section)
    recipes = corruption_recipes(keys, image_size, seed=section.seed, frost=frost)
    libraries = pixel_libraries(library_versions())
    return {key: {"source": "generated", **recipe, "libraries": libraries} for key, recipe in recipes.items()}


def pixel_libraries(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the libraries that affect pixels; Python's version does not."""
    return {name: version for name, version in versions.items() if name != "python"}


def assumed_facts(config: SweepConfig) -> Facts:
    """Return facts without hashes, for counting only.

    Images are read only if the table of datasets lacks their number; their count is 0 if they cannot be read.

    Raises:
        DatasetError: a file that lists the images of a key cannot be read.
    """
    networks = tuple(
        Network(architecture, weights)
        for architecture in config.selected_architectures
        for weights in config.placeholder_weights("")
    )
    return Facts(
        {
            dataset: DatasetFacts(
                {key: ImageFacts(_count_images(config, dataset, chosen), "") for key, chosen in _selections(config)},
                networks,
            )
            for dataset in config.datasets
        }
    )


def _count_images(config: SweepConfig, dataset: str, key_selection: ImageSelection | None) -> int:
    selection = key_selection or ImageSelection("test", config.images.count, config.images.seed)
    spec = config.dataset_spec(dataset)
    n_split = spec.n_test if selection.split == "test" else spec.n_train
    if selection.file is not None and n_split != UNKNOWN_COUNT:
        return len(read_positions(Path(selection.file), n_split))
    count = selection.count or n_split
    if count != UNKNOWN_COUNT:
        return count
    try:
        return len(Inputs(config).images(dataset, key_selection))
    except DatasetError:  # the images may not be there yet when a sweep is planned; `doctor` reports the reason
        return 0


def load_sweep(path: Path, /, **overrides: Any) -> SweepConfig:
    """Read a sweep from a YAML, or from the plan of a results folder (see `sweep.loading.load_config`)."""
    if not path.is_dir():
        return load_config(path, **overrides)
    fields = load_plan(path)[0].model_dump(mode="json")
    return override_config(fields, path / PLAN_FILE, overrides)


def save_plan(config: SweepConfig, facts: Facts) -> None:
    """Write the sweep and its facts to the results folder, for workers and for commands without the inputs."""
    record = _PlanRecord(config.model_dump(mode="json"), facts)
    write_text(config.results / PLAN_FILE, _RECORD.dump_json(record).decode() + "\n")


def merge_plans(sources: Sequence[Path], target: Path) -> None:
    """Write the plan of `target`, or of the first source if it has none, and add missing hashes from the sources.

    A plan may lack hashes, because a run with filters needs only the weights and corruptions that they select. Sources
    that select weights with other fields are ignored.
    """
    config, facts = load_plan(target if (target / PLAN_FILE).exists() else sources[0])
    for other_config, other in filter(None, map(find_plan, sources)):
        if _weights_fields(config) == _weights_fields(other_config):
            facts = _fill_facts(facts, other)
    save_plan(config.model_copy(update={"results": target}), facts)


def _fill_facts(facts: Facts, other: Facts) -> Facts:
    datasets = {
        dataset: _fill_dataset(known, other.datasets[dataset]) if dataset in other.datasets else known
        for dataset, known in facts.datasets.items()
    }
    return replace(facts, datasets=datasets)


def _fill_dataset(facts: DatasetFacts, other: DatasetFacts) -> DatasetFacts:
    corruptions = other.corruptions | facts.corruptions if facts.images_of() == other.images_of() else facts.corruptions
    return replace(facts, networks=_fill_hashes(facts.networks, other.networks), corruptions=corruptions)


def load_plan(results: Path) -> tuple[SweepConfig, Facts]:
    """Read the sweep and the facts of the last run.

    Raises:
        InputError: there is no valid plan.
    """
    path = results / PLAN_FILE
    try:
        record = _RECORD.validate_json(path.read_bytes())
        # The folder decides where the results are, because it may have been moved.
        return parse_config(record.config | {"results": str(results)}, str(path)), record.facts
    except FileNotFoundError as error:
        raise InputError(
            f"Reading the plan failed for {path}: no such file. Write it with: robust201 run SWEEP.yaml"
        ) from error
    except (OSError, ValidationError, ConfigError) as error:
        raise InputError(
            f"Reading the plan failed for {path}: not a valid plan ({type(error).__name__}). "
            "Rewrite it with: robust201 run SWEEP.yaml"
        ) from error


def find_plan(results: Path) -> tuple[SweepConfig, Facts] | None:
    """Return the sweep and facts of the last run; None if there is no valid plan."""
    try:
        return load_plan(results)
    except InputError:
        return None
