"""What is said of a file whose content is not what it should be."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from robust201.core.errors import describe_content, one_line
from tests.conftest import RunCommand


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ((b"x" * 5000 + b"\xff").decode, "it is no text"),
        (lambda: {}["format"], "it lacks 'format'"),
        (lambda: json.loads("{"), "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_what_is_wrong_is_said_in_few_words(read: Callable[[], object], said: str) -> None:
    with pytest.raises((ValueError, KeyError)) as found:
        read()
    assert describe_content(found.value) == said


def test_what_others_said_is_one_short_line() -> None:
    assert one_line("a\n  b.\n") == "a b"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line("x" * 1000)) == 300


def test_a_damaged_plan_is_not_shown(finished: Path, robust201: RunCommand) -> None:
    plan = finished / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b"format", b"form\xfft", 1))
    for verb in ("status", "plan", "verify"):
        refusal = robust201(verb, finished).refusal(2)
        assert "expected a plan, got other content (it is no text)" in refusal
        assert len(refusal) < 400


def test_a_dataset_is_no_results_folder(finished: Path, robust201: RunCommand, tmp_path: Path) -> None:
    assert robust201("export", finished, "--out", tmp_path / "dataset").code == 0
    for verb in ("status", "plan", "run"):
        refusal = robust201(verb, tmp_path / "dataset").refusal(2)
        assert "got an exported dataset. Give the folder of the sweep's results" in refusal


def test_a_folder_in_place_of_a_result_file_is_to_be_moved_away(finished: Path, robust201: RunCommand) -> None:
    shard = next(iter(sorted(finished.glob("shards/**/*.parquet"))))
    shard.unlink()
    shard.mkdir()
    for verb in ("status", "verify"):
        assert "Move it away: result files are files" in robust201(verb, finished).refusal(4)
