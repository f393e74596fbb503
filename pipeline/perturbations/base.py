"""What a perturbation gets and must give back, and the checks that hold every one of them to it.

A module of this package has one public function::

    def perturb(
        context: Context,
        parameters: <its parameter class>,
        strengths: Sequence[float],
        images: torch.Tensor,      # (N, 3, H, W) uint8 on the context's device
        labels: torch.Tensor,      # (N,) int64 on the context's device
        indices: numpy.ndarray,    # (N,) int64, rows of the dataset's full test split
    ) -> Iterator[Perturbed]

It may batch, merge and order as it likes, as long as each position appears once a strength.
"""
