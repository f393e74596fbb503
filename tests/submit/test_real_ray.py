"""`robust201 submit ray` with a real Ray head on this machine, which uses token authentication."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ray.job_submission import JobStatus

from robust201.submit.ray_jobs import connect
from tests.conftest import RunCommand, read_tree
from tests.support.tiny_trainings import hash_weight_files, write_training_yaml

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("_without_ray_token")]

TOKEN = "a-token-for-tests-only"
START_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Head:
    address: str
    folder: Path


def find_free_ports(n_ports: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n_ports)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def request_status(address: str, token: str | None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address + "/api/jobs/", headers=headers), timeout=10
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def find_ray_processes(folder: Path) -> list[psutil.Process]:
    """Return processes whose command lines contain the head's folder: Ray's, except workers that renamed themselves."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(folder) in argument for argument in process.cmdline()):
                processes.append(process)
    return processes


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """Start a Ray head on loopback with token authentication, and stop all its processes afterwards."""
    # Ray's sockets are created in this folder, and a socket's path may have at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="r201-"))
    (folder / "token").write_text(TOKEN)
    port, dashboard, agent = find_free_ports(3)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    options = {
        "node-ip-address": "127.0.0.1",
        "port": port,
        "dashboard-host": "127.0.0.1",
        "dashboard-port": dashboard,
        "dashboard-agent-listen-port": agent,
        "temp-dir": folder / "ray",
        "num-cpus": 2,
        "object-store-memory": 100_000_000,
    }
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        starter = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    started_head = Head(f"http://127.0.0.1:{dashboard}", folder)
    try:
        wait_until_ready(started_head, starter)
        yield started_head
    finally:
        # Processes are listed before any is killed: workers rename themselves, and lose their parent if the raylet is
        # killed.
        processes = [*psutil.Process(starter.pid).children(recursive=True), *find_ray_processes(folder)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        starter.kill()
        starter.wait(timeout=10)
        _, alive = psutil.wait_procs(processes, timeout=10)
        assert alive == []
        assert find_ray_processes(folder) == []
        shutil.rmtree(folder)


def wait_until_ready(head: Head, starter: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while starter.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            if request_status(head.address, TOKEN) == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"Ray did not start: {(head.folder / 'log').read_text()}")


def run_job(head: Head, robust201: RunCommand, path: Path) -> str:
    """Submit a sweep or training YAML, wait for the end of its job, and return the job's log."""
    result = robust201("submit", "ray", path, "--address", head.address)
    assert result.code == 0, result.err
    client, job_id = connect(head.address), result.out.strip()
    while not client.get_job_status(job_id).is_terminal():
        time.sleep(0.5)
    log = client.get_job_logs(job_id)
    assert client.get_job_status(job_id) == JobStatus.SUCCEEDED, log
    return log


def test_head_accepts_only_its_token(head, robust201, write_sweep, monkeypatch):
    assert [request_status(head.address, token) for token in (None, "wrong", TOKEN)] == [401, 403, 200]
    command = ("submit", "ray", write_sweep(), "--address", head.address)
    assert head.address in robust201(*command).error_line(exit_code=2)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert head.address in robust201(*command).error_line(exit_code=2)


def test_submitted_sweep_completes_and_resubmission_computes_nothing(
    head, robust201, write_sweep, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(head.folder / "token"))
    monkeypatch.setenv("RAY_ADDRESS", "http://192.0.2.1:8265")  # this would redirect Ray's client
    monkeypatch.setenv("ROBUST201_TEST_RESULTS", str(tmp_path))
    sweep = write_sweep(results="${ROBUST201_TEST_RESULTS}/results", execution={"workers": 1})
    assert "10 missing" in run_job(head, robust201, sweep)
    assert robust201("export", tmp_path / "results", "--out", tmp_path / "by-ray").code == 0
    assert "10 done, 0 missing" in run_job(head, robust201, sweep)
    assert robust201("run", sweep, "--executor", "inline", "--out", tmp_path / "here").code == 0
    assert robust201("export", tmp_path / "here", "--out", tmp_path / "by-inline").code == 0
    assert read_tree(tmp_path / "by-ray") == read_tree(tmp_path / "by-inline")


def test_submitted_training_gives_the_bytes_of_a_local_run(head, robust201, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(head.folder / "token"))
    training_yaml = write_training_yaml(tmp_path, execution={"workers": 1})
    assert "2 of 2 done" in run_job(head, robust201, training_yaml)
    assert robust201("run", training_yaml, "--out", tmp_path / "here").code == 0
    assert hash_weight_files(tmp_path / "store") == hash_weight_files(tmp_path / "here")
