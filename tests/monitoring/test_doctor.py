"""`robust201 doctor` reports each problem with advice on how to fix it."""

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


def test_doctor_reports_no_problems_for_a_valid_sweep(make_sweep: MakeSweep) -> None:
    checks = {check.what: check for check in examine(make_sweep())}
    assert {"python", "torch", "gpus", "results", "disk", "checkpoints", "digits"} <= set(checks)
    assert [check.what for check in checks.values() if not check.ok] == []


@pytest.mark.parametrize(
    ("changes", "check_name", "fix"),
    [
        ({"checkpoints": {"path": "nowhere"}}, "checkpoints", "nowhere"),
        ({"architectures": [0, 9]}, "checkpoints", "#9 digits"),
        ({"images": {"count": 451}}, "digits", "images.count"),  # one more than digits has
        (
            {"datasets": {"digits": {"corruptions": {"source": "published", "path": "x"}}}},
            "digits corruptions",
            "generated",
        ),
    ],
)
def test_doctor_reports_missing_inputs_of_a_sweep(
    make_sweep: MakeSweep, changes: dict[str, object], check_name: str, fix: str
) -> None:
    failures = [check for check in examine(make_sweep(**changes)) if not check.ok]
    assert [check.what for check in failures] == [check_name]
    assert fix in failures[0].fix


def test_doctor_and_run_reject_bf16_on_a_cpu_without_avx512(
    monkeypatch: pytest.MonkeyPatch, make_sweep: MakeSweep, robust201: RunCommand, write_sweep: WriteSweep
) -> None:
    monkeypatch.setattr("robust201.core.precision.has_avx512", lambda: False)
    check = examine_device(make_sweep(precision="bf16", execution={"executor": "inline", "device": "cpu"}))
    assert not check.ok
    assert "wrong gradients" in check.fix
    sweep = write_sweep(precision="bf16", execution={"executor": "inline", "device": "cpu"})
    assert "wrong gradients in bfloat16. Set `precision` to fp32" in robust201("run", sweep).error_line(2)


@pytest.mark.parametrize(
    ("has_avx512", "detail"), [(True, "results are the same."), (False, "confidences may differ in their last digits.")]
)
def test_doctor_reports_whether_results_change_without_native_library(
    monkeypatch: pytest.MonkeyPatch, has_avx512: bool, detail: str
) -> None:
    monkeypatch.setattr(native, "unavailable_reason", lambda: "no library")
    monkeypatch.setattr("robust201.core.precision.has_avx512", lambda: has_avx512)
    kernels = next(check for check in examine(None) if check.what == "cpu kernels")
    assert kernels.detail.endswith(detail)


@pytest.mark.skipif(not has_avx512(), reason="the native library is compiled for AVX-512")
def test_doctor_reports_which_cpu_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "unavailable_reason", lambda: None)
    assert next(check for check in examine(None) if check.what == "cpu kernels").detail.startswith("the native library")
    monkeypatch.setattr(native, "unavailable_reason", lambda: "it was not compiled")
    check = next(check for check in examine(None) if check.what == "cpu kernels")
    assert check.ok
    assert "PyTorch's, since the native library cannot be used: it was not compiled." in check.detail


def test_doctor_reports_missing_images_and_missing_corruptions(make_sweep: MakeSweep, tmp_path: Path) -> None:
    section = {"path": str(tmp_path / "no"), "corruptions": {"source": "published", "path": str(tmp_path / "no-C")}}
    problems = {check.what: check for check in examine(make_sweep(datasets={"cifar10": section})) if not check.ok}
    assert {"cifar10", "cifar10 corruptions"} <= set(problems)
    assert "fetch CIFAR-10-C" in problems["cifar10 corruptions"].fix


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """Serve a fake Ray dashboard on loopback; the client's token is in a file."""
    server_state = SimpleNamespace(status=200, version=version("ray"), token="the right one", skew=0.0, paths=[])

    class Dashboard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server_state.paths.append(self.path)
            sent_token = self.headers.get("Authorization")
            is_valid = sent_token == f"Bearer {server_state.token}" or server_state.token is None
            self.send_response_only(server_state.status if is_valid else 403 if sent_token else 401)
            self.send_header("Date", formatdate(time.time() + server_state.skew, usegmt=True))
            self.end_headers()
            self.wfile.write(json.dumps({"version": "4", "ray_version": server_state.version}).encode())

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    server_state.address = f"http://127.0.0.1:{server.server_port}"
    server_state.token_file = tmp_path / "auth_token"
    server_state.token_file.write_text("the right one")
    server_state.token_file.chmod(0o600)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(server_state.token_file))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server_state
    server.shutdown()
    thread.join()
    server.server_close()


