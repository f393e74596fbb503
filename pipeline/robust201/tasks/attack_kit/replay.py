"""The random numbers of Foolbox and AutoAttack, replayed for parity tests.

Sources: `foolbox.attacks.gradient_descent_base` (one uniform draw of the batch's shape, on its device),
`pyautoattack.autopgd_base` (one uniform draw of the attacked images' shape per restart, on the CPU) and
`pyautoattack.square` (stripes, then row, column and signs of each query, on the CPU). Both libraries draw from torch's
global generator after seeding it; a separate generator with the same seed gives the same numbers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import PerturbationError
from robust201.tasks.attack_kit.random_numbers import ImageShape, Window, WindowMove


class ReplayedRandomNumbers:
    """The random numbers that the reference libraries draw for one batch after `torch.manual_seed(seed)`.

    All strengths replay the same numbers, as if the libraries were called with the same seed for each strength. After a
    restart, the remaining images differ between strengths, and so do their numbers. For attacks with restarts, use a
    separate source for each strength.

    Args:
        seed: the library's seed.
        device: the device on which the library draws: the images' device for PGD, the CPU for APGD and Square.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._seed = seed
        self._generator = torch.Generator(device).manual_seed(seed)
        self._has_several_strengths = False

    def for_key(self, key: str) -> "ReplayedRandomNumbers":
        """Return a new source with the same seed, because AutoAttack uses one seed for all of its attacks."""
        del key
        return ReplayedRandomNumbers(self._seed, self._generator.device)

    def uniforms(self, restart: int, dataset_indices: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        n_images, rows = self._rows(restart, dataset_indices)
        return self._uniform(n_images, *shape)[rows]

    def normals(self, restart: int, dataset_indices: NDArray[np.int64], n_values: int) -> torch.Tensor:
        n_images, rows = self._rows(restart, dataset_indices)
        device = self._generator.device
        return torch.randn((n_images, n_values), generator=self._generator, device=device)[rows]

    def stripes(self, restart: int, dataset_indices: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        n_images, rows = self._rows(restart, dataset_indices)
        channels, _, width = shape
        return torch.sign(2 * self._uniform(n_images, channels, 1, width) - 1)[rows]

    def windows(self, restart: int, first_query: int, sides: Sequence[int], shape: ImageShape) -> list[Window]:
        del restart, first_query  # the stream continues after the last call
        channels, height, width = shape
        windows = []
        for side in sides:
            row = int((height - side) * self._uniform(1))
            column = int((width - side) * self._uniform(1))
            windows.append(Window(row, column, side, torch.sign(2 * self._uniform(channels, 1, 1) - 1)))
        return windows

    def tiles(
        self, restart: int, dataset_indices: NDArray[np.int64], n_tiles: int, channels: int
    ) -> tuple[list[bool], torch.Tensor]:
        n_images, rows = self._rows(restart, dataset_indices)
        is_turned, signs = [], []
        for _ in range(n_tiles):
            is_turned.append(bool(self._uniform(1) > 0.5))
            signs.append(torch.sign(2 * self._uniform(n_images, channels, 1, 1) - 1)[rows])
        return is_turned, torch.stack(signs)

    def window_moves(
        self,
        restart: int,
        first_query: int,
        dataset_indices: NDArray[np.int64],
        sides: Sequence[int],
        shape: ImageShape,
    ) -> list[WindowMove]:
        """Draw proposals of Square in an L2 or L1 ball, for the remaining images of one strength."""
        del restart, first_query  # the stream continues after the last call
        channels, height, width = shape
        # As after a restart, the remaining images differ between strengths, here from the first query on.
        n_images, rows = self._rows(1, dataset_indices)
        window_moves = []
        for side in sides:
            row, column, source_row, source_column = (
                int((length - side) * self._uniform(1)) for length in (height, width) * 2
            )
            is_turned = bool(self._uniform(1) > 0.5)
            signs = torch.sign(2 * self._uniform(n_images, channels, 1, 1) - 1)[rows]
            window_moves.append(WindowMove(row, column, source_row, source_column, side, is_turned, signs))
        return window_moves

    def _uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator, device=self._generator.device)

    def _rows(self, restart: int, dataset_indices: NDArray[np.int64]) -> tuple[int, torch.Tensor]:
        """Return the number of different images, and the row of each sample's image in the library's batch: (B,) int64.

        The library's batch contains the images in order of first appearance.
        """
        row_by_image = {image: row for row, image in enumerate(dict.fromkeys(dataset_indices.tolist()))}
        self._has_several_strengths = self._has_several_strengths or len(row_by_image) < len(dataset_indices)
        if restart and self._has_several_strengths:
            raise PerturbationError(
                "Replaying random numbers failed for several restarts: after the first restart, strengths have "
                "different random numbers. Attack each strength with a separate source."
            )
        return len(row_by_image), torch.tensor(
            [row_by_image[image] for image in dataset_indices.tolist()], dtype=torch.int64
        )
