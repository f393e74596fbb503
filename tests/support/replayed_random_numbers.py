"""The random numbers of Foolbox and AutoAttack, replayed for parity tests.

Sources: `foolbox.attacks.gradient_descent_base` (one draw for the batch, on its device; Linf: uniform, L2: normal),
`pyautoattack.autopgd_base` (one per restart for the attacked images, on the CPU; Linf: uniform, L2 and L1: normal) and
`pyautoattack.square` (on the CPU; Linf: stripes, then windows; L2 and L1: tiles, then moves of windows). They draw from
torch's global generator, which is seeded before; a separate generator with the same seed gives the same numbers.
"""

import torch

from robust201.attacks.random_numbers import RandomNumbers, Window, WindowMove


class ReplayedRandomNumbers(RandomNumbers):
    """The random numbers that a library draws for one batch at one strength after `torch.manual_seed(seed)`.

    Args:
        seed: the library's seed.
        device: the device on which the library draws: the images' device for PGD, the CPU for APGD and Square.
    """

    def __init__(self, seed, device="cpu"):
        self._seed = seed
        self._generator = torch.Generator(device).manual_seed(seed)

    def for_key(self, _key):
        """Return a new source with the same seed, because AutoAttack uses one seed for all of its attacks."""
        return ReplayedRandomNumbers(self._seed, self._generator.device)

    def uniforms(self, _run, indices, shape):
        return self._uniform(len(indices), *shape)

    def normals(self, _run, indices, n_values):
        return torch.randn((len(indices), n_values), generator=self._generator, device=self._generator.device)

    def stripes(self, _run, indices, shape):
        channels, _, width = shape
        return self._signs(len(indices), channels, 1, width)

    def windows(self, _run, _first_query, sides, shape):
        channels, height, width = shape
        return [
            Window(self._position(height - side), self._position(width - side), side, self._signs(channels, 1, 1))
            for side in sides
        ]

    def tiles(self, _run, indices, n_tiles, channels):
        draws = [(self._is_turned(), self._signs(len(indices), channels, 1, 1)) for _ in range(n_tiles)]
        is_turned, signs = zip(*draws, strict=True)
        return list(is_turned), torch.stack(signs)

    def window_moves(self, _run, _first_query, indices, sides, shape):
        channels, height, width = shape
        window_moves = []
        for side in sides:
            positions = [self._position(length - side) for length in (height, width, height, width)]
            is_turned, signs = self._is_turned(), self._signs(len(indices), channels, 1, 1)
            window_moves.append(WindowMove.of(positions, side, is_turned, signs))
        return window_moves

    def _position(self, n_positions):
        return int(n_positions * self._uniform(1))

    def _is_turned(self):
        return bool(self._uniform(1) > 0.5)

    def _signs(self, *shape):
        return torch.sign(2 * self._uniform(*shape) - 1)

    def _uniform(self, *shape):
        return torch.rand(shape, generator=self._generator, device=self._generator.device)


class LargerBallRandomNumbers(ReplayedRandomNumbers):
    """Random numbers in AutoAttack's order, for an attack that begins with larger L1 balls.

    For each of the three balls, AutoAttack draws starting points that it does not use.
    """

    def for_key(self, key):
        """Return restarted random numbers for an attack of an ensemble; only APGD begins with larger balls."""
        random_numbers_class = LargerBallRandomNumbers if "apgd" in key else ReplayedRandomNumbers
        return random_numbers_class(self._seed, self._generator.device)

    def normals(self, run, indices, n_values):
        """Draw the starting points of a run, and then the starting points that AutoAttack does not use."""
        starting_points = super().normals(run, indices, n_values)
        for _ in range(3):
            super().normals(run, indices, n_values)
        return starting_points
