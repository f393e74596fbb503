"""Data folders are detected however a path to them is written, and Python files in them need consent."""

import os
import re
import shlex
from pathlib import Path

import pytest

from robust201.core.errors import ConfigError
from robust201.planning.code_consent import check_consent, find_data_marker


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "downloads" / "dataset"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "SHA256SUMS").touch()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "code.py").touch()
    (folder / "sweep.yaml").touch()
    return folder


def test_find_data_marker_checks_all_parent_folders(dataset: Path, home: Path) -> None:
    for path in (dataset, dataset / "sweep.yaml", dataset / "a/b/sweep.yaml", dataset / "no/such/folder/sweep.yaml"):
        assert find_data_marker(path) == dataset / "SHA256SUMS"
    assert find_data_marker(home / "sweep.yaml") is None
    assert find_data_marker(dataset.parent / "sweep.yaml") is None


def test_find_data_marker_follows_links_and_parents(dataset: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dataset / "a/code.py").touch()
    (home / "code-link.py").symlink_to(dataset / "a/code.py")
    (home / "folder-link").symlink_to(dataset / "a/b")
    (home / "long-link").symlink_to(home / "code-link.py")
    (dataset / "out.py").symlink_to(home / "code.py")
    for path in (
        home / "code-link.py",
        home / "long-link",
        home / "folder-link" / "sweep.yaml",
        home / "folder-link" / ".." / "code.py",
        home / ".." / "downloads" / "dataset" / "a" / "code.py",
        dataset / "out.py",  # a link that came with the data
    ):
        assert find_data_marker(path), path
    for path in (dataset / ".." / ".." / "home" / "code.py", dataset / "a" / ".." / ".." / "code.py"):
        assert find_data_marker(path) is None, path
    monkeypatch.chdir(dataset / "a")
    assert find_data_marker(Path("code.py"))
    assert find_data_marker(Path("../../../home/code.py")) is None


def test_find_data_marker_ignores_broken_links(tmp_path: Path) -> None:
    (tmp_path / "ring").symlink_to("ring")
    (tmp_path / "gone").symlink_to("nowhere")
    assert find_data_marker(tmp_path / "ring") is None
    assert find_data_marker(tmp_path / "gone") is None
    (tmp_path / "SHA256SUMS").symlink_to("nowhere")
    assert find_data_marker(tmp_path / "ring" / "code.py") == tmp_path / "SHA256SUMS"


def test_check_consent_checks_yaml_and_each_file(dataset: Path, home: Path) -> None:
    user_file, dataset_file = home / "code.py", dataset / "a/code.py"
    check_consent([user_file], home / "sweep.yaml", [])
    check_consent([], dataset / "sweep.yaml", [])
    for files, source in (([user_file], dataset / "a/sweep.yaml"), ([user_file, dataset_file], home / "sweep.yaml")):
        with pytest.raises(ConfigError, match="requires your consent"):
            check_consent(files, source, [])
        check_consent(files, source, files)


def test_check_consent_accepts_only_named_files(dataset: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_file, second_file = dataset / "a/first.py", dataset / "a/second.py"
    with pytest.raises(ConfigError) as error:
        check_consent([first_file, second_file], home / "sweep.yaml", [first_file])
    assert str(error.value).endswith(f"add: --allow-code {second_file}")
    for other_path in (dataset, dataset / "a", home / "first.py"):
        with pytest.raises(ConfigError):
            check_consent([first_file], home / "sweep.yaml", [other_path])
    monkeypatch.chdir(dataset)
    check_consent([first_file, second_file], home / "sweep.yaml", [Path("a/first.py"), Path("a/b/../second.py")])


def test_check_consent_quotes_options_for_shell(dataset: Path, home: Path) -> None:
    files = [dataset / "a/the code.py", dataset / "a/other.py"]
    with pytest.raises(ConfigError) as error:
        check_consent([*files, files[0]], home / "sweep.yaml", [])
    arguments = shlex.split(re.split(r"add: ", str(error.value))[1])
    assert arguments == ["--allow-code", str(files[0]), "--allow-code", str(files[1])]
    assert str(dataset / "SHA256SUMS") in str(error.value)


def test_check_consent_escapes_control_characters(dataset: Path, home: Path) -> None:
    with pytest.raises(ConfigError) as error:
        check_consent([dataset / "a\nWill execute nothing.py"], home / "sweep.yaml", [])
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError) as error:
        check_consent([dataset / "a\u202eyp.txt"], home / "sweep.yaml", [])
    assert "\u202e" not in str(error.value)
    assert os.sep in str(error.value)
