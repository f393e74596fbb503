"""What a space of architectures must offer: names, costs and networks. No torch until a network is built."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ConfigError
from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, Normalisation

if TYPE_CHECKING:
    import torch
    from torch import nn

    from robust201.models.model import CompiledNetwork


class Space(ABC):
    """A set of architectures that can be built.

    Ids are all integers or all text; text begins with a letter and goes on with letters, digits,
    ``_``, ``.`` and ``-``.

    Attributes:
        name: what the sweep YAML calls the space; part of every unit's identity.
        has_text_ids: whether ids are text.
        is_sized: whether its networks have a skeleton of channels and cells (see `sized`).
        has_published_weights: whether weights come in the formats of `weights.published.formats`; those of other spaces
            are state_dicts in files that bear the networks' names.
        channels_last: whether its networks compute in that layout where they are not compiled (see `Classifier`).
        is_batch_invariant: whether its compiled networks give an image the same bits in any batch, in float32 on a CPU.
        executes_code: whether building a network executes code of the user's.
    """

    name: str
    has_text_ids = True
    is_sized = False
    has_published_weights = False
    channels_last = False
    is_batch_invariant = False
    executes_code = False

    @property
    def weights_name(self) -> str:
        """What stores of weights call the space: they keep those of different networks apart."""
        return self.name

    def sized(self, *, channels: int, cells: int) -> "Space":
        """Return the space with another skeleton around its cells (`network` of a sweep).

        Raises:
            ConfigError: its networks have none.
        """
        raise ConfigError(
            f"Sizing networks failed for space: {self.name}: expected no `network`, since its networks have a size of "
            f"their own, got channels {channels} and cells {cells}. Remove `network`."
        )

    def spec(self, architecture: ArchitectureId) -> str | None:
        """Return the text that says what an architecture is, such as a cell string; None where the id is all there is.

        Raises:
            ArchitectureError: there is no such architecture.
        """
        return None

    def identity(self) -> Mapping[str, Any]:
        """Whatever else decides what a network of this space computes, as a JSON value: part of every protocol."""
        return {}

    @abstractmethod
    def select(self, selection: str | Sequence[int | str]) -> tuple[ArchitectureId, ...]:
        """Resolve a selection: ``"evaluated"`` for all worth evaluating, a list of names, or their text between commas.

        Ids are in the order of the space, each once.

        Raises:
            ArchitectureError: a name is no architecture of this space; the closest is named.
            ConfigError: nothing is selected.
        """

    def resolve(self, name: int | str) -> ArchitectureId:
        """Return the id of one architecture by its name (see `select`)."""
        return self.select([name])[0]

    def parameter_count(self, architecture: ArchitectureId, *, n_classes: int) -> int | None:
        """Count the trainable parameters without building the network; None if that is impossible."""
        return None

    def tensor_shapes(self, architecture: ArchitectureId, *, n_classes: int) -> Mapping[str, tuple[int, ...]] | None:
        """Return the shapes of the network's state_dict by name; None if that takes building the network."""
        return None

    @abstractmethod
    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> float:
        """Estimate the multiply-accumulates of one forward pass of one image, for planning."""

    def check_training_without_avx512(self, architecture: ArchitectureId) -> None:
        """Check that a CPU without AVX-512 can train a network; by default, it can.

        Raises:
            ArchitectureError: PyTorch would end with memory errors.
        """
        return

    @abstractmethod
    def build(self, architecture: ArchitectureId, *, n_classes: int) -> "nn.Module":
        """Build a network with fresh weights: normalised (B, 3, H, W) float32 to logits (B, C), or (features, logits).

        Raises:
            ArchitectureError: there is no such architecture, or its network cannot be built.
        """

    def compile(
        self,
        architecture: ArchitectureId,
        network: "nn.Module",
        normalisation: Normalisation,
        *,
        n_classes: int,
        device: "torch.device",
        precision: Precision,
    ) -> "CompiledNetwork | None":
        """Compile a loaded network for speed; None where there is no way to: attacks go through autograd."""
        return None

    def _names(self, selection: str | Sequence[int | str]) -> Sequence[int | str]:
        if isinstance(selection, str):
            return [name.strip() for name in selection.split(",") if name.strip()]
        return selection
