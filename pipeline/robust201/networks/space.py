"""Base class of architecture spaces: names, costs and networks. Spaces import torch only to build or compile them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ConfigError
from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, Normalisation

if TYPE_CHECKING:
    import torch
    from torch import nn

    from robust201.networks.model import CompiledNetwork


class Space(ABC):
    """A set of architectures that can be built.

    Either all ids are integers, or all are text. A text id consists of a letter, followed by letters, digits, ``_``,
    ``.`` and ``-``.

    Attributes:
        name: name in the sweep YAML; part of the identity of every result.
        has_text_ids: whether ids are text. Weights are then state_dicts in files that are named after the networks;
            otherwise, they have one of the formats of `weights.published.formats`.
        is_sized: whether the number of channels and cells of its networks can be set (see `with_size`).
        channels_last: whether networks that are not compiled use the channels_last memory format (see `Classifier`).
        is_batch_invariant: whether a compiled network's outputs for an image are bit-identical in all batches, in
            float32 on a CPU.
        executes_code: whether building a network executes the user's code.
    """

    name: str
    has_text_ids = True
    is_sized = False
    channels_last = False
    is_batch_invariant = False
    executes_code = False

    @property
    def weights_name(self) -> str:
        """Name of the space in weight stores. All sizes of a space share a name; other spaces must have others."""
        return self.name

    def with_size(self, *, channels: int, cells: int) -> "Space":
        """Return the same space with networks of this size (the field `network` of a sweep).

        Raises:
            ConfigError: the space's networks have a fixed size.
        """
        raise ConfigError(
            f"Sizing networks failed for the space {self.name}: its networks have a fixed size, so channels "
            f"{channels} and cells {cells} cannot be set. Remove `network`."
        )

    def spec(self, architecture: ArchitectureId) -> str | None:
        """Return the text that defines an architecture, such as a cell string; None if the id defines it.

        Raises:
            ArchitectureError: there is no such architecture.
        """
        return None

    def identity(self) -> Mapping[str, Any]:
        """Return JSON-compatible properties of the space, besides its name, that affect its networks' outputs.

        They are part of every protocol (everything that determines a result).
        """
        return {}

    @abstractmethod
    def select(self, selection: str | Sequence[int | str]) -> tuple[ArchitectureId, ...]:
        """Return the ids of a selection: ``"evaluated"`` for all evaluated ids, a list of names, or "name,name".

        The ids are unique, in the order of the space.

        Raises:
            ArchitectureError: a name is not an architecture of this space; the message may suggest a similar name.
            ConfigError: nothing is selected, or the space does not define ``"evaluated"``.
        """

    def resolve(self, name: int | str) -> ArchitectureId:
        """Return the id of one architecture by its name (see `select`)."""
        return self.select([name])[0]

    def tensor_shapes(self, architecture: ArchitectureId, *, n_classes: int) -> Mapping[str, tuple[int, ...]] | None:
        """Return the tensors' shapes by name in the state_dict; None if they are unknown until the network is built."""
        return None

    @abstractmethod
    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> float:
        """Return the estimated multiply-accumulates of a forward pass of one image, for planning."""

    def check_training_without_avx512(self, architecture: ArchitectureId) -> None:
        """Check that a CPU without AVX-512 can train a network. By default, all networks pass.

        Raises:
            ArchitectureError: training would corrupt memory, because of a bug in PyTorch.
        """
        return

    @abstractmethod
    def build(self, architecture: ArchitectureId, *, n_classes: int) -> "nn.Module":
        """Build a network with initial weights.

        It maps normalised images (B, channels, H, W) float32 to logits (B, C).

        Raises:
            ArchitectureError: there is no such architecture, or its network cannot be built.
        """

    def compile(
        self,
        architecture: ArchitectureId,
        network: "nn.Module",
        normalisation: Normalisation,
        *,
        device: "torch.device",
        precision: Precision,
    ) -> "CompiledNetwork | None":
        """Return a faster form of a loaded network; None if the space has no such form. Attacks then use autograd."""
        return None

    def _split_names(self, selection: str | Sequence[int | str]) -> Sequence[int | str]:
        """Return the names of a selection; a `ConfigError` rejects an empty one."""
        if isinstance(selection, str):
            selection = [name.strip() for name in selection.split(",") if name.strip()]
        if not selection:
            raise ConfigError(
                f"Selecting architectures failed for an empty list: list at least one name of the space {self.name}."
            )
        return selection
