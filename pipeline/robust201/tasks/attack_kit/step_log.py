"""The step, or query, at which an attack first fools the network on each image.

An image's step is the smallest number of steps (queries, for Square) with which the attack would have fooled it,
everything else being equal. It is 0 if the network misclassifies the clean image. An attack that returns its last
iterate, such as PGD, would have returned iterate k after k steps, so its starting point does not count. An attack that
returns any misclassified image, such as Square, may return its starting point. This counts as step 1, since an attack
takes at least one step.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks.columns import NOT_FOOLED_STEP, FoolingSteps


class StepLog:
    """Log of the steps at which an attack first fools images, at several strengths.

    Args:
        n_strengths: number of strengths S.
        n_images: number of images N.
        device: device of the attack.
    """

    def __init__(self, n_strengths: int, n_images: int, device: torch.device) -> None:
        self.first_steps = torch.full((n_strengths, n_images), NOT_FOOLED_STEP, dtype=torch.int64, device=device)
        self.last_step = 0

    def record_clean(self, correct: NDArray[np.bool_]) -> None:
        """Record which clean images (N,) are classified correctly; misclassified images have step 0."""
        self.first_steps[:, torch.from_numpy(~correct).to(self.first_steps.device)] = 0

    def fooling_steps(self, strength_index: int, positions: torch.Tensor) -> FoolingSteps:
        """Return the steps at which the images at these positions (B,) are fooled, at one strength."""
        return FoolingSteps(self.first_steps[strength_index, positions], self.last_step)


class RunLog:
    """Log of the steps at which one run first fools its samples. The methods do nothing if steps are not recorded.

    Args:
        log: the attack's log; None if steps are not recorded.
        labels: (B,) int64 classes of the samples.
        log_indices: (B,) indices of the samples in the attack's log, flattened strength by strength.
        n_steps: number of steps of a run.
        run_number: number of the run, from 0. Step numbers continue across consecutive restarts or targets.
    """

    def __init__(
        self,
        log: StepLog | None,
        labels: torch.Tensor,
        log_indices: NDArray[np.int64],
        n_steps: int,
        run_number: int = 0,
    ) -> None:
        self._log = log
        if self._log is None:
            return
        self._n_previous_steps = run_number * n_steps
        self._log.last_step = max(self._log.last_step, self._n_previous_steps + n_steps)
        self._labels = labels
        self._log_indices = torch.from_numpy(log_indices).to(labels.device)
        self._first_steps = torch.full_like(labels, NOT_FOOLED_STEP)
        self._is_fooled = torch.zeros_like(labels, dtype=torch.bool)

    @property
    def is_recording(self) -> bool:
        return self._log is not None

    def record_iterates(self, step: int, logits: torch.Tensor, is_result: torch.Tensor | None = None) -> None:
        """Record the iterates after some steps.

        Args:
            step: number of steps so far; 0 for the starting point, which is not a result of the attack.
            logits: (B, C) logits of the iterates.
            is_result: (B,) whether the attack would return this iterate, rather than an earlier one, if it stopped
                here; None for all.
        """
        if self._log is None:
            return
        misclassified = logits.argmax(dim=1) != self._labels
        self._is_fooled = misclassified if is_result is None else torch.where(is_result, misclassified, self._is_fooled)
        if step > 0:
            self.record_fooled(step, self._is_fooled)

    def record_fooled(self, step: int, fooled: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Record that samples are fooled at a step, unless they were fooled at an earlier one.

        Args:
            step: number of the step, from 1.
            fooled: (b,) bool, whether each sample is fooled.
            rows: (b,) rows of the samples; None for all.
        """
        if self._log is None:
            return
        steps = torch.where(fooled, self._n_previous_steps + step, NOT_FOOLED_STEP)
        if rows is None:
            self._first_steps = torch.minimum(self._first_steps, steps)
        else:
            self._first_steps[rows] = torch.minimum(self._first_steps[rows], steps)

    def write(self, fooled: torch.Tensor | None = None) -> None:
        """Write the steps of the run into the attack's log.

        Args:
            fooled: (B,) whether the run returns a misclassified image for each sample; the steps of other samples are
                not written. None writes all.
        """
        if self._log is None:
            return
        first_steps = self._first_steps if fooled is None else torch.where(fooled, self._first_steps, NOT_FOOLED_STEP)
        steps = self._log.first_steps.view(-1)
        steps[self._log_indices] = torch.minimum(steps[self._log_indices], first_steps)


class BallLog:
    """Log of the steps at which a minimum-norm attack first fools images, in each of several balls.

    Args:
        log: the attack's log.
        radii: (S,) radii up to which a perturbation counts as within each ball.
        positions: (B,) positions of the attacked images.
        n_steps: number of steps of the attack.
    """

    def __init__(self, log: StepLog, radii: Sequence[float], positions: NDArray[np.int64], n_steps: int) -> None:
        log.last_step = n_steps
        device = log.first_steps.device
        self._log = log
        self._radii = torch.tensor(radii, dtype=torch.float64, device=device)[:, None]
        self._positions = torch.from_numpy(positions).to(device)
        self._first_steps = torch.full((len(radii), len(positions)), NOT_FOOLED_STEP, dtype=torch.int64, device=device)

    def record(self, step: int, misclassified: torch.Tensor, norms: torch.Tensor) -> None:
        """Record after a step whether images (B,) are misclassified, and the norms (B,) of their perturbations."""
        steps = torch.where(misclassified & (norms.double() <= self._radii), max(step, 1), NOT_FOOLED_STEP)
        self._first_steps = torch.minimum(self._first_steps, steps)

    def write(self) -> None:
        """Write the steps into the attack's log."""
        self._log.first_steps[:, self._positions] = self._first_steps
