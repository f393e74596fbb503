"""From parts to bundles: long parts are cut, and parts of one network travel together."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from robust201.core.records import ArchitectureId, Bundle, Part
from robust201.planning.cost import cpu_gmacs, may_turn_out_slow
from robust201.planning.plan import Plan

SLICE_SECONDS = 300.0
"""Estimated time at which a part is cut that a worker commits as a whole."""


def split(plan: Plan, part: Part, *, slice_seconds: float = SLICE_SECONDS) -> tuple[Part, ...]:
    """Cut a part that would take longer than `execution.part_minutes`: first by strength, then by image range.

    Ranges are whole batches of draws, so a part draws what the whole unit would. A worker commits whole strengths, so a
    slice of one strength is cut at `slice_seconds` already. The fused engine keeps a part's strengths together, because
    strengths share its batches and FGSM's share a gradient; they are cut at that, too. A measure is never cut.
    """
    config = plan.config
    if not plan.tasks[part.unit.key].is_divisible:
        return (part,)
    limit = 60 * config.execution.part_minutes
    splits_strengths = len(part.strengths) > 1 and config.engine == "reference"
    if not splits_strengths:
        limit = min(limit, slice_seconds)
    if plan.seconds(part) <= limit:
        return (part,)
    if splits_strengths:
        singles = (Part(part.unit, (strength,), part.start, part.stop) for strength in part.strengths)
        return tuple(itertools.chain.from_iterable(split(plan, one, slice_seconds=slice_seconds) for one in singles))
    batch = config.batch_size
    n_batches = -(-(part.stop - part.start) // batch)
    n_slices = min(n_batches, int(-(-plan.seconds(part) // limit)))
    edges = [part.start + batch * (n_batches * i // n_slices) for i in range(n_slices)] + [part.stop]
    return tuple(Part(part.unit, part.strengths, a, b) for a, b in itertools.pairwise(edges))


def make_bundles(plan: Plan, parts: Iterable[Part], *, slice_seconds: float = SLICE_SECONDS) -> tuple[Bundle, ...]:
    """Group parts by network and dataset, longest bundle first, long parts split, no bundle much over a part.

    Longest first keeps the last hour of a sweep short. Within a bundle the cheap parts come first, so that results
    appear early and a bundle that is lost loses little.
    """
    limit = 60 * plan.config.execution.part_minutes
    grouped: defaultdict[tuple[str, ArchitectureId, str], list[tuple[float, Part]]] = defaultdict(list)
    for part in parts:
        for piece in split(plan, part, slice_seconds=slice_seconds):
            unit = piece.unit
            grouped[unit.dataset, unit.architecture, unit.checkpoint_sha256].append((plan.seconds(piece), piece))
    costed: list[tuple[float, Bundle]] = []
    for (dataset, architecture, _), pieces in grouped.items():
        pieces.sort(key=lambda item: item[0])
        pending: list[Part] = []
        total = 0.0
        for seconds, piece in pieces:
            if pending and total + seconds > limit:
                costed.append((total, Bundle(architecture, dataset, tuple(pending))))
                pending, total = [], 0.0
            pending.append(piece)
            total += seconds
        costed.append((total, Bundle(architecture, dataset, tuple(pending))))
    costed.sort(key=lambda item: (-item[0], item[1].dataset, item[1].architecture))
    return tuple(bundle for _, bundle in costed)


def cut_for_cpus(plan: Plan, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
    """Cut long parts again where a sweep that was planned for GPUs turns out to be computed on CPUs.

    Nothing changes where the sweep says how fast workers are.
    """
    execution = plan.config.execution
    if not may_turn_out_slow(execution):
        return bundles
    slower = execution.model_copy(update={"gmacs_per_second": cpu_gmacs(execution)})
    config = plan.config.model_copy(update={"execution": slower})
    return make_bundles(replace(plan, config=config), (part for bundle in bundles for part in bundle.parts))
