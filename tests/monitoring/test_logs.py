"""`robust201 logs`: one unit's lines from all workers, in the order of time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from robust201.core.errors import InputError
from robust201.monitoring.logs import find_units, follow_logs, log_files, read_logs
from robust201.runtime.work_log import WorkLog
from robust201.spaces.nasbench201 import cells as nasbench201
from tests.conftest import RunCommand, WriteSweep
from tests.support.fabricated import make_unit

UNITS = [make_unit(index, "cifar10", key, [1.0]) for index in (0, 21) for key in ("clean", "pgd")]
WANTED, OTHER = UNITS[3], UNITS[0]


class Hand:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    clock = Hand()
    first, second = WorkLog(tmp_path, clock=clock), WorkLog(tmp_path, clock=clock)
    for clock.now, log, unit, event in (
        (1.0, first, WANTED, "part_started"),
        (2.0, first, OTHER, "part_started"),
        (4.0, second, WANTED, "shard_written"),
        (3.0, first, WANTED, "worker_died"),
    ):
        log.write(event, unit=unit)
    with first.path.open("a") as stream:
        stream.write(f'{{"unit": "{WANTED.id}", "cut o')
    return tmp_path


def test_lines_of_all_workers_come_in_the_order_of_time(logs: Path) -> None:
    assert [line["event"] for line in read_logs(logs, [WANTED.id])] == ["part_started", "worker_died", "shard_written"]


TWIN = next(a.index for a in map(nasbench201.architecture, range(15_625)) if a.isomorph == 21 and a.index != 21)


@pytest.mark.parametrize(
    "name",
    [WANTED.id, WANTED.id[:10], "21/cifar10/pgd", "#21 cifar10 pgd", " 21/cifar10/pgd", f"{TWIN}/cifar10/pgd"],
)
def test_a_unit_has_several_names(logs: Path, name: str) -> None:
    assert find_units(name, UNITS, logs) == {WANTED.id: "21/cifar10/pgd"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("21/cifar10/pdg", "Did you mean 'pgd'?"),
        ("21/cifra10/pgd", "Did you mean 'cifar10'?"),
        ("22/cifar10/pgd", "The closest one is 21."),
        (WANTED.id[:6] + "zz", f"Did you mean '{WANTED.id}'?"),
        (WANTED.id[:6] + "0" * 26, f"Did you mean '{WANTED.id}'?"),
        ("nonsense", "ARCHITECTURE/DATASET/KEY"),
    ],
)
def test_an_unknown_unit_is_refused_with_the_closest(logs: Path, name: str, hint: str) -> None:
    with pytest.raises(InputError) as refused:
        find_units(name, UNITS, logs)
    assert hint in str(refused.value)


def test_architectures_of_other_spaces_are_named_by_their_ids(tmp_path: Path) -> None:
    units = [make_unit(name, "cifar10", "pgd", [1.0]) for name in ("resnet18", "vgg11.bn")]
    assert find_units("resnet18/cifar10/pgd", units, tmp_path) == {units[0].id: "resnet18/cifar10/pgd"}
    assert find_units("vgg11.bn cifar10 pgd", units, tmp_path) == {units[1].id: "vgg11.bn/cifar10/pgd"}
    with pytest.raises(InputError, match=r"got architecture resnet19, which it lacks\. Did you mean 'resnet18'"):
        find_units("resnet19/cifar10/pgd", units, tmp_path)


SEVERAL = [make_unit(21, "cifar10", "pgd", [1.0], weights=f"random-s{seed}") for seed in (0, 1)]


def test_without_weights_all_of_a_network_are_meant(tmp_path: Path) -> None:
    names = {unit.id: f"21/cifar10/pgd/{unit.weights}" for unit in SEVERAL}
    assert find_units("21/cifar10/pgd", SEVERAL, tmp_path) == names
    assert find_units("#21 cifar10 pgd random-s1", SEVERAL, tmp_path) == {SEVERAL[1].id: "21/cifar10/pgd/random-s1"}
    log = WorkLog(tmp_path)
    for unit in (*SEVERAL, WANTED):
        log.write("part_started", unit=unit)
    assert [line["label"] for line in read_logs(tmp_path, names)] == list(names.values())
    with pytest.raises(InputError, match=r"pgd/random-s7: .*got weights 'random-s7', .* Did you mean 'random-s"):
        find_units("21/cifar10/pgd/random-s7", SEVERAL, tmp_path)


def test_each_line_of_several_weights_names_its_own(robust201: RunCommand, write_sweep: WriteSweep) -> None:
    weights = {"random": {"seeds": [0, 1]}}
    sweep = write_sweep(keys={"clean": {}}, architectures=[21], checkpoints=None, weights=weights)
    assert robust201("run", sweep).code == 0
    shown = robust201("logs", "21/digits/clean", sweep).out.splitlines()
    assert [line.split("  ")[3] for line in shown].count("21/digits/clean/random-s0") == 2
    assert [line.split("  ")[3] for line in shown].count("21/digits/clean/random-s1") == 2
    assert len(robust201("logs", "21/digits/clean/random-s1", sweep).out.splitlines()) == 2


def test_an_ambiguous_beginning_is_refused_with_the_candidates(logs: Path) -> None:
    alike = [replace(unit, id=f"ab{number}".ljust(32, "0")) for number, unit in enumerate(UNITS)]
    with pytest.raises(InputError, match=r"that of 4: ab00+ \(0/cifar10/clean\), ab10+ \(.*Add some digits"):
        find_units("ab", alike, logs)


def test_units_of_an_earlier_plan_are_found_in_the_logs(logs: Path) -> None:
    assert find_units(WANTED.id[:12], UNITS[:1], logs) == {WANTED.id: "of another plan"}


def test_following_gives_each_line_once_also_over_a_rotation(tmp_path: Path) -> None:
    log = WorkLog(tmp_path, max_bytes=1_000)
    n_looks = 0

    def sleep(_seconds: float) -> None:
        nonlocal n_looks
        n_looks += 1
        log.write(f"event_{n_looks}", unit=WANTED)

    log.write("event_0", unit=WANTED)
    lines = follow_logs(tmp_path, [WANTED.id], sleep=sleep)
    assert [next(lines)["event"] for _ in range(30)] == [f"event_{number}" for number in range(30)]


@pytest.fixture
def vanished(logs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Logs of which one is listed and gone when it is opened, as an old one that a worker has just removed."""
    listed = log_files(logs)
    monkeypatch.setattr("robust201.monitoring.logs.log_files", lambda _results: [logs / "logs/gone.jsonl", *listed])
    return logs


