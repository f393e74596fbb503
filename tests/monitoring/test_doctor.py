"""What doctor finds wrong, it names with a fix."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from robust201.cli import console
from robust201.core.errors import StorageError
from robust201.core.precision import has_avx512
from robust201.monitoring.doctor import examine
from robust201.monitoring.doctor_machines import (
    HealthCheck,
    examine_clock,
    examine_cluster,
    examine_device,
    examine_gpus,
)
from robust201.spaces.nasbench201.compiled import native
from tests.conftest import REPOSITORY, MakeSweep, RunCommand, WriteSweep


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


def test_doctor_and_run_reject_bf16_on_a_cpu_without_avx512(
    monkeypatch: pytest.MonkeyPatch, make_sweep: MakeSweep, robust201: RunCommand, write_sweep: WriteSweep
) -> None:
    monkeypatch.setattr("robust201.core.precision.has_avx512", lambda: False)
    check = examine_device(make_sweep(precision="bf16", execution={"executor": "inline", "device": "cpu"}))
    assert not check.ok
    assert "wrong gradients" in check.fix
    sweep = write_sweep(precision="bf16", execution={"executor": "inline", "device": "cpu"})
    assert "wrong gradients in bfloat16. Set precision to fp32" in robust201("run", sweep).refusal(2)


@pytest.mark.parametrize(
    ("has_avx512", "detail"), [(True, "results are the same."), (False, "confidences may differ in their last digits.")]
)
def test_doctor_reports_whether_results_depend_on_the_missing_library(
    monkeypatch: pytest.MonkeyPatch, has_avx512: bool, detail: str
) -> None:
    monkeypatch.setattr(native, "why_not", lambda: "no library")
    monkeypatch.setattr("robust201.core.precision.has_avx512", lambda: has_avx512)
    kernels = next(check for check in examine(None) if check.what == "cpu kernels")
    assert kernels.detail.endswith(detail)


@pytest.mark.skipif(not has_avx512(), reason="the native library is compiled for AVX-512")
def test_it_is_told_whose_kernels_compute_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "why_not", lambda: None)
    assert next(found for found in examine(None) if found.what == "cpu kernels").detail.startswith("the native library")
    monkeypatch.setattr(native, "why_not", lambda: "it was not compiled")
    found = next(found for found in examine(None) if found.what == "cpu kernels")
    assert found.ok
    assert "PyTorch's: it was not compiled." in found.detail


def test_missing_images_do_not_hide_missing_corruptions(make_sweep: MakeSweep, tmp_path: Path) -> None:
    nowhere = {"path": str(tmp_path / "no"), "corruptions": {"source": "published", "path": str(tmp_path / "no-C")}}
    wrong = {finding.what: finding for finding in examine(make_sweep(datasets={"cifar10": nowhere})) if not finding.ok}
    assert {"cifar10", "cifar10 corruptions"} <= set(wrong)
    assert "fetch CIFAR-10-C" in wrong["cifar10 corruptions"].fix


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """What answers like a Ray head's dashboard on loopback; the token of this machine is in a file."""
    answer = SimpleNamespace(status=200, version=version("ray"), token="the right one", skew=0.0, seen=[])

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer.seen.append(self.path)
            sent = self.headers.get("Authorization")
            right = sent == f"Bearer {answer.token}" or answer.token is None
            self.send_response_only(answer.status if right else 403 if sent else 401)
            self.send_header("Date", formatdate(time.time() + answer.skew, usegmt=True))
            self.end_headers()
            self.wfile.write(json.dumps({"version": "4", "ray_version": answer.version}).encode())

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    answer.address = f"http://127.0.0.1:{server.server_port}"
    answer.token_file = tmp_path / "auth_token"
    answer.token_file.write_text("the right one")
    answer.token_file.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(answer.token_file))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield answer
    server.shutdown()
    thread.join()
    server.server_close()


def wrong_with(head: SimpleNamespace) -> dict[str, HealthCheck]:
    return {found.what: found for found in examine_cluster(None, head.address) if not found.ok}


