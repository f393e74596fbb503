"""`robust201 status --log` prints the lines about one unit from all workers, sorted by time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from robust201.core.errors import InputError
from robust201.monitoring.logs import find_units, follow_logs, list_log_files, read_logs
from robust201.runtime.work_log import WorkLog
from robust201.spaces.nasbench201 import cells as nasbench201
from tests.conftest import RunCommand, WriteSweep
from tests.support.fabricated import make_unit

UNITS = [make_unit(index, "cifar10", key, [1.0]) for index in (0, 21) for key in ("clean", "pgd")]
UNIT, OTHER_UNIT = UNITS[3], UNITS[0]


class ManualClock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Write the logs of two workers, one of which ends with an incomplete line; return the results folder."""
    clock = ManualClock()
    first_log, second_log = WorkLog(tmp_path, clock=clock), WorkLog(tmp_path, clock=clock)
    for clock.now, log, unit, event in (
        (1.0, first_log, UNIT, "part_started"),
        (2.0, first_log, OTHER_UNIT, "part_started"),
        (4.0, second_log, UNIT, "shard_written"),
        (3.0, first_log, UNIT, "worker_died"),
    ):
        log.write(event, unit=unit)
    with first_log.path.open("a") as stream:
        stream.write(f'{{"unit": "{UNIT.id}", "cut o')
    return tmp_path


def test_read_logs_sorts_the_lines_of_all_workers_by_time(logs: Path) -> None:
    assert [line["event"] for line in read_logs(logs, [UNIT.id])] == ["part_started", "worker_died", "shard_written"]


ISOMORPHIC_INDEX = next(
    a.index for a in map(nasbench201.architecture, range(15_625)) if a.isomorph == 21 and a.index != 21
)


@pytest.mark.parametrize(
    "name",
    [UNIT.id, UNIT.id[:10], "21/cifar10/pgd", "#21 cifar10 pgd", " 21/cifar10/pgd", f"{ISOMORPHIC_INDEX}/cifar10/pgd"],
)
def test_find_units_accepts_ids_and_labels(logs: Path, name: str) -> None:
    assert find_units(name, UNITS, logs) == {UNIT.id: "21/cifar10/pgd"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("21/cifar10/pdg", "Did you mean 'pgd'?"),
        ("21/cifra10/pgd", "Did you mean 'cifar10'?"),
        ("22/cifar10/pgd", "The closest one is 21."),
        (UNIT.id[:6] + "zz", f"Did you mean '{UNIT.id}'?"),
        (UNIT.id[:6] + "0" * 26, f"Did you mean '{UNIT.id}'?"),
        ("nonsense", "ARCHITECTURE/DATASET/KEY"),
    ],
)
def test_find_units_suggests_the_closest_unit(logs: Path, name: str, hint: str) -> None:
    with pytest.raises(InputError) as error:
        find_units(name, UNITS, logs)
    assert hint in str(error.value)


def test_find_units_accepts_architectures_of_other_spaces(tmp_path: Path) -> None:
    units = [make_unit(name, "cifar10", "pgd", [1.0]) for name in ("resnet18", "vgg11.bn")]
    assert find_units("resnet18/cifar10/pgd", units, tmp_path) == {units[0].id: "resnet18/cifar10/pgd"}
    assert find_units("vgg11.bn cifar10 pgd", units, tmp_path) == {units[1].id: "vgg11.bn/cifar10/pgd"}
    with pytest.raises(InputError, match=r"does not contain architecture resnet19\. Did you mean 'resnet18'"):
        find_units("resnet19/cifar10/pgd", units, tmp_path)


UNITS_WITH_TWO_WEIGHTS = [make_unit(21, "cifar10", "pgd", [1.0], weights=f"random-s{seed}") for seed in (0, 1)]


def test_find_units_without_weights_selects_all_weights_of_a_network(tmp_path: Path) -> None:
    labels = {unit.id: f"21/cifar10/pgd/{unit.weights}" for unit in UNITS_WITH_TWO_WEIGHTS}
    assert find_units("21/cifar10/pgd", UNITS_WITH_TWO_WEIGHTS, tmp_path) == labels
    assert find_units("#21 cifar10 pgd random-s1", UNITS_WITH_TWO_WEIGHTS, tmp_path) == {
        UNITS_WITH_TWO_WEIGHTS[1].id: "21/cifar10/pgd/random-s1"
    }
    log = WorkLog(tmp_path)
    for unit in (*UNITS_WITH_TWO_WEIGHTS, UNIT):
        log.write("part_started", unit=unit)
    assert [line["label"] for line in read_logs(tmp_path, labels)] == list(labels.values())
    with pytest.raises(
        InputError, match=r"pgd/random-s7: .*does not contain weights 'random-s7'\. Did you mean 'random-s"
    ):
        find_units("21/cifar10/pgd/random-s7", UNITS_WITH_TWO_WEIGHTS, tmp_path)