def failed_checks(head: SimpleNamespace) -> dict[str, HealthCheck]:
    return {check.what: check for check in examine_cluster(None, head.address) if not check.ok}


def test_doctor_reports_no_problems_for_a_valid_cluster(head: SimpleNamespace) -> None:
    checks = {check.what: check for check in examine_cluster(None, head.address)}
    assert list(checks) == ["token", "cluster", "cluster token", "cluster clock"]
    assert all(check.ok for check in checks.values())
    assert head.paths == ["/api/version"]


@pytest.mark.parametrize(
    ("changes", "check_name", "fix"),
    [
        ({"version": "2.40.0"}, "cluster", "Install ray==2.40.0 here"),
        ({"token": "another"}, "cluster token", "is for another cluster"),
        ({"token": None, "version": version("ray")}, None, ""),  # a head without a token also accepts requests with one
        ({"skew": 100.0}, "cluster clock", "NTP"),
        ({"skew": -100.0}, "cluster clock", "NTP"),
        ({"status": 500}, "cluster", "dashboard"),
    ],
)
def test_doctor_reports_problems_of_a_cluster(
    head: SimpleNamespace, changes: dict[str, object], check_name: str | None, fix: str
) -> None:
    vars(head).update(changes)
    failures = failed_checks(head)
    assert list(failures) == ([check_name] if check_name else [])
    assert check_name is None or fix in failures[check_name].fix


def test_doctor_reports_a_token_readable_by_others(head: SimpleNamespace) -> None:
    head.token_file.chmod(0o644)
    assert "chmod 600" in failed_checks(head)["token"].fix
    check = next(iter(examine_cluster(None, None)))  # without a cluster, this is only a warning
    assert (check.ok, check.warns, "other users can read it" in check.detail, "chmod 600" in check.fix) == (True,) * 4
    head.token_file.chmod(0o600)
    check = next(iter(examine_cluster(None, None)))
    assert (check.ok, check.warns, "other users can" in check.detail) == (True, False, False)


