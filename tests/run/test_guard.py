"""The guard of a run, with small child processes instead of runs on Ray."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from robust201.run import guard as guard_module
from robust201.run.guard import guard, kill_session

ATTACH = "import os, signal, subprocess, sys, time; from robust201.run.guard import attach; a = attach(); "
START_PROCESS = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']); "


def run_child(code):
    return guard([sys.executable, "-c", ATTACH + code])


@pytest.fixture
def handlers():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    handlers_before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == handlers_before


@pytest.mark.parametrize("code", [0, 2, 3, 4, 130])
def test_guard_returns_the_exit_code_of_its_child(handlers, code, capfd):
    assert run_child(f"a.beat(); a.end(); sys.exit({code})") == code
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)", "os.abort()"])
def test_lost_child_gives_one_line_and_leaves_no_process(handlers, ending, capfd):
    pids_before = {process.pid for process in psutil.process_iter()}
    assert run_child(START_PROCESS + "a.beat(); " + ending) == 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "Ray" in line
    assert not [process for process in psutil.Process().children(recursive=True) if process.pid not in pids_before]


def test_child_without_heartbeats_is_killed(handlers, monkeypatch):
    monkeypatch.setattr(guard_module, "BEAT_LIMIT_SECONDS", 0.5)
    start = time.monotonic()
    assert run_child("a.beat(); time.sleep(300)") == 3
    assert time.monotonic() - start < 30
    assert run_child("a.beat(); a.end(); time.sleep(1.5)") == 0  # outside calls to Ray, it needs no heartbeats


def test_stderr_of_libraries_is_hidden_and_output_of_the_run_is_shown(capfd):
    assert run_child("os.write(2, b'noise'); sys.stderr.write('line'); print('out')") == 0
    assert capfd.readouterr() == ("out\n", "line")


def start_guard(code):
    program = f"import sys; from robust201.run.guard import guard; sys.exit(guard([sys.executable, '-c', {code!r}]))"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_signals_reach_the_child():
    code = ATTACH + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4)); print('ready', flush=True); time.sleep(300)"
    process = start_guard(code)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 4
    process.stdout.close()


def test_session_ends_if_the_guard_is_killed():
    code = ATTACH + START_PROCESS + "print(os.getpid(), a.folder, flush=True); time.sleep(300)"
    process = start_guard(code)
    leader, folder = process.stdout.readline().split()
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and psutil.pid_exists(int(leader)):
        time.sleep(0.05)
    assert not psutil.pid_exists(int(leader))
    assert not os.path.exists(folder)  # noqa: PTH110
    kill_session(int(leader))  # no error, although the session has ended
    process.stdout.close()