def test_a_file_that_goes_while_it_is_read_is_left_out(vanished: Path) -> None:
    assert len(read_logs(vanished, [WANTED.id])) == 3
    assert find_units(WANTED.id[:12], UNITS[:1], vanished) == {WANTED.id: "of another plan"}
    lines = follow_logs(vanished, [WANTED.id], sleep=lambda _seconds: None)
    assert [next(lines)["event"] for _ in range(3)] == ["part_started", "worker_died", "shard_written"]


def test_the_verb_shows_what_happened(robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path) -> None:
    sweep = write_sweep(keys={"clean": {}}, architectures=[21])
    robust201("logs", "21/digits/clean", sweep).refusal(2)
    assert robust201("run", sweep).code == 0
    for place in (sweep, tmp_path / "results"):
        ended = robust201("logs", "21/digits/clean", place)
        assert (ended.code, ended.err) == (0, "")
        assert [line.split("  ")[2] for line in ended.out.splitlines()] == ["part_started", "shard_written"]
    lines = [json.loads(line) for line in robust201("logs", "21/digits/clean", sweep, "--json").out.splitlines()]
    assert {line["label"] for line in lines} == {"21/digits/clean"}
    assert "Did you mean 'clean'?" in robust201("logs", "21/digits/claen", sweep).refusal(2)
    for path in (tmp_path / "results/logs").iterdir():
        path.unlink()
    assert "No line about" in robust201("logs", lines[0]["unit"][:9], sweep).err
