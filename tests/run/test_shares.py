"""Shares of a sweep are disjoint and complete, need a plan, and give the same exported bytes as one run."""

import json
import signal

import pytest

from robust201.core.errors import ConfigError, InputError
from robust201.run.images import ImagePart
from robust201.run.sweep import SweepWork
from robust201.sweep import inputs
from robust201.sweep.filters import Filters
from robust201.sweep.parts import compare
from robust201.sweep.plan import open_results
from robust201.sweep.shares import Share
from robust201.sweep.sweep_record import result_fields
from tests.support.runs import export_bytes, run_inline, run_share, save_plan

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "brightness": {"severities": [1, 5]}}
OPTIONS = {"images": {"count": 20, "seed": 0}, "execution": {"device": "cpu", "gmacs_per_second": 1e-5}}


@pytest.fixture
def config(make_sweep):
    datasets = {"digits": {"corruptions": {"source": "generated"}}}
    return make_sweep(keys=KEYS, datasets=datasets, **OPTIONS)


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "a/b", "1/0", "-1/4", "1/2/3", "٣/٤"])
def test_invalid_share_is_rejected(text):
    with pytest.raises(ConfigError, match="--share"):
        Share.parse(text)


def test_shares_divide_the_parts(config):
    save_plan(config)
    plan, folder = open_results(config.results)
    share_works = [
        SweepWork(folder, plan, compare(plan, folder.list(), folder.read_tuple), Share(index, 3)) for index in (1, 2, 3)
    ]
    parts = [list(work.parts) for work in share_works]
    ids = [part.id for parts_of_share in parts for part in parts_of_share]
    state = compare(plan, folder.list(), folder.read_tuple)
    assert len(ids) == len(set(ids)) == state.n_missing_parts + 2  # two parts generate the images of brightness
    assert min(map(len, parts)) > len(ids) / 5
    for parts_of_share in parts:
        is_corruption = [isinstance(part, ImagePart) or part.unit.key == "brightness" for part in parts_of_share]
        n_images = sum(isinstance(part, ImagePart) for part in parts_of_share)
        assert sorted(is_corruption[n_images:]) == is_corruption[n_images:]  # corruptions come last


def test_shares_export_the_bytes_of_one_run(config, tmp_path, monkeypatch):
    whole_config = config.model_copy(update={"results": tmp_path / "whole"})
    run_inline(whole_config)
    save_plan(config)
    monkeypatch.setattr(inputs, "load_images", None)  # shares do not read the datasets
    for index in (2, 1, 3):
        tally = run_share(config, Share(index, 3))
        assert (tally.is_complete, tally.failures) == (True, [])
        assert run_share(config, Share(index, 3)).n_parts == 0
    assert export_bytes(config, tmp_path / "shares") == export_bytes(whole_config, tmp_path / "single")


def test_share_accepts_a_filtered_plan_and_another_execution_section(config):
    save_plan(config, Filters(keys=("fgsm",)))
    changed_config = config.model_copy(update={"execution": config.execution.model_copy(update={"micro_batch": 64})})
    tally = run_share(changed_config, Share(1, 1), Filters(keys=("fgsm",)))
    assert (tally.n_planned, tally.n_done) == (4, 4)


def test_moved_files_and_another_batch_size_do_not_change_the_sweep(config, write_sweep, robust201):
    save_plan(config)
    datasets = {"digits": {"path": "moved", "corruptions": {"source": "generated", "path": "moved"}}}
    changes = {"checkpoints": {"path": "moved"}, "datasets": datasets, "batch_size": 7}
    sweep = write_sweep(keys=KEYS, **OPTIONS, **changes)
    assert robust201("run", sweep, "--share", "1/1").code == 0
    summary = json.loads(robust201("plan", sweep, "--json").out)
    assert summary["evaluations_done"] == summary["evaluations"]


def test_result_fields_have_the_reference_batch_size_but_no_paths_of_weights(make_sweep):
    def fields_with(**changes):
        return result_fields(make_sweep(keys={"fgsm": {}}, **changes))

    assert fields_with(engine="reference", batch_size=4) != fields_with(engine="reference", batch_size=7)
    weights = [
        [{"path": folder, "recipe": "std"}, {"files": {"0": f"{folder}/0", "21": f"{folder}/21"}}] for folder in "ab"
    ]
    for section, moved_section in zip(*weights, strict=True):
        assert fields_with(checkpoints=None, weights=section) == fields_with(checkpoints=None, weights=moved_section)


def test_share_without_a_plan_and_share_of_another_sweep_are_rejected(config, make_sweep):
    with pytest.raises(InputError, match=r"plan\.json"):
        run_share(config, Share(1, 2))
    assert not config.results.exists()
    save_plan(config)
    changed_config = make_sweep(keys=KEYS | {"fgsm": {"epsilons": ["2/255"]}}, **OPTIONS)
    with pytest.raises(ConfigError, match=r"keys\.fgsm\.epsilons"):
        run_share(changed_config.model_copy(update={"results": config.results}), Share(1, 2))


def test_signal_drains_a_share(config):
    save_plan(config)
    messages = []

    def interrupt(tally, _seconds_left):
        if tally.n_parts == 3:
            signal.raise_signal(signal.SIGUSR1)

    tally = run_share(config, Share(1, 1), say=messages.append, on_progress=interrupt)
    assert (tally.n_parts, tally.is_drained, tally.is_out_of_time) == (3, True, True)
    assert run_share(config, Share(1, 1)).is_complete
