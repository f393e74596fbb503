"""What doctor finds wrong, it names with a fix."""

from pathlib import Path

import pytest

from pipeline.doctor import examine
from tests.conftest import MakeSweep


def test_a_sound_sweep_has_no_findings_to_fix(make_sweep: MakeSweep) -> None:
    findings = {finding.what: finding for finding in examine(make_sweep())}
    assert {"python", "torch", "gpus", "results", "disk", "checkpoints", "digits"} <= set(findings)
    assert [finding.what for finding in findings.values() if not finding.ok] == []


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"checkpoints": {"path": "nowhere"}}, "checkpoints", "nowhere"),
        ({"architectures": [0, 9]}, "checkpoints", "#9 digits"),
        ({"images": {"count": 451}}, "digits", "images.count"),
        (
            {"datasets": {"digits": {"corruptions": {"source": "published", "path": "x"}}}},
            "digits corruptions",
            "generated",
        ),
    ],
)
def test_what_a_sweep_lacks_is_told(make_sweep: MakeSweep, changes: dict[str, object], what: str, fix: str) -> None:
    wrong = [finding for finding in examine(make_sweep(**changes)) if not finding.ok]
    assert [finding.what for finding in wrong] == [what]
    assert fix in wrong[0].fix


def test_missing_images_do_not_hide_missing_corruptions(make_sweep: MakeSweep, tmp_path: Path) -> None:
    nowhere = {"path": str(tmp_path / "no"), "corruptions": {"source": "published", "path": str(tmp_path / "no-C")}}
    wrong = {finding.what: finding for finding in examine(make_sweep(datasets={"cifar10": nowhere})) if not finding.ok}
    assert {"cifar10", "cifar10 corruptions"} <= set(wrong)
    assert "fetch CIFAR-10-C" in wrong["cifar10 corruptions"].fix


def test_cut_off_weights_are_found(make_sweep: MakeSweep, tmp_path: Path) -> None:
    import shutil

    config = make_sweep()
    store = tmp_path / "weights"
    shutil.copytree(config.checkpoints.path, store)
    victim = next(store.rglob("000021-*.safetensors"))
    victim.write_bytes(victim.read_bytes()[:-1])
    wrong = [finding for finding in examine(make_sweep(checkpoints={"path": str(store)})) if not finding.ok]
    assert [finding.what for finding in wrong] == ["checkpoints"]
    assert "truncated" in wrong[0].fix
