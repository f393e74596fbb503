"""Heartbeats: files that exist while a process works, and that name its current part."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from robust201.core.records import Part, Unit
from robust201.runtime import heartbeat
from robust201.runtime.heartbeat import (
    HEARTBEATS_FOLDER,
    Heartbeat,
    LastBeat,
    TrainingSteps,
    find_active_shares,
    read_file_server_time,
    read_heartbeats,
    remove_silent_heartbeats,
)

UNIT = Unit("ab" * 16, 21, "digits", "fgsm", (1.0, 8.0), 10, "p" * 32, "c" * 64)


def read_beats(results: Path) -> tuple[LastBeat, ...]:
    return read_heartbeats(results, read_file_server_time(results))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_heartbeat_reports_current_part_until_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_MIN_BEAT_SECONDS", 0.01)
    with Heartbeat(tmp_path) as beats:
        wait_for(beats.path.exists)
        beats.begin(Part(UNIT, (8.0,), 2, 5))
        wait_for(lambda: read_beats(tmp_path)[0].unit is not None)
        (beat,) = read_beats(tmp_path)
        assert (beat.unit, beat.strengths, beat.images, beat.share) == (UNIT.id, (8.0,), (2, 5), None)
        assert 0 <= beat.seconds < 20
        assert not beat.is_silent
        previous_beat = beat
        beats.begin(Part(UNIT, (1.0,), 2, 5))
        wait_for(lambda: read_beats(tmp_path)[0].strengths != previous_beat.strengths)
    assert list((tmp_path / HEARTBEATS_FOLDER).iterdir()) == []


STEPS = TrainingSteps(step=470, first_step=100, n_steps=1955, per_epoch=391, seconds=37.0, loss=1.25, accuracy=0.5)


def test_heartbeat_reports_training_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_MIN_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.02)
    with Heartbeat(tmp_path) as beats:
        beats.begin(Part(UNIT, (1.0, 8.0), 0, 10))
        beats.note_steps(STEPS)
        wait_for(lambda: any(beat.training for beat in read_beats(tmp_path)))
        (beat,) = read_beats(tmp_path)
        assert (beat.training, beat.label) == (STEPS, "#21 digits fgsm")
        beats.begin(Part(UNIT, (8.0,), 0, 10))
        wait_for(lambda: read_beats(tmp_path)[0].training is None)


def test_heartbeat_of_killed_process_becomes_silent_and_is_removed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from robust201.runtime.heartbeat import Heartbeat\n"
        "with Heartbeat(Path(sys.argv[1]), share='1-of-2'):\n    time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        wait_for(lambda: find_active_shares(tmp_path) == ("1-of-2",))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    (silent_file,) = (tmp_path / HEARTBEATS_FOLDER).glob("*.json")
    remove_silent_heartbeats(tmp_path)
    assert silent_file.exists()  # the file is so recent that its process may be alive
    os.utime(silent_file, (time.time() - 60,) * 2)
    assert find_active_shares(tmp_path) == ()
    assert [beat.is_silent for beat in read_beats(tmp_path)] == [True]
    remove_silent_heartbeats(tmp_path)
    assert not silent_file.exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"unit": "ab"}', '{"unit": "ab", "share": null, "images": 3}'])
def test_read_heartbeats_ignores_invalid_files(tmp_path: Path, text: str) -> None:
    (tmp_path / HEARTBEATS_FOLDER).mkdir()
    (tmp_path / HEARTBEATS_FOLDER / "node-1-ab.json").write_text(text)
    assert read_beats(tmp_path) == ()