def test_a_sound_cluster_has_nothing_to_fix(head: SimpleNamespace) -> None:
    found = {finding.what: finding for finding in examine_cluster(None, head.address)}
    assert list(found) == ["token", "cluster", "cluster token", "cluster clock"]
    assert all(finding.ok for finding in found.values())
    assert head.seen == ["/api/version"]


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"version": "2.40.0"}, "cluster", "Install ray==2.40.0 here"),
        ({"token": "another"}, "cluster token", "is another cluster's"),
        ({"token": None, "version": version("ray")}, None, ""),
        ({"skew": 100.0}, "cluster clock", "NTP"),
        ({"skew": -100.0}, "cluster clock", "NTP"),
        ({"status": 500}, "cluster", "dashboard"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_told(
    head: SimpleNamespace, changes: dict[str, object], what: str | None, fix: str
) -> None:
    vars(head).update(changes)
    found = wrong_with(head)
    assert list(found) == ([what] if what else [])
    assert what is None or fix in found[what].fix


def test_a_token_that_others_may_read_is_told(head: SimpleNamespace) -> None:
    head.token_file.chmod(0o644)
    assert "chmod 600" in wrong_with(head)["token"].fix
    alone = next(iter(examine_cluster(None, None)))  # without a cluster it opens nothing: told, and all is well
    assert (alone.ok, alone.warns, "others can read it" in alone.detail, "chmod 600" in alone.fix) == (True,) * 4
    head.token_file.chmod(0o600)
    safe = next(iter(examine_cluster(None, None)))
    assert (safe.ok, safe.warns, "others can" in safe.detail) == (True, False, False)


def test_a_warning_has_a_mark_of_its_own_and_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_health_check(HealthCheck("token", ok=True, detail="mode 0644", fix="chmod 600", warns=True))
    console.show_health_check(HealthCheck("clock", ok=True, detail="0 s", fix="Let both synchronise."))
    assert capsys.readouterr().out == "warn token: mode 0644\n     chmod 600\nok   clock: 0 s\n"


@pytest.mark.parametrize("content", [None, "name: a\nresults: ${UNSET_IN_THIS_TEST}/runs\n"])
def test_a_sweep_that_cannot_be_read_hides_nothing_else(
    robust201: RunCommand, tmp_path: Path, content: str | None
) -> None:
    sweep = tmp_path / "sweep.yaml"
    if content is not None:
        sweep.write_text(content)
    ended = robust201("doctor", sweep, "--json")
    assert (ended.code, ended.err) == (2, "")
    found = {finding["what"]: finding for finding in json.loads(ended.out)}
    assert {"python", "torch", "gpus", "token"} <= set(found)
    assert list(found)[-1] == "sweep"
    assert not found["sweep"]["ok"]
    assert ("UNSET_IN_THIS_TEST" if content else str(sweep)) in found["sweep"]["fix"]


def test_a_missing_token_is_told_with_where_to_put_it(
    head: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = wrong_with(head)
    assert list(found) == ["token", "cluster token"]
    assert "ray get-auth-token" in found["token"].fix
    head.token = None
    assert "RAY_AUTH_MODE=token" in wrong_with(head)["cluster token"].fix
    assert [finding.ok for finding in examine_cluster(None, None)] == [True]  # who computes here needs none


def test_an_address_where_nothing_listens_is_told(head: SimpleNamespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        head.address = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert "Start the cluster" in wrong_with(head)["cluster"].fix


def test_a_clock_that_is_off_is_told(tmp_path: Path) -> None:
    assert examine_clock(tmp_path).ok
    for skew in (-60.0, 60.0):
        found = examine_clock(tmp_path, clock=lambda skew=skew: time.time() + skew)
        assert (found.ok, "NTP" in found.fix) == (False, True)


def test_a_gpu_that_torch_cannot_use_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA A100, 470.57'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for built, fix in ((None, "CUDA build"), ("13.0", "Update the driver")):
        monkeypatch.setattr(torch.version, "cuda", built)
        found = examine_gpus()
        assert (found.ok, "NVIDIA A100, 470.57" in found.detail, fix in found.fix) == (False, True, True)


def test_a_device_that_is_not_here_is_told(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = make_sweep(execution={"device": "cuda"})
    assert "auto or cpu" in examine_device(config).fix
    assert examine_device(make_sweep(execution={"device": "cuda", "executor": "ray", "ray_address": "auto"})).ok


def test_the_cluster_that_a_sweep_names_is_looked_for(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")

    def cluster(address: str) -> HealthCheck:
        config = make_sweep(execution={"executor": "ray", "ray_address": address})
        return next(found for found in examine_cluster(config, None) if found.what == "cluster")

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert cluster(address).ok
    assert "execution.ray_address" in cluster(address).fix
    assert cluster("auto").ok


def run_without(packages: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    none = dict.fromkeys(packages.split(","))
    program = f"import sys; sys.modules.update({none}); from robust201.cli.app import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def test_a_sweep_that_needs_a_missing_package_is_refused(write_sweep: WriteSweep) -> None:
    ended = run_without("pyarrow", "doctor", str(write_sweep(shards="s3://bucket/paper")))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "robust201 doctor, without a sweep" in ended.stderr


@pytest.mark.parametrize(
    "package", ["pyarrow", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "ray"))]
)
def test_a_missing_package_is_a_finding_and_hides_no_other(write_sweep: WriteSweep, package: str) -> None:
    ended = run_without(package, "doctor", str(write_sweep()))
    assert "Traceback" not in ended.stderr
    marks = {line.split(":")[0].split()[-1]: line.split()[0] for line in ended.stdout.splitlines() if line[0] != " "}
    wrong = {"torch": {"kernels", "gpus", "device", "disk", "digits"}, "pyarrow": {"disk"}, "ray": set()}[package]
    assert marks.keys() >= {"python", "torch", "gpus", "token", "device", "results", "disk", "clock", "digits"}
    assert {what for what, mark in marks.items() if mark == "fix"} <= wrong | {"checkpoints", package}
    assert ended.returncode == (2 if "fix" in marks.values() else 0)
    assert not wrong or "fix" in marks.values()


def test_a_broken_package_is_a_finding(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError("libcudnn.so.9: cannot open shared object file")

    monkeypatch.setattr("robust201.monitoring.doctor.examine_gpus", fail)
    found = {finding.what: finding for finding in examine(make_sweep())}
    assert (found["gpus"].ok, "libcudnn" in found["gpus"].detail) == (False, True)
    assert found["digits"].ok


def test_images_that_may_not_be_read_are_told(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", "test_batch")

    monkeypatch.setattr("robust201.planning.inputs.Inputs.images", refuse)
    wrong = [finding for finding in examine(make_sweep()) if not finding.ok]
    assert [finding.what for finding in wrong] == ["digits"]
    assert ("test_batch" in wrong[0].detail, "permissions" in wrong[0].fix) == (True, True)


def test_findings_are_shown_as_they_are_made(
    robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def examine_two(*_arguments: object, **_named: object) -> Iterator[HealthCheck]:
        yield HealthCheck("first", ok=True, detail="there")
        shown.append(capsys.readouterr().out)
        yield HealthCheck("second", ok=False, detail="gone", fix="Bring it back.")

    shown: list[str] = []
    monkeypatch.setattr("robust201.monitoring.doctor.examine", examine_two)
    ended = robust201("doctor")
    assert (ended.code, shown) == (2, ["ok   first: there\n"])
    assert ended.out == "fix  second: gone\n     Bring it back.\n"


def test_a_head_is_compared_with_no_ray_here(head: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", refuse)
    found = {finding.what: finding for finding in examine_cluster(None, head.address)}
    assert found["cluster"].fix.startswith(f"Install ray=={head.version} here")
    assert found["cluster token"].ok


def test_an_old_library_is_told(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    versions = importlib.metadata.version
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.3" if name == "ray" else versions(name))
    wrong = [found for found in examine(None) if not found.ok]
    assert [(found.what, found.detail) for found in wrong] == [("ray", "2.9.3, older than 2.56")]


def test_a_url_of_shards_is_written_to(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import fsspec

    from robust201.shards import object_store as object_place
    from robust201.shards.object_store import ObjectBackend

    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(object_place, "url_to_fs", lambda url, **_named: (memory, url.removeprefix("s3:/")))

    def shards(url: str) -> HealthCheck:
        return next(found for found in examine(make_sweep(shards=url)) if found.what == "shards")

    assert shards("s3://bucket/paper").ok
    assert memory.find("/bucket") == []
    assert shards(f"file://{tmp_path}/far").ok

    def refuse(self: ObjectBackend, shard: str, content: bytes) -> None:
        raise StorageError("Writing failed for the bucket: expected to write there, got Access Denied.")

    monkeypatch.setattr(ObjectBackend, "publish", refuse)
    found = shards("s3://bucket/paper")
    assert (found.ok, "Access Denied" in found.fix) == (False, True)


@pytest.mark.parametrize(
    "module", [pytest.param("numpy", marks=pytest.mark.slow), "numpy,orjson,pandas,scipy,PIL,yaml,sklearn,pyarrow"]
)
def test_missing_packages_are_told_whatever_else_needs_them(module: str) -> None:
    found = run_without(module, "doctor", "--json")
    assert (found.returncode, found.stderr) == (2, "")
    gone = {finding["what"] for finding in json.loads(found.stdout) if finding["detail"].endswith("is gone")}
    names = {"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn"}
    assert gone == {names.get(name, name) for name in module.split(",")}


def test_a_verb_without_its_packages_ends_in_one_line() -> None:
    ended = run_without("numpy", "plan", "jobs/demo.yaml")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "robust201 doctor shows what is missing" in ended.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "a folder instead of a regular file"),
        (b"", "an empty file"),
        (b"\xff\xfe", "codec"),
        (b"one\ntwo", "one line"),
        (b"\x00", "line"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_a_token_file_that_holds_no_token_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, told: str, named: bool
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".ray/auth_token"
    path.parent.mkdir()
    if named:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    assert [finding.ok for finding in examine_cluster(None, None)] == [not named]
    path.mkdir() if content is None else path.write_bytes(content)
    (finding,) = examine_cluster(None, None)
    assert not finding.ok
    assert finding.detail == "not readable"
    assert told in finding.fix
    assert str(path) in finding.fix


def test_a_token_that_no_header_can_carry_is_told_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "se\ncret")
    (finding,) = examine_cluster(None, None)
    assert not finding.ok
    assert "RAY_AUTH_TOKEN" in finding.fix
    assert "cret" not in finding.fix.replace("secret", "")
