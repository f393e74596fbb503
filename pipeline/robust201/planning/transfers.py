"""Transfers, as the sweep YAML gives them: an attack, and the network that its images are made on."""

import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import SerializeAsAny, model_serializer

from robust201.core.errors import ConfigError, closest
from robust201.core.records import ArchitectureId, Weights, show_architecture
from robust201.planning.user_tasks import LONGEST_NAME, is_own_name
from robust201.tasks import TASKS, Task
from robust201.tasks.parameters import Parameters
from robust201.tasks.transfer_task import TransferTask

_OWN_FIELDS = ("source", "key", "weights")

_ATTACKS = tuple(key for key, row in TASKS.items() if row.kind == "attack")

ParseParameters = Callable[[str, type[Parameters], Mapping[str, Any]], Parameters]


class TransferParameters(Parameters):
    """A transfer: what its images are made on, and by which attack.

    Attributes:
        source: the architecture, one of the sweep's.
        weights: short name of the source's weights, where a network has several.
        key: the attack, a row of the table of tasks.
        attack: the attack's parameters.
    """

    source: int | str
    weights: str = ""
    key: str
    attack: SerializeAsAny[Parameters]

    @model_serializer(mode="plain")
    def _to_fields(self) -> dict[str, Any]:
        own = {"source": self.source, "key": self.key} | ({"weights": self.weights} if self.weights else {})
        return own | self.attack.model_dump(mode="json")

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.attack.strengths

    @property
    def row(self) -> Task:
        return TASKS[self.key]

    def identity(self) -> dict[str, Any]:
        """The attack and its parameters; the source is in the protocol by its weights (see `identify_source`)."""
        constraint = self.row.constraint
        return {
            "kind": "attack",
            "norm": None if constraint is None else constraint.name,
            "attack": self.key,
            "parameters": self.attack.identity(),
        }

    def refusal(self, engine: str) -> str | None:
        if engine not in self.row.functions:
            return f"expected an engine that {self.key} has ({', '.join(self.row.functions)}), got {engine}."
        return self.attack.refusal(engine)

    def class_refusal(self, n_classes: int) -> str | None:
        return self.attack.class_refusal(n_classes)

    def to_task(self, key: str) -> TransferTask:
        return TransferTask(
            key=key,
            kind="attack",
            parameters=type(self),
            semantics_version=1,
            functions=dict.fromkeys(self.row.functions, "transfer.show"),
            passes=lambda _p, _c: 1.0,
            constraint=self.row.constraint,
            name=f"{self.row.label} on {self.source}",
            attack=self.row,
        )

    def identify_source(self, architecture: ArchitectureId, states: Sequence[Weights]) -> dict[str, Any]:
        """Say what made the images, given the source's id and weights: the part of a protocol that names it."""
        return {
            "architecture": architecture,
            "checkpoint_sha256": self.choose_weights(states).sha256,
            "semantics_version": self.row.semantics_version,
        }

    def choose_weights(self, states: Sequence[Weights]) -> Weights:
        """Choose the source's weights."""
        chosen = [state for state in states if not self.weights or state.name == self.weights]
        if len({state.sha256 for state in states}) == 1 and not self.weights:
            return states[0]
        names = [state.name for state in states if state.name]
        if len(chosen) != 1 and not names:
            raise ConfigError(
                f"Choosing the source of a transfer failed for {show_architecture(self.source)}: expected no "
                f"`weights`, as it has one set, without a name, got {reprlib.repr(self.weights)}. Leave the field out."
            )
        if len(chosen) != 1:
            raise ConfigError(
                f"Choosing the source of a transfer failed for {show_architecture(self.source)}: expected `weights`, "
                f"one of {', '.join(names)}, got {self.weights or 'none'}.{closest(self.weights, names)}"
            )
        return chosen[0]


def read_transfers(
    name: str, given: Mapping[str, Any], taken: Collection[str], parse: ParseParameters
) -> Iterator[tuple[str, TransferParameters]]:
    """Read a transfer, or one for each of several sources, named after them; `taken` are names that mean other keys."""
    if name in taken or not is_own_name(name):
        raise ValueError(
            f"expected an unused name that begins with a letter, of up to {LONGEST_NAME} bytes, for a transfer, such "
            f"as transfer, got {reprlib.repr(name)}."
        )
    key = given.get("key")
    if key not in _ATTACKS:
        near = closest(key, _ATTACKS) if isinstance(key, str) else ""
        raise ConfigError(f"keys.{name}.key: expected an attack, such as pgd, got {reprlib.repr(key)}.{near}")
    own = {field: given[field] for field in _OWN_FIELDS if field in given}
    attack = parse(name, TASKS[key].parameters, {field: v for field, v in given.items() if field not in own})
    several = isinstance(own["source"], list | tuple)
    sources = list(own["source"]) if several else [own["source"]]
    by_source: dict[str, TransferParameters] = {}
    for source in sources:
        parameters = parse(name, TransferParameters, own | {"source": source, "attack": attack})
        assert isinstance(parameters, TransferParameters)  # noqa: S101 - what was asked for
        by_source[str(parameters.source)] = parameters  # as it is understood: 0.0 is 0
    if not sources or len(by_source) != len(sources):
        raise ConfigError(f"keys.{name}.source: expected one or more different architectures, got {sources}.")
    for text, parameters in by_source.items():
        yield f"{name}_{re.sub(r'[^A-Za-z0-9.-]+', '-', text)}" if several else name, parameters
