"""User-defined architectures, built by a function in a Python file."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.core.records import ArchitectureId
from robust201.core.user_code import UserFunction, describe_failure, hash_file
from robust201.networks.space import Space

if TYPE_CHECKING:
    from torch import nn

DEFAULT_GMACS = 0.1
"""Default estimate of the multiply-accumulates per image, in billions, for planning."""


class UserFileSpace(Space):
    """Networks built by a function ``build(architecture, n_classes)`` in a user's file. Planning does not call it.

    `gmacs` is an estimate of the multiply-accumulates of one image's forward pass, in billions, for planning.
    """

    name = "file"
    executes_code = True
    # channels_last is off, because a user's network may `view` its feature maps.

    def __init__(self, function: UserFunction, gmacs: float = DEFAULT_GMACS) -> None:
        self.function = function
        self.gmacs = gmacs

    @cached_property
    def weights_name(self) -> str:
        """The function's name and 8 hex digits of the file's SHA-256, as different files build different networks."""
        return f"{self.function.name}-{(self.function.sha256 or hash_file(self.function.path))[:8]}"

    def identity(self) -> dict[str, Any]:
        return self.function.identity()

    def select(self, selection: str | Sequence[int | str]) -> tuple[str, ...]:
        """Check that names are well-formed (see `Space`). Only the function knows whether they exist."""
        if selection == "evaluated":
            raise ConfigError(
                "Selecting architectures failed for `space: file`: `evaluated` is not defined for a user's file. In "
                "`architectures`, list the names that the function builds."
            )
        names = self._split_names(selection)
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w.-]*", name):
                raise ArchitectureError(
                    f"Selecting architectures failed for {name!r}: a name must begin with a letter, followed "
                    "by letters, digits, dots, dashes and underscores. Choose another name."
                )
        return tuple(sorted({str(name) for name in names}))

    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> float:
        return self.gmacs * 1e9

    def build(self, architecture: ArchitectureId, *, n_classes: int) -> "nn.Module":
        from torch import nn

        function = self.function.load()
        try:
            network = function(architecture, n_classes)
        except (Exception, SystemExit) as error:
            raise ArchitectureError(
                f"Building a network failed for {architecture!r} with {self.function.label}: "
                f"{describe_failure(error)}. Correct the function."
            ) from error
        if not isinstance(network, nn.Module):
            raise ArchitectureError(
                f"Building a network failed for {architecture!r} with {self.function.label}: it returned "
                f"{type(network).__name__} instead of a torch.nn.Module. Return the network from the function."
            )
        return network
