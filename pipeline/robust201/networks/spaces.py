"""The table of architecture spaces, and functions that find a space or an architecture by name."""

from robust201.core.errors import ArchitectureError
from robust201.core.records import ArchitectureId
from robust201.networks.nb201.cell_space import NasBench201
from robust201.networks.space import Space
from robust201.networks.zoo.zoo_space import Zoo

SPACES: dict[str, Space] = {space.name: space for space in (NasBench201(), Zoo())}
"""The spaces by name, each with its default settings. To add a space, add a folder and an entry here."""

CellSpace = NasBench201
"""The only space of cells. Modules that are not specific to one cell space use this name."""

DEFAULT_SPACE = NasBench201.name
"""The space of sweeps and datasets that do not name a space, such as the published dataset."""


def cell_space(name: str) -> CellSpace | None:
    """Return the space with this name if it is a space of cells, otherwise None."""
    space = SPACES.get(name)
    return space if isinstance(space, CellSpace) else None


def find_architecture(name: ArchitectureId) -> tuple[Space, ArchitectureId]:
    """Return the space and the id of an architecture, given its id or another name that its space accepts.

    Raises:
        ArchitectureError: no space has this architecture; the message may suggest a similar name.
    """
    is_text_id = isinstance(name, str) and name[:1].isalpha()  # indices are digits, and cell strings begin with |
    errors = []
    for space in SPACES.values():
        if space.has_text_ids == is_text_id:
            try:
                return space, space.resolve(name)
            except ArchitectureError as error:
                errors.append(error)
    raise errors[-1]


def native_library_problem() -> str | None:
    """Return the reason why compiled networks cannot use the native library on this machine; None if they can."""
    from robust201.networks.nb201.compiled import native  # needs torch
    from robust201.networks.nb201.compiled.compiled_network import usable_library

    reason = native.unavailable_reason()
    if reason is None and usable_library() is None:
        return "its results are not bit-identical to those of the installed PyTorch"
    return reason
