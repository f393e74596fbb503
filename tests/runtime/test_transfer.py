"""Transfer attacks: images are generated once, on the source network, and evaluated on all networks."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from robust201.core.errors import ConfigError, DatasetError, EvaluationError, InputError
from robust201.core.records import Weights
from robust201.export import export_dataset
from robust201.images.adversarial import AdversarialStore
from robust201.planning.config import SweepConfig
from robust201.planning.filters import Filters
from robust201.planning.input_facts import InputFacts
from robust201.planning.plan import assumed_facts, make_plan
from robust201.planning.plan_file import load_plan
from robust201.planning.shares import Share
from robust201.reader.dataset import RobustnessDataset
from robust201.runtime import worker as worker_module
from robust201.runtime.executors import make_executor
from robust201.runtime.scheduler import RunTally
from robust201.runtime.share_run import run_share
from robust201.runtime.sweep import prepare_sweep, run_sweep
from robust201.shards import ShardStore
from robust201.spaces.nasbench201 import cells
from robust201.tasks.evaluate import perturb_part
from tests.conftest import MakeSweep

ATTACK: dict[str, Any] = {"epsilons_255": [1, 8], "steps": 2}
KEYS: dict[str, Any] = {
    "clean": {},
    "pgd": ATTACK,
    "transfer": {"source": [0, 21], "key": "pgd", **ATTACK},
}
INVALID_TRANSFERS = [
    ({"source": 22, "key": "pgd"}, r"expected one of the sweep's architectures, .+ got #22"),
    ({"source": 99999, "key": "pgd"}, r"99999"),
    ({"source": 0, "key": "fog"}, r"keys.transfer.key: expected an attack, such as pgd, got 'fog'"),
    ({"source": 0}, r"keys.transfer.key: expected an attack"),
    ({"source": 0, "key": "pgb"}, r"Did you mean 'pgd'"),
    ({"source": 0, "key": "pgd", "epsilon": [1]}, r"keys.transfer.epsilon"),
    ({"source": [0, 0], "key": "pgd"}, r"expected one or more different architectures"),
    (
        {"source": [0, 0.0], "key": "pgd"},
        r"expected one or more different architectures, got \[0, 0.0\]",
    ),
    (
        {"source": [0, cells.specs()[0]], "key": "pgd"},
        r"in a list of sources, got #0 twice \(also transfer_0\)",
    ),
    ({"source": 0, "key": "aa_fab-t", "queries": 3}, r"keys.transfer.queries"),
    ({"source": 0, "key": "transfer"}, r"keys.transfer.key: expected an attack, such as pgd, got 'transfer'"),
]


def run(config: SweepConfig, **options: Any) -> RunTally:
    return run_sweep(config, make_executor, **options)


def export(config: SweepConfig, out: Path) -> RobustnessDataset:
    store = ShardStore.open(config.results)
    export_dataset(load_plan(config.results), store, store.inventory(), out)
    return RobustnessDataset(out)


def read_values(data: RobustnessDataset, key: str, measurement: str) -> dict[str, Any]:
    """Read the exported values of a key and a measurement, by architecture."""
    path = data.path / "digits" / f"{key}_{measurement}.json"
    values: dict[str, Any] = json.loads(path.read_text())["digits"][key][measurement]
    return values


def list_image_files(config: SweepConfig) -> list[str]:
    folder = config.results / "adversarial"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.npy"))


@pytest.mark.parametrize(("fields", "message"), INVALID_TRANSFERS)
def test_invalid_transfer_is_rejected(make_sweep: MakeSweep, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_sweep(keys={"clean": {}, "transfer": fields})


@pytest.mark.parametrize("fields", [{"source": 0, "key": "fgsm"}, {"file": "own.py"}])
def test_too_long_key_is_rejected(make_sweep: MakeSweep, fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"ha(s|ve) up to 100 bytes"):
        make_sweep(keys={"clean": {}, "é".join("a" * 61): fields})  # 181 bytes


def test_filtered_run_attacks_source_outside_its_filter(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"transfer": {"source": 0, "key": "fgsm", "epsilons_255": [4]}})
    assert run(config, filters=Filters(architectures=(21,))).evaluations == 1
    assert run(config).evaluations == 1


def test_transfer_to_source_equals_attack(make_sweep: MakeSweep, tmp_path: Path) -> None:
    config = make_sweep(keys=KEYS)
    tally = run(config)
    assert (tally.complete, tally.evaluations) == (True, 2 * (1 + 2 + 2 + 2))
    assert len(list_image_files(config)) == 2 * 2  # one block per source and strength, for all networks
    data = export(config, tmp_path / "out")
    assert data.data == ["digits"]
    for measurement in ("accuracy", "cm", "confidence"):
        attack_values = read_values(data, "pgd", measurement)
        for source, other_network in (("0", "21"), ("21", "0")):
            transfer_values = read_values(data, f"transfer_{source}", measurement)
            assert transfer_values[source] == attack_values[source]
            # Untrained networks may have equal predictions, but their confidences differ.
            assert measurement != "confidence" or transfer_values[other_network] != attack_values[other_network]
    assert {data.files.kind_of(key) for key in ("transfer_0", "transfer_21")} == {"attack"}
    assert list(data.strengths("digits", "transfer_0")) == [1, 8]
    exported_fields = yaml.safe_load((tmp_path / "out/sweep.yaml").read_text())
    attack_fields = config.parameters["pgd"].model_dump(mode="json")
    assert exported_fields["keys"]["transfer_21"] == {"source": 21, "key": "pgd"} | attack_fields
    assert run(config).results == 0


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        ("fused", "fgsm"),
        ("fused", "aa_square_l2"),
        ("fused", "aa_standard"),
        ("fused", "grid135"),
        ("reference", "fgsm"),
    ],
)
def test_transfer_supports_attack(make_sweep: MakeSweep, tmp_path: Path, engine: str, key: str) -> None:
    parameters = {
        "fgsm": {"epsilons_255": [2]},
        "aa_square_l2": {"epsilons": [0.5], "queries": 3},
        "aa_standard": {"epsilons_255": [4], "steps": 1, "queries": 2},
        "grid135": {"rotations": 3, "translations": 1, "max_translation": 0},
    }[key]
    keys = {key: parameters, "transfer": {"source": 21, "key": key, **parameters}}
    config = make_sweep(keys=keys, engine=engine, architectures=[21])
    assert run(config).complete
    data = export(config, tmp_path / "out")
    for measurement in ("accuracy", "cm"):
        assert read_values(data, "transfer", measurement) == read_values(data, key, measurement)


def test_additional_strength_generates_only_its_images(make_sweep: MakeSweep) -> None:
    def sweep(*epsilons: float) -> SweepConfig:
        return make_sweep(keys={"transfer": {"source": 0, "key": "fgsm", "epsilons_255": list(epsilons)}})

    assert run(sweep(1)).evaluations == 2
    original_files = list_image_files(sweep(1))
    assert run(sweep(1, 4)).evaluations == 2
    assert set(original_files) < set(list_image_files(sweep(1, 4)))


def test_lost_transfer_results_are_recomputed_on_regenerated_images(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys=KEYS)
    run(config)
    original_files = list_image_files(config)
    shutil.rmtree(config.results / "adversarial")
    assert (run(config).results, list_image_files(config)) == (0, [])
    next((config.results / "shards/digits").glob("*-transfer_21-*")).unlink()
    assert run(config).complete
    assert set(list_image_files(config)) < set(original_files)
    assert len(list_image_files(config)) == 2


def test_transfer_protocol_depends_on_source_and_attack(make_sweep: MakeSweep) -> None:
    def protocol(**changes: Any) -> str:
        config = make_sweep(keys={"transfer": {"source": 0, "key": "pgd", **ATTACK} | changes})
        return make_plan(config, facts_of(config)).units[0].protocol

    def facts_of(config: SweepConfig) -> InputFacts:
        facts = assumed_facts(config)
        weights = {index: (Weights(f"{index:064d}"),) for index in config.selected_architectures}
        return replace(facts, weights={"digits": weights})

    base_protocol = protocol()
    assert base_protocol == protocol(epsilons_255=[3])  # strengths are not part of a protocol
    assert len({base_protocol, protocol(steps=3), protocol(source=21), protocol(key="pgd_linf7", steps=7)}) == 4


def test_failed_source_fails_only_its_transfer(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_on_21(context: Any, task: Any, parameters: Any, part: Any, *arguments: Any, **options: Any) -> Any:
        if part.unit.architecture == 21:
            raise RuntimeError("no such luck")
        return perturb_part(context, task, parameters, part, *arguments, **options)

    config = make_sweep(keys=KEYS)
    with monkeypatch.context() as patch:
        patch.setattr(worker_module, "perturb_part", fail_on_21)
        tally = run(config)
        assert [failure.part.label for failure in tally.failures] == ["#21 digits images of transfer_21"]
        assert (tally.complete, tally.remaining, tally.evaluations) == (False, 4, 2 * (1 + 2 + 2))
        with pytest.raises(EvaluationError, match=r"#21 digits images of transfer_21: .+ no such luck"):
            prepare_sweep(config)
    assert run(config).evaluations == 4


def test_shares_do_not_generate_adversarial_images(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys=KEYS)
    prepare_sweep(config, filters=Filters(keys=("clean", "transfer_0")))
    with pytest.raises(InputError, match=r"prepared without the adversarial images of transfer_21.+plan --save"):
        run_share(config, Share(1, 1), make_executor)
    assert run_share(config, Share(1, 1), make_executor, filters=Filters(keys=("clean", "transfer_0"))).evaluations == 6
    prepare_sweep(config)
    assert run_share(config, Share(1, 1), make_executor).complete
    assert run(config).results == 0


def test_error_names_damaged_adversarial_block(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"transfer": {"source": 0, "key": "fgsm", "epsilons_255": [4]}})
    prepare_sweep(config)
    (block,) = config.results.glob("adversarial/*/*.npy")
    content = bytearray(block.read_bytes())
    content[-1] ^= 1
    block.write_bytes(content)
    tally = run(config)
    assert {failure.message.partition(":")[0] for failure in tally.failures} == {"DatasetError"}
    assert all(str(block) in failure.message for failure in tally.failures)
    block.unlink()
    assert run(config).complete


@pytest.mark.parametrize("damage", ["shape", "folder", "link"])
def test_error_names_invalid_adversarial_block(tmp_path: Path, damage: str) -> None:
    store = AdversarialStore(tmp_path, np.arange(20), batch_size=10)
    store.write(4.0, 0, np.zeros((20, 3, 2, 2), np.float32))
    (block,) = tmp_path.glob("*.npy")
    block.unlink()
    if damage == "shape":  # the file is a valid block, but for fewer images
        store.write(4.0, 0, np.zeros((5, 3, 2, 2), np.float32))
        (block,) = tmp_path.glob("*.npy")
        block.rename(tmp_path / block.name.replace("000005", "000020"))
    elif damage == "folder":
        block.mkdir()
    else:
        block.symlink_to(tmp_path / "nothing")
    with pytest.raises(DatasetError, match=r"4\.0-000000-000020-.+Delete it; the next run creates it again"):
        store(4.0, np.arange(20))


def test_adversarial_blocks_align_with_batches_and_are_read_together(tmp_path: Path) -> None:
    indices = np.arange(0, 1400, 2)
    store = AdversarialStore(tmp_path / "store", indices, batch_size=120)
    pixels = np.random.default_rng(0).random((len(indices), 3, 2, 2), dtype=np.float32)
    assert list(store.find_missing_blocks([1.0, 2.0])) == [
        ((1.0, 2.0), start, min(start + 360, 700)) for start in (0, 360)
    ]
    for start in (0, 360):
        store.write(2.0, start, pixels[start : start + 360])
    assert list(store.find_missing_blocks([1.0, 2.0])) == [((1.0,), start, min(start + 360, 700)) for start in (0, 360)]
    requested_indices = np.array([1398, 0, 718, 720, 2])
    assert np.array_equal(store(2.0, requested_indices), pixels[requested_indices // 2])
    with pytest.raises(DatasetError, match=r"the block is missing"):
        store(1.0, requested_indices)


def test_transfer_rejects_weights_name_if_source_has_single_weights(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"transfer": {"source": 0, "key": "pgd", "weights": "nope"}})
    with pytest.raises(ConfigError, match=r"unnamed set of weights, but `weights` is 'nope'\. Remove the field"):
        run(config)


def test_transfer_source_weights_are_selected_by_name(make_sweep: MakeSweep, tmp_path: Path) -> None:
    def sweep(**fields: Any) -> SweepConfig:
        keys = {"fgsm": {"epsilons_255": [4]}, "transfer": {"source": 0, "key": "fgsm", "epsilons_255": [4], **fields}}
        weights = {"random": {"seeds": [3, 4]}}
        return make_sweep(keys=keys, checkpoints=None, weights=weights, architectures=[0])

    with pytest.raises(ConfigError, match="expected `weights` to be one of random-s3, random-s4, got none"):
        run(sweep())
    with pytest.raises(ConfigError, match=r"got random-s5.+Did you mean"):
        run(sweep(weights="random-s5"))
    config = sweep(weights="random-s4")
    assert run(config).complete
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    export_dataset(plan, store, store.inventory(), tmp_path / "out", weights="random-s4")
    data = RobustnessDataset(tmp_path / "out")
    assert read_values(data, "transfer", "cm") == read_values(data, "fgsm", "cm")
