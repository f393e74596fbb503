"""From parts to bundles: parts of one network travel together, and bundles become smaller towards the end of a run.

Workers take bundles in order, each when it has room. A bundle is a share of the work that is then left to give out
(guided self-scheduling; Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987): long at first, which
saves loading, and short at the end, where all workers must end together although the estimates are wrong. The sizes
follow from the work and the number of workers, not from who is idle when, so all is cut before anything is computed,
and the same run on the same machines is cut in the same way.
"""

import math
from collections import defaultdict
from collections.abc import Iterable

from robust201.core.records import ArchitectureId, Bundle, Part
from robust201.planning.config import GPU_GMACS
from robust201.planning.plan import Plan

SLICE_SECONDS = 300.0
"""Estimated time at which a part is cut that a worker commits as a whole."""

FLOOR_SECONDS = 5.0
"""Estimated time below which nothing is cut for the sake of balance: a bundle may cost a worker the loading of a
network, and a part a shard."""

BUNDLES_AHEAD = 4
"""Bundles a worker into which the work that is left is divided whenever a bundle is cut. A worker holds two, whose
estimates may be wrong by a factor."""

ANY_GMACS = 100.0
"""Billion multiply-accumulates per second of a worker of any kind: between a CPU's and a GPU's."""

CPU_SLICE_SAMPLES = 64
"""(image, strength) pairs in the smallest slice of images on a CPU: a batch of the fused engine. Batches of half the
size, as those of the images that resist, take a tenth to a fifth more time per image, of an eighth twice as much."""


def make_bundles(
    plan: Plan,
    parts: Iterable[Part],
    *,
    n_workers: int = 1,
    has_gpu: bool | None = None,
    slice_seconds: float = SLICE_SECONDS,
) -> tuple[Bundle, ...]:
    """Group parts by network and dataset, and cut those that are too long; in the order in which they should begin.

    That is network by network, but for bundles that would be too long so late; the one with least work first, since
    light networks take longer than their multiply-accumulates say, and what is underestimated must not come last.

    By estimate a bundle takes `execution.part_minutes` at most and, with several workers, at most its share of the work
    that is left; unless it is one part that cannot be cut.
    """
    longest = 60 * plan.config.execution.part_minutes
    cutter = _Cutter(plan, has_gpu, slice_seconds)
    grouped: defaultdict[tuple[str, ArchitectureId, str], list[Part]] = defaultdict(list)
    work: defaultdict[tuple[str, ArchitectureId, str], float] = defaultdict(float)
    for part in parts:
        network = part.unit.dataset, part.unit.architecture, part.unit.checkpoint_sha256
        grouped[network].append(part)
        work[network] += cutter.seconds(part)
    left = sum(work.values())

    def size_of(left: float) -> float:
        return longest if n_workers == 1 else min(longest, max(FLOOR_SECONDS, left / (BUNDLES_AHEAD * n_workers)))

    bundles: list[tuple[float, Bundle]] = []
    for network in sorted(grouped, key=lambda network: work[network]):
        dataset, architecture, _ = network
        # What cannot be cut small comes before what can.
        uncut = sorted(grouped.pop(network), key=cutter.smallest)
        while uncut:
            size = size_of(left)
            taken: list[tuple[float, Part]] = []
            total = 0.0
            while uncut:
                piece, *rest = cutter.cut(uncut[-1], size)
                seconds = cutter.seconds(piece)
                if taken and total + seconds > size:
                    break
                uncut[-1:] = reversed(rest)
                taken.append((seconds, piece))
                total += seconds
            left -= total
            # Cheap parts first: results appear early, and a bundle that is lost loses little.
            taken.sort(key=lambda item: item[0])
            bundle = Bundle(architecture, dataset, tuple(piece for _, piece in taken), total)
            bundles.append((max(size, total), bundle))
    # A part that could not be cut as short as its place in the order asks for goes where bundles are as long.
    bundles.sort(key=lambda item: -item[0])
    return tuple(bundle for _, bundle in bundles)


