"""The executor that runs Ray in a child process, with a simulated child: recovery from its death, and cleanup."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from robust201.core.errors import RayLostError
from robust201.core.records import Bundle
from robust201.runtime.executors import ray_process
from robust201.runtime.executors.base import BundleDone, Event
from robust201.runtime.executors.ray_environment import driver_environment
from robust201.runtime.executors.ray_folder import find_unused_folders, make_ray_folder, remove_unused_folders
from robust201.runtime.executors.ray_process import RayProcess
from robust201.sweep.config import ExecutionSection
from tests.conftest import REPOSITORY, MakeSweep
from tests.faults.processes import wait_until

BUNDLES = [Bundle(architecture, "digits", ()) for architecture in range(3)]
StartExecutor = Callable[..., RayProcess]


@pytest.fixture
def start(make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartExecutor:
    """Return a function that starts an executor whose n-th child process follows the n-th order."""

    def start(*orders: str, **execution: object) -> RayProcess:
        (tmp_path / "orders").write_text("\n".join(orders))
        config = make_sweep(execution={"executor": "ray", "workers": 1} | execution)
        config.results.mkdir()
        # `print` stands in for the function that starts workers, which the simulated child never calls.
        return RayProcess(config, print)

    monkeypatch.setattr(ray_process, "CHILD_MODULE", "tests.runtime.simulated_ray_child")
    monkeypatch.setenv("SIMULATED_CHILD_FOLDER", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(REPOSITORY / "pipeline"), str(REPOSITORY))))
    return start


def read_starts(tmp_path: Path) -> list[list[str]]:
    """Return the process ID and the folder of each child."""
    return [line.split() for line in (tmp_path / "starts").read_text().splitlines()]


def poll_until(executor: RayProcess, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        events += executor.poll(0.1)
    return events


def check_cleanup(tmp_path: Path) -> None:
    """Check that the children, the processes that they started, and their folders are gone."""
    for pid, folder in read_starts(tmp_path):
        wait_until(lambda pid=int(pid): not psutil.pid_exists(pid), 60, "the child has ended")
        wait_until(lambda folder=folder: not Path(folder).exists(), 60, "its folder has been removed")
    sleeper = int((tmp_path / "sleeper").read_text())

    def is_gone() -> bool:
        return not psutil.pid_exists(sleeper) or psutil.Process(sleeper).status() == psutil.STATUS_ZOMBIE

    wait_until(is_gone, 60, "the process started by the child has ended")


@pytest.mark.parametrize("order", ["die", "raise"])
def test_ray_dying_twice_at_start_gives_one_line_error(start: StartExecutor, tmp_path: Path, order: str) -> None:
    with pytest.raises(RayLostError) as error:
        start(order)
    error_line = str(error.value)
    assert error.value.exit_code == 3
    assert "\n" not in error_line
    assert error_line.endswith("rerun the same command to resume, or compute in this process with --executor inline.")
    assert order == "die" or "Exception: The current node timed out during startup" in error_line
    assert len(read_starts(tmp_path)) == 2
    check_cleanup(tmp_path)


@pytest.mark.parametrize("order", ["die", pytest.param("die at a poll", marks=pytest.mark.slow)])
def test_ray_dying_before_first_result_is_restarted(start: StartExecutor, tmp_path: Path, order: str) -> None:
    with closing(start(order, "compute")) as executor:
        for bundle in BUNDLES:
            executor.submit(bundle)
        assert executor.free_slots() == 1
        executor.poll(0.1)
        assert executor.free_slots() == 1  # also after the restart, because the new child received the bundles again
        assert poll_until(executor, 3) == [BundleDone(bundle) for bundle in BUNDLES]
    log_text = "".join(path.read_text() for path in tmp_path.glob("results/logs/*driver.jsonl"))
    assert "ray_lost" in log_text
    assert len(read_starts(tmp_path)) == 2
    check_cleanup(tmp_path)


def test_ray_dying_after_first_result_is_not_restarted(start: StartExecutor, tmp_path: Path) -> None:
    with closing(start("die after a receipt", "compute")) as executor:
        executor.submit(BUNDLES[0])
        poll_until(executor, 1)
        with pytest.raises(RayLostError, match="Finished work is kept"):
            poll_until(executor, 1)
    assert len(read_starts(tmp_path)) == 1


_DRIVER = """
import sys
from pathlib import Path
from robust201.sweep.loading import load_config
from robust201.runtime.executors import ray_process
ray_process.CHILD_MODULE = "tests.runtime.simulated_ray_child"
executor = ray_process.RayProcess(load_config(Path(sys.argv[1])), print)
Path(sys.argv[2]).touch()
while True:
    executor.poll(1)
