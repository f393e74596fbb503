"""Transfer attacks in the sweep YAML: an attack, and the source network on which it generates adversarial images."""

import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import SerializeAsAny, model_serializer

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import ArchitectureId, Weights, format_architecture
from robust201.planning.user_tasks import MAX_NAME_BYTES, is_custom_name
from robust201.tasks import TASKS, Task
from robust201.tasks.parameters import Parameters
from robust201.tasks.transfer_task import TransferTask

_TRANSFER_FIELDS = ("source", "key", "weights")

_ATTACKS = tuple(key for key, task in TASKS.items() if task.kind == "attack")

ParseParameters = Callable[[str, type[Parameters], Mapping[str, Any]], Parameters]
"""Function from a key, a model of parameters and the fields of the key to validated parameters."""


class TransferParameters(Parameters):
    """A transfer attack: its source network, and the attack that generates the images.

    Attributes:
        source: architecture of the source network, which must be in the sweep.
        weights: short name of the source's weights; needed if networks have several sets of weights.
        key: key of the attack in `TASKS`.
        attack: the attack's parameters.
    """

    source: int | str
    weights: str = ""
    key: str
    attack: SerializeAsAny[Parameters]

    @model_serializer(mode="plain")
    def _to_fields(self) -> dict[str, Any]:
        transfer_fields = {"source": self.source, "key": self.key} | ({"weights": self.weights} if self.weights else {})
        return transfer_fields | self.attack.model_dump(mode="json")

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.attack.strengths

    @property
    def attack_task(self) -> Task:
        return TASKS[self.key]

    def identity(self) -> dict[str, Any]:
        """Return the attack and its parameters; `identify_source` identifies the source in the protocol."""
        constraint = self.attack_task.constraint
        return {
            "kind": "attack",
            "norm": None if constraint is None else constraint.name,
            "attack": self.key,
            "parameters": self.attack.identity(),
        }

    def unsupported_engine_reason(self, engine: str) -> str | None:
        if engine not in self.attack_task.functions:
            engines = ", ".join(self.attack_task.functions)
            return f"expected an engine that implements {self.key} ({engines}), got {engine}."
        return self.attack.unsupported_engine_reason(engine)

    def unsupported_classes_reason(self, n_classes: int) -> str | None:
        return self.attack.unsupported_classes_reason(n_classes)

    def to_task(self, key: str) -> TransferTask:
        return TransferTask(
            key=key,
            kind="attack",
            parameters=type(self),
            semantics_version=1,
            functions=dict.fromkeys(self.attack_task.functions, "transfer.yield_images"),
            passes=lambda _p, _c: 1.0,
            constraint=self.attack_task.constraint,
            name=f"{self.attack_task.label} on {self.source}",
            attack=self.attack_task,
        )

    def identify_source(self, architecture: ArchitectureId, candidates: Sequence[Weights]) -> dict[str, Any]:
        """Return the protocol fields that identify the source network and the attack's version."""
        return {
            "architecture": architecture,
            "checkpoint_sha256": self.choose_weights(candidates).sha256,
            "semantics_version": self.attack_task.semantics_version,
        }

    def choose_weights(self, candidates: Sequence[Weights]) -> Weights:
        """Choose the source's weights from `candidates`, which are all weights of the source network.

        Raises:
            ConfigError: no candidate has the name `weights`, or the name is empty and there are several candidates.
        """
        matches = [candidate for candidate in candidates if not self.weights or candidate.name == self.weights]
        if len({candidate.sha256 for candidate in candidates}) == 1 and not self.weights:
            return candidates[0]
        names = [candidate.name for candidate in candidates if candidate.name]
        if len(matches) != 1 and not names:
            raise ConfigError(
                f"Choosing the source of a transfer failed for {format_architecture(self.source)}: it has a single, "
                f"unnamed set of weights, but `weights` is {reprlib.repr(self.weights)}. Remove the field."
            )
        if len(matches) != 1:
            raise ConfigError(
                f"Choosing the source of a transfer failed for {format_architecture(self.source)}: expected `weights` "
                f"to be one of {', '.join(names)}, got {self.weights or 'none'}.{did_you_mean(self.weights, names)}"
            )
        return matches[0]


def parse_transfers(
    name: str, fields: Mapping[str, Any], reserved: Collection[str], parse: ParseParameters
) -> Iterator[tuple[str, TransferParameters]]:
    """Parse a transfer, and yield its key and parameters; a list of sources gives one transfer per source.

    `reserved` contains names that a transfer must not have, such as those of the built-in keys.

    Raises:
        ConfigError: a field is invalid.
        ValueError: the name is not allowed.
    """
    if name in reserved or not is_custom_name(name):
        raise ValueError(
            "expected an unused name for a transfer, such as `from_resnet`, which must begin with a letter and have up "
            f"to {MAX_NAME_BYTES} bytes, got {reprlib.repr(name)}."
        )
    key = fields.get("key")
    if key not in _ATTACKS:
        suggestion = did_you_mean(key, _ATTACKS) if isinstance(key, str) else ""
        raise ConfigError(f"keys.{name}.key: expected an attack, such as pgd, got {reprlib.repr(key)}.{suggestion}")
    transfer_fields = {field: fields[field] for field in _TRANSFER_FIELDS if field in fields}
    attack = parse(
        name,
        TASKS[key].parameters,
        {field: value for field, value in fields.items() if field not in transfer_fields},
    )
    has_source_list = isinstance(transfer_fields["source"], list | tuple)
    sources = list(transfer_fields["source"]) if has_source_list else [transfer_fields["source"]]
    parameters_by_source: dict[str, TransferParameters] = {}
    for source in sources:
        parameters = parse(name, TransferParameters, transfer_fields | {"source": source, "attack": attack})
        assert isinstance(parameters, TransferParameters)  # noqa: S101 - parse() returns the class it is passed
        parameters_by_source[str(parameters.source)] = parameters  # parsed values, so that 0.0 and 0 are duplicates
    if not sources or len(parameters_by_source) != len(sources):
        raise ConfigError(f"keys.{name}.source: expected one or more different architectures, got {sources}.")
    for source_name, parameters in parameters_by_source.items():
        yield f"{name}_{re.sub(r'[^A-Za-z0-9.-]+', '-', source_name)}" if has_source_list else name, parameters