class _Cutter:
    """Cuts parts where no result can change, and estimates how long they take on the workers at hand.

    Where draws are made by batch, slices of images are whole batches, so that each draws and computes what the whole
    unit would; the reference engine cuts by strength first. The fused engine keeps strengths together, because they
    share its batches, and FGSM's share a gradient. Its draws follow from the image, so a slice may begin anywhere; but
    where the rounding of a network depends on the batch, slices begin at fixed multiples of some batches, which follow
    from what is to be computed alone: not from the workers, nor from what `execution` says of them, nor from what is
    done already. A measure is never cut.
    """

    def __init__(self, plan: Plan, has_gpu: bool | None, slice_seconds: float) -> None:
        execution = plan.config.execution
        self._plan = plan
        self._rate = 1e9 * execution.assumed_gmacs(has_gpu)
        self._slice_seconds = min(60 * execution.part_minutes, slice_seconds)
        space = plan.config.make_space(plan.facts.code)
        is_float32 = plan.config.precision == "fp32"
        self._is_batch_invariant = space.is_batch_invariant and is_float32 and execution.is_on_cpu(has_gpu)
        # Where networks of a space are batch-invariant on CPUs, fixed slices are for GPUs.
        self._slice_macs = 1e9 * slice_seconds * (GPU_GMACS if space.is_batch_invariant else ANY_GMACS)

    def seconds(self, part: Part) -> float:
        return self._plan.macs(part) / self._rate

    def smallest(self, part: Part) -> float:
        return self.seconds(self.cut(part, FLOOR_SECONDS)[0])

    def cut(self, part: Part, limit: float) -> tuple[Part, ...]:
        """Cut a piece off a part that takes longer than `limit` seconds: the piece, then what is left."""
        seconds = self.seconds(part)
        if not self._plan.tasks[part.unit.key].is_divisible:
            return (part,)
        if len(part.strengths) > 1 and self._plan.config.engine == "reference":
            # A worker commits its strengths one by one, and they share nothing.
            if seconds <= limit:
                return (part,)
            n_strengths = max(1, len(part.strengths) // math.ceil(seconds / limit))
            first = Part(part.unit, part.strengths[:n_strengths], part.start, part.stop)
            rest = Part(part.unit, part.strengths[n_strengths:], part.start, part.stop)
            return (*(self.cut(first, limit) if n_strengths == 1 else (first,)), rest)
        n_images, batch = part.stop - part.start, self._plan.config.batch_size
        step, most = batch, -(-n_images // batch)
        if self._plan.tasks[part.unit.key].draws_by_batch(self._plan.config.engine):
            limit = min(limit, self._slice_seconds)
        elif self._is_batch_invariant:
            limit = min(limit, self._slice_seconds)
            step, most = 1, max(most, n_images * len(part.strengths) // CPU_SLICE_SAMPLES)
        else:
            return self._cut_at_fixed_places(part)
        n_slices = min(most, math.ceil(seconds / limit))
        if n_slices <= 1:
            return (part,)
        return _cut_at(part, part.start + step * (-(-n_images // step) // n_slices))

    def _cut_at_fixed_places(self, part: Part) -> tuple[Part, ...]:
        unit, batch = part.unit, self._plan.config.batch_size
        n_batches = -(-unit.n_images // batch)
        n_slices = math.ceil(self._plan.macs(Part(unit, unit.strengths, 0, unit.n_images)) / self._slice_macs)
        n_images = batch * -(-n_batches // max(1, min(n_batches, n_slices)))
        stop = (part.start // n_images + 1) * n_images
        return (part,) if stop >= part.stop else _cut_at(part, stop)


def _cut_at(part: Part, stop: int) -> tuple[Part, Part]:
    return (
        Part(part.unit, part.strengths, part.start, stop),
        Part(part.unit, part.strengths, stop, part.stop),
    )
