"""Results of different precisions are never mixed: not by unit ids, resumption, merging or export."""

import json
import shutil
from pathlib import Path

import pytest

from robust201.core.errors import InputError
from robust201.core.precision import PRECISIONS
from robust201.export import export_dataset
from robust201.models.device import has_avx512
from robust201.planning.config import SweepConfig
from robust201.planning.identity import protocol_payload
from robust201.planning.input_facts import InputFacts
from robust201.planning.loading import parse_config
from robust201.planning.plan import assumed_facts, make_plan
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import load_plan, merge_results, run_sweep
from robust201.shards import ShardStore
from tests.conftest import TINY_KEYS, MakeSweep, read_tree, tiny_sweep_fields
from tests.support.plan_edits import replace_folder_in_plan


@pytest.mark.parametrize("engine", ["reference", "fused"])
def test_unit_ids_depend_on_precision(make_sweep: MakeSweep, engine: str) -> None:
    configs = [make_sweep(engine=engine, precision=precision) for precision in PRECISIONS]
    plans = [make_plan(config, assumed_facts(config)) for config in configs]
    n_units = len(plans[0].units)
    assert n_units == 2 * len(TINY_KEYS)
    assert len({unit.id for plan in plans for unit in plan.units}) == len(PRECISIONS) * n_units
    default_config = make_sweep(engine=engine)
    facts: InputFacts = assumed_facts(default_config)
    assert make_plan(default_config, facts).units == plans[0].units
    for config in configs:
        payload = protocol_payload(config, "digits", "pgd", facts)
        assert payload["precision"] == config.precision


def run(config: SweepConfig):
    previews = []
    tally = run_sweep(config, make_executor, on_preview=previews.append)
    assert tally.complete
    return tally, previews[0]


def export(results: Path, out: Path) -> dict[str, bytes]:
    store = ShardStore.open(results)
    export_dataset(load_plan(results), store, store.inventory(verify="all", on_damage="raise"), out)
    return read_tree(out)


def find_precisions(files: dict[str, bytes]) -> set[str]:
    text = files["sweep.json"].decode()
    assert json.loads(text)
    return {precision for precision in PRECISIONS if f'"{precision}"' in text}


KEYS = {key: TINY_KEYS[key] for key in TINY_KEYS if key != "gaussian_noise"}


@pytest.fixture(scope="module", params=[pytest.param("reference", marks=pytest.mark.slow), "fused"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_precision_sweep(engine: str, make_sweep: MakeSweep, tmp_path: Path):
    """Return a function that makes a tiny sweep with a precision and a results folder."""

    def make(precision: str, folder: str) -> SweepConfig:
        return make_sweep(engine=engine, precision=precision, results=str(tmp_path / folder), keys=KEYS)

    return make


@pytest.fixture(scope="module")
def results_by_precision(engine: str, tiny_weights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders with results of a sweep by precision; they are computed once, and tests copy them."""
    if not has_avx512():
        pytest.skip("bf16 is rejected on CPUs without AVX-512")
    folders = {}
    for precision in ("fp32", "bf16"):
        folders[precision] = folder = tmp_path_factory.mktemp(f"{engine}-{precision}")
        run(
            parse_config(tiny_sweep_fields(folder, tiny_weights, engine=engine, precision=precision, keys=KEYS), "test")
        )
    return folders


@pytest.fixture
def copy_results(results_by_precision: dict[str, Path], tmp_path: Path):
    """Return a function that copies the results of the sweep with a precision to a folder."""

    def copy(precision: str, folder: str) -> None:
        shutil.copytree(results_by_precision[precision] / "results", tmp_path / folder)
        shutil.copytree(results_by_precision[precision] / "corruptions", tmp_path / "corruptions", dirs_exist_ok=True)
        replace_folder_in_plan(tmp_path / folder, results_by_precision[precision] / "results", tmp_path / folder)
        replace_folder_in_plan(tmp_path / folder, results_by_precision[precision], tmp_path)

    return copy


def test_bf16_sweep_does_not_use_fp32_results(make_precision_sweep, copy_results, tmp_path: Path) -> None:
    copy_results("fp32", "shared")
    fp32_files = export(tmp_path / "shared", tmp_path / "json")
    rerun, preview = run(make_precision_sweep("bf16", "shared"))
    assert (preview.done, rerun.results) == (0, load_plan(tmp_path / "shared").n_evaluations)
    assert len(preview.stale) == 6
    assert all(line.endswith("are kept but not used: precision: fp32 → bf16") for line in preview.stale)

    # bf16 results are exported identically from a shared and from a separate folder, and do not replace the fp32
    # export.
    with pytest.raises(InputError, match="with the same name but different protocols"):
        export(tmp_path / "shared", tmp_path / "json")
    bf16_files = export(tmp_path / "shared", tmp_path / "bf16-json")
    copy_results("bf16", "separate")
    assert bf16_files == export(tmp_path / "separate", tmp_path / "separate-json")
    assert (find_precisions(fp32_files), find_precisions(bf16_files)) == ({"fp32"}, {"bf16"})
    assert bf16_files.keys() == fp32_files.keys()
    assert bf16_files["digits/clean_confidence.json"] != fp32_files["digits/clean_confidence.json"]

    # All fp32 results are unchanged.
    _, preview = run(make_precision_sweep("fp32", "shared"))
    assert preview.missing == ()
    assert export(tmp_path / "shared", tmp_path / "json") == fp32_files


def test_merging_does_not_mix_precisions(copy_results, tmp_path: Path) -> None:
    copy_results("fp32", "fp32")
    copy_results("bf16", "bf16")
    report, folders_with_other_plans = merge_results([tmp_path / "bf16", tmp_path / "fp32"], tmp_path / "both")
    assert report.findings == ()
    assert folders_with_other_plans == (tmp_path / "fp32",)
    merged_files = export(tmp_path / "both", tmp_path / "both-json")
    assert find_precisions(merged_files) == {"bf16"}
    assert merged_files == export(tmp_path / "bf16", tmp_path / "bf16-json")
