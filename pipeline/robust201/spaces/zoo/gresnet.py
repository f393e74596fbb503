"""Residual networks on p4m: maps have eight orientations, which the last layer sees apart.

Source: Cohen and Welling, "Group Equivariant Convolutional Networks", ICML 2016; widths and the missing pooling over
orientations are those of the paper on robust features. So the features are equivariant, the logits not invariant.
"""

from collections.abc import Sequence

from robust201.spaces.zoo.p4m import ORIENTATIONS, P4mBatchNorm, P4mConvolution, P4mLifting
from robust201.spaces.zoo.resnet import ResNet


class GroupResNet(ResNet):
    """A residual network of basic blocks with `widths` channels of eight orientations."""

    def __init__(self, blocks: Sequence[int], n_classes: int, *, widths: Sequence[int]) -> None:
        super().__init__(
            blocks,
            n_classes,
            widths=widths,
            stem=P4mLifting,
            convolution=P4mConvolution,
            norm=P4mBatchNorm,
            maps_per_channel=ORIENTATIONS,
        )
