"""The step, or query, at which an attack first fools each image.

An image falls at the smallest number of steps (of Square: queries) with which the attack would have fooled it, all else
equal: 0 if the network misclassifies the clean image. An attack that returns its last iterate, such as PGD, would have
returned iterate k after k steps, so its start does not count; one that returns any misclassified image, such as Square,
may return its start, which then counts as step 1, since no attack takes fewer.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks.columns import NEVER_FOOLED, Falls


class StepLog:
    """First steps of images at several strengths, filled by the attack.

    Args:
        n_strengths: number of strengths S.
        n_images: number of images N.
        device: of the attack.
    """

    def __init__(self, n_strengths: int, n_images: int, device: torch.device) -> None:
        self.first = torch.full((n_strengths, n_images), NEVER_FOOLED, dtype=torch.int64, device=device)
        self.last = 0

    def note_clean(self, correct: NDArray[np.bool_]) -> None:
        """Note which clean images (N,) are classified correctly; the others fall at step 0."""
        self.first[:, torch.from_numpy(~correct).to(self.first.device)] = 0

    def falls(self, strength: int, positions: torch.Tensor) -> Falls:
        """Return what is known of the images (B,) that an attack hands back at a strength."""
        return Falls(self.first[strength, positions], self.last)


class RunLog:
    """First steps of the samples of one run. It does nothing where steps are not recorded.

    Args:
        log: that of the attack; None where steps are not recorded.
        labels: (B,) int64 classes of the samples.
        places: (B,) places of the samples in the log, strength by strength.
        n_steps: steps of a run.
        number: number of the run, from 0: the steps of restarts, or of several targets, are counted one after another.
    """

    def __init__(
        self, log: StepLog | None, labels: torch.Tensor, places: NDArray[np.int64], n_steps: int, number: int = 0
    ) -> None:
        self._log = log
        if self._log is None:
            return
        self._before = number * n_steps
        self._log.last = max(self._log.last, self._before + n_steps)
        self._labels = labels
        self._places = torch.from_numpy(places).to(labels.device)
        self._first = torch.full_like(labels, NEVER_FOOLED)
        self._wrong = torch.zeros_like(labels, dtype=torch.bool)

    @property
    def is_on(self) -> bool:
        return self._log is not None

    def look(self, step: int, logits: torch.Tensor, taken: torch.Tensor | None = None) -> None:
        """Look at the iterates after some steps.

        Args:
            step: number of steps that led to them; 0 for the start, which is no outcome of the attack.
            logits: (B, C) of the iterates.
            taken: (B,) where the attack would return this iterate if it ended here, and not an earlier one; None for
                all.
        """
        if self._log is None:
            return
        wrong = logits.argmax(dim=1) != self._labels
        self._wrong = wrong if taken is None else torch.where(taken, wrong, self._wrong)
        if step > 0:
            self.mark(step, self._wrong)

    def mark(self, step: int, wrong: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Note that samples fall at a step, unless they fell before.

        Args:
            step: number of the step, from 1.
            wrong: (b,) bool.
            rows: (b,) which samples they are; None for all.
        """
        if self._log is None:
            return
        steps = torch.where(wrong, self._before + step, NEVER_FOOLED)
        if rows is None:
            self._first = torch.minimum(self._first, steps)
        else:
            self._first[rows] = torch.minimum(self._first[rows], steps)

    def write(self, fooled: torch.Tensor | None = None) -> None:
        """Enter the run into the attack's log.

        Args:
            fooled: (B,) samples for which the run returns a misclassified image; the others did not fall. None for all.
        """
        if self._log is None:
            return
        first = self._first if fooled is None else torch.where(fooled, self._first, NEVER_FOOLED)
        steps = self._log.first.view(-1)
        steps[self._places] = torch.minimum(steps[self._places], first)


class BallLog:
    """First steps of an attack that looks for the smallest perturbation: in each ball, of the first image inside it.

    Args:
        log: that of the attack.
        radii: (S,) radii up to which a perturbation counts as within each ball.
        positions: (B,) positions of the attacked images.
        n_steps: steps of the attack.
    """

    def __init__(self, log: StepLog, radii: Sequence[float], positions: NDArray[np.int64], n_steps: int) -> None:
        log.last = n_steps
        device = log.first.device
        self._log = log
        self._radii = torch.tensor(radii, dtype=torch.float64, device=device)[:, None]
        self._positions = torch.from_numpy(positions).to(device)
        self._first = torch.full((len(radii), len(positions)), NEVER_FOOLED, dtype=torch.int64, device=device)

    def look(self, step: int, wrong: torch.Tensor, lengths: torch.Tensor) -> None:
        """Look at perturbations (B,) of some lengths after a number of steps, and whether they are misclassified."""
        steps = torch.where(wrong & (lengths.double() <= self._radii), max(step, 1), NEVER_FOOLED)
        self._first = torch.minimum(self._first, steps)

    def write(self) -> None:
        """Enter them into the attack's log."""
        self._log.first[:, self._positions] = self._first
