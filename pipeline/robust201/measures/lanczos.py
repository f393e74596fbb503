"""Largest eigenvalues of symmetric operators, computed only from products of the operators with vectors.

Source: Golub and Van Loan, "Matrix Computations", 4th ed., section 10.1: the Lanczos iteration with full
reorthogonalisation. The residual of the largest Ritz pair bounds the distance to an eigenvalue.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError

_CHECK_INTERVAL = 4
"""Number of steps between checks of the residuals. Each check waits for the device."""

_MIN_RELATIVE_LENGTH = 1e-12
"""Minimum length of a new direction, relative to an estimate of the operator's norm. A shorter one means that the
iteration has already found all directions that it can reach."""


def largest_eigenvalues(
    apply: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, *, steps: int, tolerance: float, name: str
) -> NDArray[np.float64]:
    """Return the algebraically largest eigenvalue (B,) of each operator of a batch.

    Args:
        apply: (B, D) float32 → (B, D); operator b is applied to row b.
        start: (B, D) float64, non-zero starting directions.
        steps: maximum number of calls of `apply`.
        tolerance: residual at which to stop, relative to the largest absolute Ritz value.
        name: name of the evaluation, for messages.

    Raises:
        EvaluationError: an operator returned NaN or infinity, or an eigenvalue did not converge.
    """
    direction = start / start.norm(dim=1, keepdim=True)
    basis: list[torch.Tensor] = []
    diagonal: list[torch.Tensor] = []
    off_diagonal: list[torch.Tensor] = []
    max_steps = min(steps, start.shape[1])
    largest_residual = np.inf
    for step in range(1, max_steps + 1):
        basis.append(direction)
        applied = apply(direction.float()).double()
        quotient = (applied * direction).sum(dim=1)
        # Two passes are enough (section 10.3.6) to remove all components along earlier directions, up to rounding.
        for earlier in basis * 2:
            applied = applied - (applied * earlier).sum(dim=1, keepdim=True) * earlier
        length = applied.norm(dim=1)
        is_exhausted = length <= _MIN_RELATIVE_LENGTH * (quotient.abs() + length)
        # A zero direction would add the Ritz value 0. Use the first quotient instead, which is at most the largest
        # eigenvalue.
        was_exhausted = direction.abs().amax(dim=1) == 0
        diagonal.append(quotient if not diagonal else torch.where(was_exhausted, diagonal[0], quotient))
        off_diagonal.append(torch.where(is_exhausted, 0.0, length))
        direction = torch.where(is_exhausted[:, None], 0.0, applied / length[:, None])
        if step % _CHECK_INTERVAL == 0 or step == max_steps:
            eigenvalues, residuals = _largest_ritz_values(diagonal, off_diagonal, name)
            largest_residual = float(residuals.max())
            if largest_residual <= tolerance:
                return eigenvalues
    raise EvaluationError(
        f"Finding the largest eigenvalue failed for {name}: expected a relative residual of {tolerance:g} or less "
        f"within {max_steps} steps, got {largest_residual:.2g}. Raise `tolerance` or `steps`."
    )


def _largest_ritz_values(
    diagonal: list[torch.Tensor], off_diagonal: list[torch.Tensor], name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the largest Ritz values (B,) and their relative residuals (B,)."""
    quotients, lengths = torch.stack([torch.stack(diagonal), torch.stack(off_diagonal)]).cpu().numpy()  # (k, B) each
    if not (np.isfinite(quotients).all() and np.isfinite(lengths).all()):
        raise EvaluationError(
            f"Finding the largest eigenvalue failed for {name}: expected finite Hessian-vector products, got NaN or "
            "infinity. Check this network's weights."
        )
    diagonal_indices = np.arange(len(quotients))
    matrices = np.zeros((quotients.shape[1], len(quotients), len(quotients)))
    matrices[:, diagonal_indices, diagonal_indices] = quotients.T
    matrices[:, diagonal_indices[1:], diagonal_indices[:-1]] = lengths[:-1].T  # eigh reads the lower triangle
    ritz_values, vectors = np.linalg.eigh(matrices)
    scale = np.abs(ritz_values).max(axis=1)
    residuals = lengths[-1] * np.abs(vectors[:, -1, -1])
    return ritz_values[:, -1], np.divide(residuals, scale, out=np.zeros_like(residuals), where=scale > 0)
