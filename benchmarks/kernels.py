"""Measure the kernels that docs/engine.md weighs: what one takes for an image, in PyTorch's way and in ours.

    python -m benchmarks.kernels

Batches of 64 images at the three stages of the published size, one thread, medians of the thread's CPU time over
interleaved repetitions.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch.nn import functional

from robust201.engine.arithmetic import configure_torch
from robust201.spaces.nasbench201.compiled.kernels import AveragePooling, Convolution, Halving, StridedGradient
from robust201.spaces.nasbench201.compiled.memory import keep_freed_memory
from robust201.spaces.nasbench201.compiled.network import CPU_CHUNK

STAGES = ((16, 32), (32, 16), (64, 8))
CPU = torch.device("cpu")

Task = Callable[[], object]


def tasks_of(channels: int, size: int) -> dict[str, Task]:
    """List what is measured at one stage: name to call."""
    torch.manual_seed(0)
    rows = torch.randn(CPU_CHUNK, channels, size, size)
    x, other = (rows.contiguous(memory_format=torch.channels_last).clone() for _ in range(2))
    dense, point = (torch.randn(channels, channels, side, side, dtype=torch.float64) for side in (3, 1))
    bias = torch.randn(channels, dtype=torch.float64)
    three, one = Convolution(dense, bias, device=CPU), Convolution(point, bias, device=CPU)
    plain = Convolution(dense, bias, device=CPU, fused=False)
    pooling, halving = AveragePooling(channels, 1, device=CPU), Halving(channels, device=CPU)
    strided = StridedGradient(torch.randn(2 * channels, channels, 3, 3, dtype=torch.float64), device=CPU)
    half = torch.randn(CPU_CHUNK, 2 * channels, size // 2, size // 2).contiguous(memory_format=torch.channels_last)
    weight, matrix = dense.float(), point.float()[:, :, 0, 0]
    return {
        "3x3 convolution, default layout": lambda: functional.conv2d(rows, weight, padding=1),
        "3x3 convolution, channels_last": lambda: three(x),
        "3x3, bias, sum and ReLU, one call": lambda: three(x, add=other, in_place=True, rectify=True),
        "3x3, bias, sum and ReLU, plain calls": lambda: plain(x, add=other, rectify=True),
        "1x1 convolution": lambda: one(x),
        "1x1 convolution as a matrix product": lambda: x.permute(0, 2, 3, 1).reshape(-1, channels) @ matrix.T,
        "3x3 pooling of PyTorch, default layout": lambda: functional.avg_pool2d(rows, 3, 1, 1, count_include_pad=False),
        "3x3 pooling of PyTorch, channels_last": lambda: functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        "3x3 pooling as a convolution, with its border": lambda: pooling(x),
        "2x2 pooling of PyTorch, channels_last": lambda: functional.avg_pool2d(x, 2),
        "2x2 pooling as a convolution": lambda: halving(x),
        "strided gradient": lambda: strided(half),
        "ReLU": lambda: functional.relu(x),
    }


def measure(tasks: dict[str, Task], rounds: int) -> dict[str, float]:
    """Microseconds an image."""
    found: dict[str, list[float]] = {name: [] for name in tasks}
    with torch.inference_mode():
        for number in range(rounds + 1):
            for name, task in tasks.items():
                start = time.thread_time()
                task()
                if number:  # the first prepares weights and memory
                    found[name].append(time.thread_time() - start)
    return {name: median(times) / CPU_CHUNK * 1e6 for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    configure_torch(threads=1)
    keep_freed_memory()
    columns = [measure(tasks_of(channels, size), options.rounds) for channels, size in STAGES]
    print(f"| µs an image | {' | '.join(f'{channels} channels, {size}x{size}' for channels, size in STAGES)} |")
    print("|---" * (len(STAGES) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{column[name]:.1f}' for column in columns)} |")


if __name__ == "__main__":
    main()
