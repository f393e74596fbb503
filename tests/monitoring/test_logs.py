"""`robust201 status --log` prints the lines about one unit from all workers, sorted by time."""

import json
from pathlib import Path

import pytest

from robust201.core.errors import InputError
from robust201.monitoring.logs import find_units, read_logs
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
        ("21/cifar10/pdg", "'pgd'"),
        ("22/cifar10/pgd", "21"),
        (UNIT.id[:6] + "zz", UNIT.id),
    ],
)
def test_find_units_suggests_the_closest_unit(logs: Path, name: str, hint: str) -> None:
    with pytest.raises(InputError) as error:
        find_units(name, UNITS, logs)
    assert hint in str(error.value)


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
    robust201("status", sweep, "--log", "21/digits/claen").error_line(2)
    for path in (tmp_path / "results/logs").iterdir():
        path.unlink()
    assert "has a line about" in robust201("status", sweep, "--log", parsed_lines[0]["unit"][:9]).err
