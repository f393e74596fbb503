"""Result files of exports: exact numbers, several processes, failed and killed exports."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from robust201.core.errors import StorageError
from robust201.dataset.number_text import array_text, array_texts, round_array
from tests.conftest import REPOSITORY, read_tree
from tests.support.fabricated import BrokenStore, SlowStore, export, make_plan

FLOAT32_NUMBERS = st.floats(width=32, allow_infinity=False)


@given(st.one_of(FLOAT32_NUMBERS, st.lists(FLOAT32_NUMBERS)))
def test_array_text_writes_float32_as_doubles(numbers):
    float32_values = np.array(numbers, dtype=np.float32)
    expected_values = np.where(np.isnan(float32_values), None, float32_values.astype(np.float64)).tolist()
    assert array_text(float32_values).decode() == json.dumps(expected_values)


FRACTIONS_AND_ARBITRARY_FLOATS = st.one_of(
    st.floats(0, 1),
    st.floats(0, 1e-3),
    st.floats(allow_infinity=False),
    st.sampled_from([1e-4, 9.999e-5, 1e-5, 2e-5, 9.9e-6, 1e-6, 1.00001, 0.0, -0.0, 1e-60, 1e16]),
)


@given(st.lists(FRACTIONS_AND_ARBITRARY_FLOATS))
@example([0.00001, 1e-9, 5e-324, 0.000012])
def test_array_text_equals_json_dumps(numbers):
    expected = json.dumps([None if number != number else number for number in numbers])
    assert array_text(np.array(numbers, dtype=np.float64)).decode() == expected


@given(
    st.tuples(st.integers(1, 4), st.lists(st.integers(0, 3), max_size=2)).flatmap(
        lambda sizes: npst.arrays(np.float64, (sizes[0], *sizes[1]), elements=st.floats(allow_infinity=False))
    )
)
def test_array_texts_equals_array_text_of_each_array(stack):
    assert array_texts(stack) == [array_text(array) for array in stack]


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=2), min_size=1))
def test_array_text_writes_integers(rows):
    assert array_text(np.array(rows, dtype=np.int32)).decode() == json.dumps(rows)


def test_array_text_rejects_infinity():
    with pytest.raises(ValueError, match="infinity"):
        array_text(np.array([1.0, np.inf]))


NUMBERS_TO_ROUND = st.one_of(
    st.floats(0, 1),
    st.integers(0, 10**6).map(lambda i: i / 1e6 + 0.0005),
    st.integers(0, 2**14).map(lambda i: i / 2**14),  # some of these are exact halves
)


@given(st.lists(NUMBERS_TO_ROUND), st.integers(1, 17))
def test_round_array_equals_python_round(numbers, decimals):
    expected = [round(number, decimals) for number in numbers]
    assert round_array(np.array(numbers, dtype=np.float64), decimals).tolist() == expected


@pytest.mark.parametrize("processes", [1, 2])
def test_failed_export_keeps_earlier_export(tmp_path, processes):
    plan = make_plan((0, 2, 10))
    export(tmp_path / "out", plan, round_to=3)
    tree_before = read_tree(tmp_path / "out")
    with pytest.raises(StorageError, match="damaged"):
        export(tmp_path / "out", plan, BrokenStore(), processes=processes)
    assert read_tree(tmp_path / "out") == tree_before


def test_interrupt_during_submission_takes_effect_after_the_last_key(tmp_path, monkeypatch):
    submitted_keys, submit = [], ProcessPoolExecutor.submit

    def interrupt_and_submit(pool, write, key):
        submitted_keys.append(key.key_format.key)
        signal.raise_signal(signal.SIGINT)
        return submit(pool, write, key)

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupt_and_submit)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path, make_plan((0, 2), ["clean", "fgsm", "pgd"]), SlowStore(), processes=2)
    assert sorted(submitted_keys) == ["clean", "fgsm", "pgd"]
    assert read_tree(tmp_path) == {}


SCRIPT = """
import sys
from pathlib import Path
from tests.support.fabricated import SlowStore, export, make_plan

if __name__ == "__main__":
    export(Path(sys.argv[1]), make_plan((0, 2, 10)), SlowStore(), processes=2)
"""


def test_killed_export_leaves_no_process_and_keeps_earlier_export(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder, plan = tmp_path / "out", make_plan((0, 2, 10))
    export(folder, plan, round_to=3)
    tree_before = read_tree(folder)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY / "pipeline", REPOSITORY))),
    }  # Python adds a script's folder to sys.path, not the working directory
    export_process = subprocess.Popen([sys.executable, str(script), str(folder)], env=environment)
    try:
        staging = tmp_path / ".out.new"
        while not (staging / "cifar10/fgsm_confidence.json").exists() or not list(staging.glob("cifar10/.pgd*.tmp")):
            assert export_process.poll() is None
            time.sleep(0.05)
        processes = psutil.Process(export_process.pid).children(recursive=True)
    finally:
        export_process.send_signal(signal.SIGKILL)
        export_process.wait()
    _, alive_processes = psutil.wait_procs(processes, timeout=200)  # returns immediately, unless the machine is busy
    assert alive_processes == []
    assert read_tree(folder) == tree_before
    export(folder, plan)
    export(tmp_path / "fresh", plan)
    assert read_tree(folder) == read_tree(tmp_path / "fresh")
