"""The network as every attack and measurement sees it: pixels in [0, 1] to logits."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.records import Normalisation


class Classifier(nn.Module):
    """A network with its normalisation inside, frozen and in evaluation mode.

    Args:
        network: takes normalised (B, 3, H, W) float32 and returns logits (B, C), or (features, logits) as the published
            NAS-Bench-201 modules do.
        normalisation: per-channel mean and standard deviation.
        n_classes: number of classes C.
        device: where to compute.
        micro_batch: at most this many images go through the network at once; None for no bound. It saves memory and is
            no part of the protocol: batches of draws stay as they are.

    Attributes:
        shown: images that the last call sent through the network at once.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self,
        network: nn.Module,
        normalisation: Normalisation,
        n_classes: int,
        *,
        device: torch.device | str = "cpu",
        micro_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.n_classes = n_classes
        self.micro_batch = micro_batch
        self.shown = 0
        self.register_buffer("mean", torch.tensor(normalisation.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(normalisation.std).view(1, 3, 1, 1))
        self.requires_grad_(requires_grad=False)
        self.eval()
        self.to(device)

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        return self.mean.device

    def _logits(self, pixels: torch.Tensor) -> torch.Tensor:
        output = self.network((pixels - self.mean) / self.std)
        logits: torch.Tensor = output[1] if isinstance(output, tuple) else output
        if torch.is_grad_enabled() and pixels.requires_grad and not logits.requires_grad:
            # A network without a path from input to output may leave the graph; attacks then ask for a gradient that
            # is zero, not for an error. Pixels are finite, so this adds exactly 0.
            logits = logits + 0.0 * pixels.flatten(1).sum(dim=1, keepdim=True)
        return logits

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify.

        Args:
            pixels: (B, 3, H, W) float32 in [0, 1].

        Returns:
            Logits (B, C) float32, differentiable with respect to the pixels.
        """
        self.shown = min(len(pixels), self.micro_batch or len(pixels))
        if self.micro_batch is None or len(pixels) <= self.micro_batch:
            return self._logits(pixels)
        pieces = torch.split(pixels, self.micro_batch)
        if torch.is_grad_enabled() and pixels.requires_grad:
            # Checkpointing recomputes each piece in the backward pass, so only one piece's activations live at a time.
            # A network in evaluation mode draws nothing, so there is no random state to keep for that.
            return torch.cat(
                [checkpoint(self._logits, piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
            )
        return torch.cat([self._logits(piece) for piece in pieces])
