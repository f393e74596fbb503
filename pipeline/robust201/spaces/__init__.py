"""Architecture spaces: names of architectures, costs, networks, and what readers of results may ask of a space."""

from robust201.core.errors import ArchitectureError
from robust201.core.records import ArchitectureId
from robust201.spaces.base import Space
from robust201.spaces.cell_space import CellSpace
from robust201.spaces.nasbench201.space import NasBench201
from robust201.spaces.zoo.space import Zoo

SPACES: dict[str, Space] = {space.name: space for space in (NasBench201(), Zoo())}
"""The table of spaces by name, each as it is without further fields; a new one is a folder and a row here."""

DEFAULT_SPACE = NasBench201.name
"""The space of a sweep or a dataset that names none, as the published one."""


def cell_space(name: str) -> CellSpace | None:
    """Find a space of cells by its name; None where it is another, or is not in the table."""
    space = SPACES.get(name)
    return space if isinstance(space, CellSpace) else None


def find_architecture(name: ArchitectureId) -> tuple[Space, ArchitectureId]:
    """Find an architecture in the table's spaces, by its id, or by what else its space takes as its name.

    Raises:
        ArchitectureError: no space has it; the closest is named.
    """
    by_letter = isinstance(name, str) and name[:1].isalpha()
    refusals = []
    for space in SPACES.values():
        if space.has_text_ids == by_letter:
            try:
                return space, space.resolve(name)
            except ArchitectureError as error:
                refusals.append(error)
    raise refusals[-1]


def why_no_native_library() -> str | None:
    """Explain why PyTorch alone runs compiled networks on this machine's CPU; None where the native library does."""
    from robust201.spaces.nasbench201.compiled import native  # needs torch
    from robust201.spaces.nasbench201.compiled.network import usable_library

    reason = native.why_not()
    if reason is None and usable_library() is None:
        return "it does not give the bits of this PyTorch"
    return reason
