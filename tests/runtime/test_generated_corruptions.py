"""Generated corrupted images: a run generates only the images that it needs, and only when it needs them."""

import json
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import InputError
from robust201.monitoring.status import read_status
from robust201.planning.plan_file import load_plan
from robust201.planning.shares import Share
from robust201.runtime.executors import make_executor
from robust201.runtime.share_run import run_share
from robust201.runtime.sweep import prepare_sweep, run_sweep
from robust201.shards import ShardStore
from robust201.sweep.filters import Filters
from robust201.tasks.corruptions import folder as corruption_folder
from tests.conftest import MakeSweep, RunCommand, WriteSweep, read_tree

KEYS: dict[str, Any] = {
    "clean": {},
    "brightness": {"severities": [1, 5]},
    "fog": {"severities": [1, 5]},
}


def list_generated_keys(tmp_path: Path) -> list[str]:
    other_files = {"labels.npy", "indices.npy", "clean.npy"}
    return sorted(path.stem for path in (tmp_path / "corruptions").glob("*.npy") if path.name not in other_files)


def count_evaluations(results: Path) -> tuple[int, int]:
    """Return the numbers of finished and of all evaluations."""
    sweep_status = read_status(load_plan(results), ShardStore.open(results).inventory(on_damage="report"))
    return sweep_status.done, sweep_status.total


@pytest.mark.parametrize(
    ("keys", "expected"), [(("clean",), []), (("clean", "fog"), ["fog"]), (None, ["brightness", "fog"])]
)
def test_filtered_run_generates_selected_corruptions_only(
    make_sweep: MakeSweep, tmp_path: Path, keys: tuple[str, ...] | None, expected: list[str]
) -> None:
    config = make_sweep(keys=KEYS)
    tally = run_sweep(config, make_executor, filters=Filters(keys=keys))
    n_done = 2 * (1 + 2 * len(expected))
    assert (tally.complete, tally.evaluations) == (True, n_done)
    assert list_generated_keys(tmp_path) == expected
    assert count_evaluations(config.results) == (n_done, 10)  # the total includes evaluations that the filter excludes


def test_filtered_runs_export_same_bytes_as_unfiltered_run(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path
) -> None:
    sweep = write_sweep(keys=KEYS)
    for keys in ("clean", "fog"):
        assert robust201("run", sweep, "--out", tmp_path / "parts", "--keys", keys).code == 0
    partial = robust201("export", tmp_path / "parts", "--out", tmp_path / "partial", "--partial")
    assert (partial.code, "missing: 4 evaluations of digits brightness" in partial.err) == (3, True)
    assert robust201("verify", tmp_path / "parts").code == 3
    assert robust201("run", sweep, "--out", tmp_path / "parts").code == 0
    assert robust201("run", sweep, "--out", tmp_path / "unfiltered").code == 0
    for name in ("parts", "unfiltered"):
        assert robust201("verify", tmp_path / name).code == 0
        assert robust201("export", tmp_path / name, "--out", tmp_path / f"{name}-out").code == 0
    assert read_tree(tmp_path / "parts-out") == read_tree(tmp_path / "unfiltered-out")
    assert {path.name for path in (tmp_path / "parts/protocols").iterdir()} == {
        path.name for path in (tmp_path / "unfiltered/protocols").iterdir()
    }


def test_results_remain_valid_without_corrupted_images(make_sweep: MakeSweep, tmp_path: Path) -> None:
    config = make_sweep(keys=KEYS)
    assert run_sweep(config, make_executor).complete
    for path in (tmp_path / "corruptions").iterdir():
        path.unlink()
    rerun = run_sweep(config, make_executor)
    assert (rerun.complete, rerun.results, list_generated_keys(tmp_path)) == (True, 0, [])
    assert count_evaluations(config.results) == (10, 10)
    # Lost results are recomputed on regenerated images.
    next((config.results / "shards/digits").glob("*-fog-*")).unlink()
    rerun = run_sweep(config, make_executor)
    assert (rerun.complete, list_generated_keys(tmp_path)) == (True, ["fog"])
    assert count_evaluations(config.results) == (10, 10)


def test_interrupted_generation_of_corruptions_is_resumed(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_sweep(keys=KEYS)
    corrupt = corruption_folder.corrupt

    def corrupt_until_interrupted(images: Any, key: str, severity: int, **options: Any) -> Any:
        if key == "fog" and severity == 3:
            raise KeyboardInterrupt
        return corrupt(images, key, severity, **options)

    with monkeypatch.context() as patch:
        patch.setattr(corruption_folder, "corrupt", corrupt_until_interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(config, make_executor)
    assert (list_generated_keys(tmp_path), count_evaluations(config.results)) == (["brightness"], (2, 10))
    assert json.loads((config.results / "progress.json").read_text())["state"] == "stopped"
    assert run_sweep(config, make_executor).complete
    assert count_evaluations(config.results) == (10, 10)


def test_shares_do_not_generate_corruptions(make_sweep: MakeSweep, tmp_path: Path) -> None:
    config = make_sweep(keys=KEYS)
    prepare_sweep(config, filters=Filters(keys=("clean", "fog")))
    assert list_generated_keys(tmp_path) == ["fog"]
    with pytest.raises(InputError, match="prepared without the corrupted images of brightness"):
        run_share(config, Share(1, 1), make_executor)
    tally = run_share(config, Share(1, 1), make_executor, filters=Filters(keys=("clean", "fog")))
    assert (tally.complete, tally.evaluations) == (True, 6)
    prepare_sweep(config)
    assert run_share(config, Share(1, 1), make_executor).complete
    assert count_evaluations(config.results) == (10, 10)
