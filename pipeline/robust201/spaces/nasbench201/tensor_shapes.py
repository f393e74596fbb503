"""Names and shapes of the tensors of NAS-Bench-201's networks, without torch: building one takes 0.07 s."""

from robust201.spaces.nasbench201.cells import KERNEL_SIZES, parse

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(spec: str, *, channels: int, cells: int, n_classes: int) -> Shapes:
    """Return the shapes of a network's state_dict by name (see `spaces.nasbench201.network.Network`)."""
    operations = parse(spec)
    shapes: Shapes = {"stem.0.weight": (channels, 3, 3, 3)}
    _add_norm(shapes, "stem.1", channels)
    block = 0
    for stage in range(3):
        width = channels * 2**stage
        if stage:
            _add_convolution(shapes, f"cells.{block}.conv_a.op", width // 2, width, 3)
            _add_convolution(shapes, f"cells.{block}.conv_b.op", width, width, 3)
            shapes[f"cells.{block}.downsample.1.weight"] = width, width // 2, 1, 1
            block += 1
        for number in range(block, block + cells):
            for edge, operation in enumerate(operations):
                if operation in KERNEL_SIZES:
                    name = f"cells.{number}.layers.{edge}.op"
                    _add_convolution(shapes, name, width, width, KERNEL_SIZES[operation])
        block += cells
    _add_norm(shapes, "lastact.0", 4 * channels)
    shapes["classifier.weight"] = n_classes, 4 * channels
    shapes["classifier.bias"] = (n_classes,)
    return shapes


def _add_convolution(shapes: Shapes, name: str, c_in: int, c_out: int, kernel_size: int) -> None:
    shapes[f"{name}.1.weight"] = c_out, c_in, kernel_size, kernel_size
    _add_norm(shapes, f"{name}.2", c_out)


def _add_norm(shapes: Shapes, name: str, channels: int) -> None:
    for part in ("weight", "bias", "running_mean", "running_var"):
        shapes[f"{name}.{part}"] = (channels,)
    shapes[f"{name}.num_batches_tracked"] = ()