def test_logs_include_the_weights_in_each_line(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    weights = {"random": {"seeds": [0, 1]}}
    sweep = write_sweep(keys={"clean": {}}, architectures=[21], checkpoints=None, weights=weights)
    assert robust201("run", sweep).code == 0
    lines = robust201("status", sweep, "--log", "21/digits/clean").out.splitlines()
    assert [line.split("  ")[3] for line in lines].count("21/digits/clean/random-s0") == 2
    assert [line.split("  ")[3] for line in lines].count("21/digits/clean/random-s1") == 2
    assert len(robust201("status", sweep, "--log", "21/digits/clean/random-s1").out.splitlines()) == 2


def test_find_units_lists_the_candidates_for_an_ambiguous_id(logs: Path) -> None:
    units = [replace(unit, id=f"ab{number}".ljust(32, "0")) for number, unit in enumerate(UNITS)]
    with pytest.raises(InputError, match=r"4 ids begin with it: ab00+ \(0/cifar10/clean\), ab10+ \(.*Add more digits"):
        find_units("ab", units, logs)


def test_find_units_accepts_units_of_an_earlier_plan(logs: Path) -> None:
    assert find_units(UNIT.id[:12], UNITS[:1], logs) == {UNIT.id: "of another plan"}


def test_follow_logs_yields_each_line_once_despite_a_rotation(tmp_path: Path) -> None:
    log = WorkLog(tmp_path, max_bytes=1_000)
    n_readings = 0

    def sleep(_seconds: float) -> None:
        nonlocal n_readings
        n_readings += 1
        log.write(f"event_{n_readings}", unit=UNIT)

    log.write("event_0", unit=UNIT)
    lines = follow_logs(tmp_path, [UNIT.id], sleep=sleep)
    assert [next(lines)["event"] for _ in range(30)] == [f"event_{number}" for number in range(30)]


@pytest.fixture
def logs_with_deleted_file(logs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Logs with one file that is deleted between listing and opening, as if a worker had removed an old file."""
    paths = list_log_files(logs)
    monkeypatch.setattr("robust201.monitoring.logs.list_log_files", lambda _results: [logs / "logs/gone.jsonl", *paths])
    return logs


def test_read_logs_skips_a_deleted_file(logs_with_deleted_file: Path) -> None:
    assert len(read_logs(logs_with_deleted_file, [UNIT.id])) == 3
    assert find_units(UNIT.id[:12], UNITS[:1], logs_with_deleted_file) == {UNIT.id: "of another plan"}
    lines = follow_logs(logs_with_deleted_file, [UNIT.id], sleep=lambda _seconds: None)
    assert [next(lines)["event"] for _ in range(3)] == ["part_started", "worker_died", "shard_written"]


def test_logs_command_shows_a_units_events(robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path) -> None:
    sweep = write_sweep(keys={"clean": {}}, architectures=[21])
    robust201("status", sweep, "--log", "21/digits/clean").error_line(2)
    assert robust201("run", sweep).code == 0
    for source in (sweep, tmp_path / "results"):
        result = robust201("status", source, "--log", "21/digits/clean")
        assert (result.code, result.err) == (0, "")
        assert [line.split("  ")[2] for line in result.out.splitlines()] == ["part_started", "shard_written"]
    parsed_lines = [
        json.loads(line) for line in robust201("status", sweep, "--log", "21/digits/clean", "--json").out.splitlines()
    ]
    assert {line["label"] for line in parsed_lines} == {"21/digits/clean"}
    assert "Did you mean 'clean'?" in robust201("status", sweep, "--log", "21/digits/claen").error_line(2)
    for path in (tmp_path / "results/logs").iterdir():
        path.unlink()
    assert "has a line about" in robust201("status", sweep, "--log", parsed_lines[0]["unit"][:9]).err