"""


@pytest.mark.parametrize("order", ["compute", "be slow"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.slow_combinations
def test_ray_session_ends_with_its_driver(
    start: StartExecutor, write_sweep: Callable[..., Path], tmp_path: Path, signum: int, order: str
) -> None:
    """In a slow child, a poll returns after the driver's death but before the child has killed its Ray session."""
    del start  # only the environment variables that the fixture sets are needed
    (tmp_path / "orders").write_text(order)
    sweep = write_sweep(execution={"executor": "ray", "workers": 1})
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER, str(sweep), str(tmp_path / "up")])
    try:
        wait_until(lambda: (tmp_path / "up").exists() or driver.poll() is not None, 120, "the executor is up")
    finally:
        driver.send_signal(signum)
        driver.wait()
    assert driver.returncode == -signum
    check_cleanup(tmp_path)


def test_remove_unused_folders_removes_only_folders_of_killed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = Path(tempfile.mkdtemp(dir="/tmp"))  # Ray's sockets need a short path
    monkeypatch.setenv("RAY_TMPDIR", str(parent))
    try:
        (in_use, lock), (unused, unused_lock), (public, public_lock) = (make_ray_folder() for _ in range(3))
        for descriptor in (unused_lock, public_lock):
            os.close(descriptor)
        (unused / "driver.log").write_text("killed")
        public.chmod(0o755)
        (parent / "r201-foreign").mkdir(mode=0o700)
        (parent / "r201-link").symlink_to(unused)
        assert find_unused_folders() == [unused]
        remove_unused_folders()
        assert {path.name for path in parent.iterdir()} == {in_use.name, public.name, "r201-foreign", "r201-link"}
        os.close(lock)
        assert find_unused_folders() == [in_use]
    finally:
        shutil.rmtree(parent)


def test_local_ray_has_token_by_default() -> None:
    execution = ExecutionSection()
    environment, other_environment = (driver_environment({"A": "b"}, execution) for _ in range(2))
    assert (environment["A"], environment["RAY_AUTH_MODE"], len(environment["RAY_AUTH_TOKEN"])) == ("b", "token", 64)
    assert environment["RAY_AUTH_TOKEN"] != other_environment["RAY_AUTH_TOKEN"]
    assert environment["RAY_prestart_worker_first_driver"] == "0"
    user_token = {"RAY_AUTH_TOKEN": "token" * 8}
    assert driver_environment(user_token, execution).items() >= user_token.items()
    assert "RAY_AUTH_TOKEN" not in driver_environment({"RAY_AUTH_TOKEN_PATH": "/a"}, execution)
    assert driver_environment({"RAY_AUTH_MODE": "disabled"}, execution)["RAY_AUTH_MODE"] == "disabled"
    assert driver_environment({}, ExecutionSection(ray_address="auto")).keys() == {"RAY_USAGE_STATS_ENABLED"}


@pytest.mark.ray
def test_local_ray_listens_on_loopback_and_leaves_nothing_behind(
    make_sweep: MakeSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    original_environment = dict(os.environ)
    config = make_sweep(execution={"executor": "ray", "workers": 1})
    with closing(RayProcess(config, print)) as executor:
        assert executor._folder is not None
        assert executor._process is not None
        folder, leader = executor._folder, executor._process.pid
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        processes = ray_process._session_processes(leader)
        assert len(processes) >= 5  # child, head, raylet and two agents
        # At most one worker process exists, because Ray started none in advance.
        assert sum(process.name().startswith(("ray::IDLE", "ray::_Work")) for process in processes) <= 1
        programs_by_address: dict[str, set[str]] = {}
        for process in processes:
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    programs_by_address.setdefault(connection.laddr.ip.removeprefix("::ffff:"), set()).add(
                        process.name()
                    )
        assert programs_by_address.keys() == {"127.0.0.1"}, programs_by_address
        sockets = [c.laddr for process in processes for c in process.net_connections("unix") if c.laddr]
        assert sockets
        assert all(path.startswith(f"{folder}/") for path in sockets)
        # Processes named ray::… have overwritten their environment with their title.
        tokens = {p.environ().get("RAY_AUTH_TOKEN") for p in processes if not p.name().startswith("ray::")}
        assert None not in tokens
        assert len(tokens) == 1
    assert ray_process._session_processes(leader) == []
    assert not folder.exists()
    assert dict(os.environ) == original_environment
    assert list(home.rglob("*")) == []
