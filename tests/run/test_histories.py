"""Evaluations, slices and exported bytes do not depend on which runs computed a sweep."""

import contextlib
import random

import pytest

from robust201.dataset.export import export_dataset
from robust201.run.sweep import prepare_run
from robust201.store.folder import ResultsFolder
from robust201.store.packing import pack
from robust201.sweep.filters import Filters
from robust201.sweep.loading import parse_config
from robust201.sweep.parts import compare
from robust201.sweep.plan import open_results
from tests.conftest import read_tree, tiny_sweep_fields
from tests.support.runs import KilledError, run_inline

KEYS = {
    "clean": {},
    "fgsm": {"epsilons": ["1/255", "2/255", "8/255"]},
    "aa_square": {"epsilons": ["1/255", "8/255"], "queries": 5},
    "brightness": {"severities": [1, 5]},
}
OPTIONS = {"images": {"count": 20, "seed": 0}, "execution": {"device": "cpu", "gmacs_per_second": 1e-5}}


def variants(make_sweep):
    """Return (sweep, filters) pairs that differ in strengths, measurements and selection."""
    config = make_sweep(keys=KEYS, **OPTIONS)
    fewer_strengths = KEYS | {"fgsm": {"epsilons": ["2/255"]}, "brightness": {"severities": [5]}}
    more_strengths = KEYS | {"fgsm": {"epsilons": ["1/255", "2/255", "4/255", "8/255"]}}
    return [
        (config, Filters()),
        (config, Filters(keys=("fgsm",))),
        (config, Filters(architectures=(21,))),
        (make_sweep(keys=fewer_strengths, **OPTIONS), Filters()),
        (make_sweep(keys=more_strengths, **OPTIONS), Filters(keys=("fgsm", "clean"))),
        (make_sweep(keys=KEYS, measurements=["accuracy", "cm"], **OPTIONS), Filters()),
        (make_sweep(keys=KEYS, measurements=["accuracy", "cm", "distances"], **OPTIONS), Filters(keys=("aa_square",))),
    ]


def run_with_workers(config, filters, rng, monkeypatch):
    """Compute random missing parts with workers, in random order; workers may be killed before they store a part."""
    write = ResultsFolder.write

    def write_or_die(folder, name, content):
        if rng.random() < 0.1:
            raise KilledError
        write(folder, name, content)

    with prepare_run(config, filters, lambda _line: None) as work, monkeypatch.context() as patch:
        patch.setattr(ResultsFolder, "write", write_or_die)
        workers = [work.start_worker() for _ in range(rng.randint(1, 5))]
        parts = list(work.parts)
        for part in rng.sample(parts, rng.randint(0, len(parts))):
            with contextlib.suppress(KilledError):
                rng.choice(workers).compute(part, lambda: False)
        for worker in workers:
            worker.close()


def finish(config, out):
    """Complete a sweep; return its stored (unit, strength, slice, number of slices), and the exported bytes."""
    assert run_inline(config).failures == []
    plan, folder = open_results(config.results)
    listing = folder.list()
    state = compare(plan, listing, folder.read_tuple)
    assert (state.n_done, state.n_missing_parts) == (plan.n_evaluations, 0)
    planned = {(unit, strength) for key in plan.keys for unit in key.units for strength in key.strengths}
    evaluations = {
        (row["unit"], strength, row["slice"], row["slices"])
        for row in listing["digits"]
        for strength in folder.read_tuple(row["strengths"].decode())
        if (row["unit"], strength) in planned
    }
    export_dataset(plan, folder, out)
    return evaluations, read_tree(out)


@pytest.fixture(scope="module")
def expected(tiny_weights, tmp_path_factory):
    """Return the evaluations and exported bytes of a sweep that one run computes (see `finish`)."""
    folder = tmp_path_factory.mktemp("one-run")
    config = parse_config(tiny_sweep_fields(folder, tiny_weights, keys=KEYS, **OPTIONS), "test")
    result = finish(config, folder / "export")
    assert max(int(key.n_slices.max()) for key in open_results(config.results)[0].keys) > 1
    return result


@pytest.mark.parametrize("seed", range(4))
def test_any_history_gives_the_same_evaluations_and_bytes(make_sweep, tmp_path, monkeypatch, expected, seed):
    rng, full_config, results = random.Random(seed), make_sweep(keys=KEYS, **OPTIONS), tmp_path / "other"
    for variant, filters in rng.sample(variants(make_sweep), 3):
        config = variant.model_copy(update={"results": results})
        if rng.random() < 0.5:
            run_with_workers(config, filters, rng, monkeypatch)
        else:
            with contextlib.suppress(KilledError):
                run_inline(config, filters, killed_after=rng.randrange(1, 25))
        pack(ResultsFolder.open(results), grace_seconds=0.0)
    assert finish(full_config.model_copy(update={"results": results}), tmp_path / "export") == expected
