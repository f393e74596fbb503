"""Architectures of the user's own: a Python file with a function that builds them."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.core.records import ArchitectureId
from robust201.core.user_code import UserFunction, describe_failure, hash_file
from robust201.spaces.base import Space

if TYPE_CHECKING:
    from torch import nn

DEFAULT_GMACS = 0.1
"""Billion multiply-accumulates per image that a network is assumed to take where nobody said it."""


class UserFileSpace(Space):
    """Networks that ``build(architecture, n_classes)`` of a user's file makes, in workers only.

    A forward pass of one image is taken to need `gmacs` billion multiply-accumulates, for planning.
    """

    name = "file"
    executes_code = True
    # channels_last stays off: a user's network may `view` its feature maps.

    def __init__(self, function: UserFunction, gmacs: float = DEFAULT_GMACS) -> None:
        self.function = function
        self.gmacs = gmacs

    @cached_property
    def weights_name(self) -> str:
        """The function's name and the first digits of the file's hash: each file has networks of its own."""
        return f"{self.function.name}-{(self.function.sha256 or hash_file(self.function.path))[:8]}"

    def identity(self) -> dict[str, Any]:
        return self.function.identity()

    def select(self, selection: str | Sequence[int | str]) -> tuple[str, ...]:
        """Check names; which of them exist the function alone knows (see `Space`)."""
        if selection == "evaluated":
            raise ConfigError(
                "Selecting architectures failed for space: file: expected `architectures` to list the names that its "
                "function builds, got evaluated. List them."
            )
        names = self._names(selection)
        for name in names:
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w.-]*", name):
                raise ArchitectureError(
                    f"Selecting architectures failed for {name!r}: expected names that begin with a letter, followed "
                    "by letters, digits, dots, dashes and underscores, got another form. Choose another name."
                )
        if not names:
            raise ConfigError(
                "Selecting architectures failed for an empty list: expected at least one name, got none. List them."
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
                f"Building a network failed for {architecture!r} by {self.function.label}: expected a torch.nn.Module, "
                f"got {describe_failure(error)}. Correct the function."
            ) from error
        if not isinstance(network, nn.Module):
            raise ArchitectureError(
                f"Building a network failed for {architecture!r} by {self.function.label}: expected a torch.nn.Module, "
                f"got {type(network).__name__}. Let the function return the network."
            )
        return network
