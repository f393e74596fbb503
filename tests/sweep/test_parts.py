"""Slices of units, and the comparison of a plan with names of shards."""

import hashlib

import numpy as np
import pytest

from robust201.core.records import Weights
from robust201.store.folder import SliceFormat
from robust201.store.names import ShardName, parse_names, tuple_digest
from robust201.sweep.explain import NEW, NEW_COLUMNS, NEW_SLICES, NEW_STRENGTHS, NEW_WEIGHTS, explain
from robust201.sweep.facts import DatasetFacts, Facts, ImageFacts, Network
from robust201.sweep.loading import parse_config
from robust201.sweep.parts import compare
from robust201.sweep.plan import make_plan

FIELDS = {
    "name": "small",
    "results": "results",
    "architectures": [0, 21, 309],
    "checkpoints": {"path": "weights"},
    "datasets": {"digits": {}},
    "keys": {"clean": {}, "pgd": {"epsilons": ["1/255", "8/255"]}},
    "batch_size": 4,
}
SLICES = SliceFormat(slice_gmacs=1e9, batch_size=4, is_cpu=False)


def make_facts(salt="", n_images=10):
    networks = tuple(
        Network(index, Weights(hashlib.sha256(f"{index}{salt}".encode()).hexdigest())) for index in (0, 21, 309)
    )
    return Facts({"digits": DatasetFacts({"": ImageFacts(n_images, "0" * 64)}, networks)})


def plan_of(facts=None, slices=SLICES, **changes):
    return make_plan(parse_config(FIELDS | changes, "test"), facts or make_facts(), slices)


class ShardFiles:
    """A listing of shards with given parts, and the tuples to which the digests in their names refer."""

    def __init__(self):
        self.paths, self.tuples = [], {}

    def add(self, part, columns=None):
        strengths, columns = part.part.strengths, columns or part.columns
        digests = [tuple_digest(strengths), tuple_digest(columns)]
        self.tuples |= dict(zip(digests, (strengths, columns), strict=True))
        name = ShardName("digits", part.unit.id, digests[0], part.index, part.n_slices, digests[1], "0" * 16)
        self.paths.append(name.path.rpartition("/")[2])

    def read_tuple(self, digest):
        return self.tuples.get(digest, ())

    @property
    def listing(self):
        return {"digits": parse_names(self.paths)}

    def compare(self, plan):
        return compare(plan, self.listing, self.read_tuple)

    def explain(self, plan, protocols=None, earlier=None):
        causes = explain(plan, self.compare(plan), self.listing, self.read_tuple, protocols or {}, earlier)
        return {cause.reason: ([name.split()[1] for name in cause.keys], cause.n_parts) for cause in causes}


def files_of_all_parts(plan):
    files = ShardFiles()
    for part in compare(plan, {}, files.read_tuple).missing_parts():
        files.add(part)
    return files


@pytest.mark.parametrize(("n_images", "step"), [(10, 4), (10_000, 250), (7, 8), (1000, 1), (3001, 250)])
@pytest.mark.parametrize("slice_gmacs", [1e-6, 0.5, 40, 1e9])
def test_slices_cover_each_image_once_at_multiples_of_the_step(n_images, step, slice_gmacs):
    for key in plan_of(
        make_facts(n_images=n_images), SliceFormat(slice_gmacs, step, is_cpu=False), batch_size=step
    ).keys:
        for n_slices in key.n_slices.tolist():
            ranges = [key.images_of_slice(index, n_slices) for index in range(n_slices)]
            assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
            assert ranges[-1][1] == n_images
            assert all(start < stop and start % step == 0 for start, stop in ranges)


def test_slices_depend_only_on_the_unit_and_the_folder():
    pgd = plan_of(slices=SliceFormat(1e-6, 4, is_cpu=False)).keys[1]
    changed = plan_of(
        slices=SliceFormat(1e-6, 4, is_cpu=False),
        keys={"pgd": {"epsilons": ["1/255", "2/255", "4/255", "8/255"]}},
        measurements=["accuracy"],
    )
    assert changed.keys[0].n_slices.tolist() == pgd.n_slices.tolist() == [3, 3, 3]
    assert changed.keys[0].units.tolist() == pgd.units.tolist()


