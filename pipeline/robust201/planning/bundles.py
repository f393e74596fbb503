"""Group parts into bundles, which become shorter towards the end of a run.

A part is a slice of a unit's images and strengths. A bundle consists of parts of one network and dataset, which a
worker computes after loading the network once.

A worker that becomes free takes the next bundle. The size of a bundle is a fraction of the work that has not been
assigned yet (guided self-scheduling; Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987). Bundles are
long at first, so that networks are loaded less often. They are short at the end, so that all workers finish at about
the same time even if estimates are wrong. Sizes depend on the work and the number of workers, not on the times at which
workers become free. Therefore all bundles are made before anything is computed, and the same run on the same machines
has the same bundles.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

from robust201.core.records import ArchitectureId, Bundle, Part
from robust201.planning.plan import Plan
from robust201.sweep.config import GPU_GMACS

SLICE_SECONDS = 300.0
"""Maximum estimated time of a part. Longer parts are cut, because a worker that dies loses its unfinished part."""

MIN_SECONDS = 5.0
"""Estimated time below which parts are not cut for load balancing, because loading networks and writing one shard per
part would take too much time."""

BUNDLES_AHEAD = 4
"""Number of bundles per worker into which the remaining work is divided when the size of the next bundle is chosen.
There are several because a worker has two bundles at a time, and estimated times are imprecise."""

UNKNOWN_DEVICE_GMACS = 100.0
"""Assumed speed of a worker on an unknown device in billion multiply-accumulates per second, between the speeds of a
CPU and a GPU."""

CPU_SLICE_SAMPLES = 64
"""Minimum number of (image, strength) pairs per slice of images on a CPU: the fused engine's default batch. In batches
of half this size, an image takes 10% to 20% more time; in batches of an eighth of this size, twice the time."""


def make_bundles(
    plan: Plan,
    parts: Iterable[Part],
    *,
    n_workers: int = 1,
    has_gpu: bool | None = None,
    slice_seconds: float = SLICE_SECONDS,
) -> tuple[Bundle, ...]:
    """Group parts by network and dataset, and cut long parts; return the bundles in the order of execution.

    Networks with the least work come first, because small networks take longer than their multiply-accumulates suggest,
    and underestimated work must not come last. A bundle that is too long for its position moves towards the front.

    A bundle's estimated time is at most `execution.part_minutes` and, with several workers, at most its fraction of the
    remaining work or `MIN_SECONDS`, whichever is longer, unless it consists of one part that cannot be cut.

    `has_gpu` tells whether the workers have GPUs; None means that this is unknown. `slice_seconds` is the maximum
    estimated time of a part.
    """
    max_seconds = 60 * plan.config.execution.part_minutes
    cutter = _Cutter(plan, has_gpu, slice_seconds)
    parts_by_network: defaultdict[tuple[str, ArchitectureId, str], list[Part]] = defaultdict(list)
    seconds_by_network: defaultdict[tuple[str, ArchitectureId, str], float] = defaultdict(float)
    for part in parts:
        network = part.unit.dataset, part.unit.architecture, part.unit.checkpoint_sha256
        parts_by_network[network].append(part)
        seconds_by_network[network] += cutter.seconds(part)
    remaining_seconds = sum(seconds_by_network.values())

    def choose_target_seconds(remaining_seconds: float) -> float:
        return (
            max_seconds
            if n_workers == 1
            else min(max_seconds, max(MIN_SECONDS, remaining_seconds / (BUNDLES_AHEAD * n_workers)))
        )

    bundles: list[tuple[float, Bundle]] = []
    for network in sorted(parts_by_network, key=lambda network: seconds_by_network[network]):
        dataset, architecture, _ = network
        # Parts are taken from the end of the list, so the parts that cannot be cut into short chunks are taken first.
        uncut_parts = sorted(parts_by_network.pop(network), key=cutter.min_seconds)
        while uncut_parts:
            target_seconds = choose_target_seconds(remaining_seconds)
            chunks: list[tuple[float, Part]] = []
            bundle_seconds = 0.0
            while uncut_parts:
                chunk, *remainder = cutter.cut(uncut_parts[-1], target_seconds)
                seconds = cutter.seconds(chunk)
                if chunks and bundle_seconds + seconds > target_seconds:
                    break
                uncut_parts[-1:] = reversed(remainder)
                chunks.append((seconds, chunk))
                bundle_seconds += seconds
            remaining_seconds -= bundle_seconds
            # Short parts come first, so that results appear early and less work is lost if a worker dies.
            chunks.sort(key=lambda item: item[0])
            bundle = Bundle(architecture, dataset, tuple(chunk for _, chunk in chunks), bundle_seconds)
            bundles.append((max(target_seconds, bundle_seconds), bundle))
    # A bundle with a part that could not be cut enough for its position moves to the bundles of its length.
    bundles.sort(key=lambda item: -item[0])
    return tuple(bundle for _, bundle in bundles)


class _Cutter:
    """Cuts parts without changing any result, and estimates their time on the available workers.

    If random numbers are drawn per batch, slices consist of complete batches, so that the results are the same as
    without slices. With the reference engine, parts are first cut by strength. With the fused engine, strengths stay
    together, because they share batches, and the strengths of FGSM share a gradient. The fused engine's random numbers
    depend only on the image, so a slice may begin at any image. However, if a network's rounding depends on the batch,
    slices begin at fixed multiples of the batch size. These multiples depend only on the unit, not on workers,
    `execution` or completed work. Measures are never cut.
    """

    def __init__(self, plan: Plan, has_gpu: bool | None, slice_seconds: float) -> None:
        execution = plan.config.execution
        self._plan = plan
        self._macs_per_second = 1e9 * execution.assumed_gmacs(has_gpu)
        self._slice_seconds = min(60 * execution.part_minutes, slice_seconds)
        space = plan.config.make_space(plan.facts.code)
        is_float32 = plan.config.precision == "fp32"
        self._is_batch_invariant = space.is_batch_invariant and is_float32 and execution.is_on_cpu(has_gpu)
        # If networks of a space are batch-invariant on CPUs, fixed slices are needed on GPUs only.
        self._slice_macs = 1e9 * slice_seconds * (GPU_GMACS if space.is_batch_invariant else UNKNOWN_DEVICE_GMACS)

    def seconds(self, part: Part) -> float:
        """Estimate the time of a part on one worker."""
        return self._plan.macs(part) / self._macs_per_second

    def min_seconds(self, part: Part) -> float:
        """Estimate the time of the shortest chunk that can be cut off a part."""
        return self.seconds(self.cut(part, MIN_SECONDS)[0])

    def cut(self, part: Part, max_seconds: float) -> tuple[Part, ...]:
        """Cut a chunk of at most `max_seconds` off a part, and return the chunk and the remaining parts.

        Return only the part if it is short enough or cannot be cut. The chunk may be longer if no shorter chunk can be
        cut off.
        """
        seconds = self.seconds(part)
        if not self._plan.tasks[part.unit.key].is_divisible:
            return (part,)
        if len(part.strengths) > 1 and self._plan.config.engine == "reference":
            # The reference engine computes and commits strengths independently.
            if seconds <= max_seconds:
                return (part,)
            n_strengths = max(1, len(part.strengths) // math.ceil(seconds / max_seconds))
            first_part = Part(part.unit, part.strengths[:n_strengths], part.start, part.stop)
            remainder = Part(part.unit, part.strengths[n_strengths:], part.start, part.stop)
            return (*(self.cut(first_part, max_seconds) if n_strengths == 1 else (first_part,)), remainder)
        n_images, batch_size = part.stop - part.start, self._plan.config.batch_size
        granularity, max_slices = batch_size, -(-n_images // batch_size)
        if self._plan.tasks[part.unit.key].shares_random_numbers_in_batch(self._plan.config.engine):
            max_seconds = min(max_seconds, self._slice_seconds)
        elif self._is_batch_invariant:
            max_seconds = min(max_seconds, self._slice_seconds)
            granularity, max_slices = 1, max(max_slices, n_images * len(part.strengths) // CPU_SLICE_SAMPLES)
        else:
            return self._cut_at_fixed_index(part)
        n_slices = min(max_slices, math.ceil(seconds / max_seconds))
        if n_slices <= 1:
            return (part,)
        return _cut_at(part, part.start + granularity * (-(-n_images // granularity) // n_slices))

    def _cut_at_fixed_index(self, part: Part) -> tuple[Part, ...]:
        """Cut a part at the next multiple of a slice size that depends only on the unit."""
        unit, batch_size = part.unit, self._plan.config.batch_size
        n_batches = -(-unit.n_images // batch_size)
        n_slices = math.ceil(self._plan.macs(Part(unit, unit.strengths, 0, unit.n_images)) / self._slice_macs)
        images_per_slice = batch_size * -(-n_batches // max(1, min(n_batches, n_slices)))
        stop = (part.start // images_per_slice + 1) * images_per_slice
        return (part,) if stop >= part.stop else _cut_at(part, stop)


def _cut_at(part: Part, stop: int) -> tuple[Part, Part]:
    return (
        Part(part.unit, part.strengths, part.start, stop),
        Part(part.unit, part.strengths, stop, part.stop),
    )