def test_doctor_prints_warnings_with_their_fix(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_health_check(HealthCheck("token", ok=True, detail="mode 0644", fix="chmod 600", warns=True))
    console.show_health_check(HealthCheck("clock", ok=True, detail="0 s", fix="Synchronise both."))
    assert capsys.readouterr().out == "warn token: mode 0644\n     chmod 600\nok   clock: 0 s\n"


@pytest.mark.parametrize("content", [None, "name: a\nresults: ${UNSET_IN_THIS_TEST}/runs\n"])
def test_doctor_reports_an_unreadable_sweep_after_all_other_checks(
    robust201: RunCommand, tmp_path: Path, content: str | None
) -> None:
    sweep = tmp_path / "sweep.yaml"
    if content is not None:
        sweep.write_text(content)
    result = robust201("doctor", sweep, "--json")
    assert (result.code, result.err) == (2, "")
    checks = {check["what"]: check for check in json.loads(result.out)}
    assert {"python", "torch", "gpus", "token"} <= set(checks)
    assert list(checks)[-1] == "sweep"
    assert not checks["sweep"]["ok"]
    assert ("UNSET_IN_THIS_TEST" if content else str(sweep)) in checks["sweep"]["fix"]


def test_doctor_reports_a_missing_token(head: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    failures = failed_checks(head)
    assert list(failures) == ["token", "cluster token"]
    assert "ray get-auth-token" in failures["token"].fix
    head.token = None
    assert "RAY_AUTH_MODE=token" in failed_checks(head)["cluster token"].fix
    assert [check.ok for check in examine_cluster(None, None)] == [True]  # runs on this machine need no token


def test_doctor_reports_an_address_without_a_server(head: SimpleNamespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        head.address = f"http://127.0.0.1:{server.getsockname()[1]}"
    assert "Start the cluster" in failed_checks(head)["cluster"].fix


def test_doctor_reports_a_wrong_clock(tmp_path: Path) -> None:
    assert examine_clock(tmp_path).ok
    for skew in (-60.0, 60.0):
        check = examine_clock(tmp_path, clock=lambda skew=skew: time.time() + skew)
        assert (check.ok, "NTP" in check.fix) == (False, True)


def test_doctor_reports_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA A100, 470.57'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for cuda_version, fix in ((None, "CUDA build"), ("13.0", "Update the driver")):
        monkeypatch.setattr(torch.version, "cuda", cuda_version)
        check = examine_gpus()
        assert (check.ok, "NVIDIA A100, 470.57" in check.detail, fix in check.fix) == (False, True, True)


def test_doctor_reports_a_missing_device(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = make_sweep(execution={"device": "cuda"})
    assert "auto or cpu" in examine_device(config).fix
    assert examine_device(make_sweep(execution={"device": "cuda", "executor": "ray", "ray_address": "auto"})).ok


def test_doctor_connects_to_the_ray_address_of_a_sweep(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a token")

    def examine_address(address: str) -> HealthCheck:
        config = make_sweep(execution={"executor": "ray", "ray_address": address})
        return next(check for check in examine_cluster(config, None) if check.what == "cluster")

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        assert examine_address(address).ok
    assert "execution.ray_address" in examine_address(address).fix
    assert examine_address("auto").ok


def run_without(modules: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that cannot import these modules, which are separated by commas."""
    blocked_modules = dict.fromkeys(modules.split(","))
    program = f"import sys; sys.modules.update({blocked_modules}); from robust201.cli.app import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def test_doctor_rejects_a_sweep_that_needs_a_missing_package(write_sweep: WriteSweep) -> None:
    result = run_without("pyarrow", "doctor", str(write_sweep(shards="s3://bucket/paper")))
    assert (result.returncode, result.stdout) == (2, "")
    assert "robust201 doctor (without a sweep)" in result.stderr


@pytest.mark.parametrize(
    "package", ["pyarrow", *(pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "ray"))]
)
def test_doctor_reports_a_missing_package_and_all_other_checks(write_sweep: WriteSweep, package: str) -> None:
    result = run_without(package, "doctor", str(write_sweep()))
    assert "Traceback" not in result.stderr
    statuses = {
        line.split(":")[0].split()[-1]: line.split()[0] for line in result.stdout.splitlines() if line[0] != " "
    }
    affected_checks = {"torch": {"kernels", "gpus", "device", "disk", "digits"}, "pyarrow": {"disk"}, "ray": set()}[
        package
    ]
    assert statuses.keys() >= {"python", "torch", "gpus", "token", "device", "results", "disk", "clock", "digits"}
    assert {check_name for check_name, status in statuses.items() if status == "fix"} <= affected_checks | {
        "checkpoints",
        package,
    }
    assert result.returncode == (2 if "fix" in statuses.values() else 0)
    assert not affected_checks or "fix" in statuses.values()


def test_doctor_reports_a_broken_package(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError("libcudnn.so.9: cannot open shared object file")

    monkeypatch.setattr("robust201.monitoring.doctor.examine_gpus", fail)
    checks = {check.what: check for check in examine(make_sweep())}
    assert (checks["gpus"].ok, "libcudnn" in checks["gpus"].detail) == (False, True)
    assert checks["digits"].ok


def test_doctor_reports_images_without_read_permission(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_arguments: object) -> None:
        raise PermissionError(13, "Permission denied", "test_batch")

    monkeypatch.setattr("robust201.planning.inputs.Inputs.images", raise_error)
    failures = [check for check in examine(make_sweep()) if not check.ok]
    assert [check.what for check in failures] == ["digits"]
    assert ("test_batch" in failures[0].detail, "permissions" in failures[0].fix) == (True, True)


def test_doctor_prints_each_check_immediately(
    robust201: RunCommand, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def examine_two(*_arguments: object, **_options: object) -> Iterator[HealthCheck]:
        yield HealthCheck("first", ok=True, detail="there")
        output.append(capsys.readouterr().out)
        yield HealthCheck("second", ok=False, detail="gone", fix="Bring it back.")

    output: list[str] = []
    monkeypatch.setattr("robust201.monitoring.doctor.examine", examine_two)
    result = robust201("doctor")
    assert (result.code, output) == (2, ["ok   first: there\n"])
    assert result.out == "fix  second: gone\n     Bring it back.\n"


def test_doctor_reports_the_head_version_without_a_local_ray(
    head: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", raise_error)
    checks = {check.what: check for check in examine_cluster(None, head.address)}
    assert checks["cluster"].fix.startswith(f"Install ray=={head.version} here")
    assert checks["cluster token"].ok


def test_doctor_reports_an_old_package(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    original_version = importlib.metadata.version
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.3" if name == "ray" else original_version(name))
    failures = [check for check in examine(None) if not check.ok]
    assert [(check.what, check.detail) for check in failures] == [("ray", "2.9.3, older than 2.56")]


def test_doctor_checks_that_the_shards_url_is_writable(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import fsspec

    from robust201.shards import object_store
    from robust201.shards.object_store import ObjectBackend

    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(object_store, "url_to_fs", lambda url, **_named: (memory, url.removeprefix("s3:/")))

    def examine_shards(url: str) -> HealthCheck:
        return next(check for check in examine(make_sweep(shards=url)) if check.what == "shards")

    assert examine_shards("s3://bucket/paper").ok
    assert memory.find("/bucket") == []
    assert examine_shards(f"file://{tmp_path}/far").ok

    def raise_error(self: ObjectBackend, shard: str, content: bytes) -> None:
        raise StorageError("Writing failed for the bucket: expected to write there, got Access Denied.")

    monkeypatch.setattr(ObjectBackend, "publish", raise_error)
    check = examine_shards("s3://bucket/paper")
    assert (check.ok, "Access Denied" in check.fix) == (False, True)


@pytest.mark.parametrize(
    "modules", [pytest.param("numpy", marks=pytest.mark.slow), "numpy,orjson,pandas,scipy,PIL,yaml,sklearn,pyarrow"]
)
def test_doctor_reports_missing_packages_that_other_checks_need(modules: str) -> None:
    result = run_without(modules, "doctor", "--json")
    assert (result.returncode, result.stderr) == (2, "")
    missing_packages = {check["what"] for check in json.loads(result.stdout) if check["detail"].endswith("is missing")}
    distribution_names = {"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn"}
    assert missing_packages == {distribution_names.get(name, name) for name in modules.split(",")}


def test_command_without_its_packages_gives_a_one_line_error() -> None:
    result = run_without("numpy", "plan", "jobs/demo.yaml")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "robust201 doctor shows what is missing" in result.stderr


@pytest.mark.parametrize(
    ("content", "expected_text"),
    [
        (None, "a folder instead of a regular file"),
        (b"", "an empty file"),
        (b"\xff\xfe", "codec"),
        (b"one\ntwo", "one line"),
        (b"\x00", "line"),
    ],
)
@pytest.mark.parametrize("has_path_variable", [False, True])
def test_doctor_reports_a_file_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, expected_text: str, has_path_variable: bool
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".ray/auth_token"
    path.parent.mkdir()
    if has_path_variable:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    assert [check.ok for check in examine_cluster(None, None)] == [not has_path_variable]
    path.mkdir() if content is None else path.write_bytes(content)
    (check,) = examine_cluster(None, None)
    assert not check.ok
    assert check.detail == "not readable"
    assert expected_text in check.fix
    assert str(path) in check.fix


def test_doctor_reports_a_malformed_token_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "se\ncret")
    (check,) = examine_cluster(None, None)
    assert not check.ok
    assert "RAY_AUTH_TOKEN" in check.fix
    assert "cret" not in check.fix.replace("secret", "")