def test_slices_begin_at_batch_boundaries_if_bits_may_depend_on_the_batch():
    slices = SliceFormat(1e-6, 20, is_cpu=True)
    assert {key.step for key in plan_of(slices=slices).keys} == {8}
    assert {key.step for key in plan_of(slices=slices, precision="bf16").keys} == {20}
    assert {key.step for key in plan_of(slices=slices, engine="reference").keys} == {4}  # the protocol's batch size
    assert {key.step for key in plan_of(slices=SliceFormat(1e-6, 20, is_cpu=False)).keys} == {20}


def test_parts_of_a_network_are_consecutive():
    parts = [*compare(plan_of(), {}, lambda _digest: ()).missing_parts()]
    assert [(part.unit.architecture, part.unit.key) for part in parts] == [
        (index, key) for index in (0, 21, 309) for key in ("clean", "pgd")
    ]


def test_missing_parts_are_the_planned_evaluations_of_slices_without_files():
    plan, files, rng = plan_of(slices=SliceFormat(1e-6, 4, is_cpu=False)), ShardFiles(), np.random.default_rng(0)
    stored_parts = [part for part in compare(plan, {}, files.read_tuple).missing_parts() if rng.random() < 0.6]
    for part in stored_parts:
        files.add(part)
    stored, missing = (
        {(part.unit.id, strength, part.index) for part in parts for strength in part.part.strengths}
        for parts in (stored_parts, files.compare(plan).missing_parts())
    )
    planned = {
        (unit.decode(), strength, index)
        for key in plan.keys
        for unit, n_slices in zip(key.units, key.n_slices, strict=True)
        for strength in key.strengths
        for index in range(n_slices)
    }
    assert missing == planned - stored


def test_complete_plan_stays_complete_with_fewer_strengths_and_columns():
    files = files_of_all_parts(plan_of())
    narrower = plan_of(keys={"pgd": {"epsilons": ["8/255"]}}, measurements=["accuracy"])
    assert files.compare(plan_of()).n_missing_parts == files.compare(narrower).n_missing_parts == 0
    assert files.compare(narrower).n_done == narrower.n_evaluations == 3


def test_added_strengths_and_columns_are_missing_and_explained():
    files = files_of_all_parts(plan_of())
    more_strengths = plan_of(keys={"pgd": {"epsilons": ["1/255", "2/255", "8/255"]}})
    assert [part.part.strengths for part in files.compare(more_strengths).missing_parts()] == [(2.0,)] * 3
    assert files.explain(more_strengths) == {NEW_STRENGTHS: (["pgd"], 3)}
    more_columns = plan_of(measurements=["accuracy", "confidence", "cm", "distances"])
    assert files.compare(more_columns).n_done == 0
    assert files.explain(more_columns) == {NEW_COLUMNS: (["clean", "pgd"], 6)}


def test_changed_inputs_are_explained():
    plan, files = plan_of(), files_of_all_parts(plan_of())
    protocols = {key.protocol: key.payload for key in plan.keys}
    changed = plan_of(keys={"clean": {}, "pgd": {"epsilons": ["1/255", "8/255"], "steps": 3}})
    ((reason, (keys, _)),) = files.explain(changed, protocols).items()
    assert keys == ["pgd"]
    assert reason.endswith("→ 3")
    assert "steps" in reason
    other_weights = plan_of(make_facts("other"))
    assert files.explain(other_weights, protocols, plan.facts) == {NEW_WEIGHTS: (["clean", "pgd"], 6)}
    assert ShardFiles().explain(plan) == {NEW: (["clean", "pgd"], 6)}
    assert files.explain(plan_of(slices=SliceFormat(1e-6, 4, is_cpu=False))) == {NEW_SLICES: (["clean", "pgd"], 18)}
