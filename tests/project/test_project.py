"""The README's commands, version pins, and the paper's sweep are consistent."""

import re
import tomllib

import yaml

from robust201 import __version__
from robust201.core.files import bundled
from robust201.images import DATASETS
from robust201.images.downloads.registry import find_download
from robust201.images.loading import FORMS
from robust201.sweep.loading import load_config
from tests.conftest import REPOSITORY


def find_install_commands(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.startswith("python3 -m venv .venv && ")]
    return [line for line in lines if "-c constraints.txt" in line]


def test_ci_runs_readme_test_command():
    demo_command, test_command = find_install_commands((REPOSITORY / "README.md").read_text())
    assert demo_command.endswith("robust201 demo")
    assert test_command.endswith("-m pytest")
    assert test_command in find_install_commands((REPOSITORY / ".ci/run").read_text())


def test_constraints_satisfy_version_ranges():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    pins = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.M)
    }
    extras = project["optional-dependencies"]
    assert {*extras["s3"], *extras["read"], *extras["docs"]} <= {*extras["dev"]}, (
        "the extra dev must include the packages of the other extras, which tests need"
    )
    for requirement_text in (*project["dependencies"], *extras["dev"]):
        requirement = Requirement(requirement_text)
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement_text


def test_paper_sweep_finds_files_where_fetch_stores_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    datasets = load_config(bundled("jobs/paper.yaml")).datasets
    assert list(datasets) == ["cifar10", "cifar100", "ImageNet16-120"]
    for name, section in datasets.items():
        folder = tmp_path / find_download(name).folder
        for member in find_download(name).members:
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            (folder / member).touch()
        assert section.path is not None
        assert FORMS[DATASETS[name].forms[0]].find(DATASETS[name], section.path, "test") == folder
        if section.corruptions is not None:
            assert section.corruptions.path == tmp_path / find_download(str(DATASETS[name].corruptions)).folder


def test_version_and_date_are_the_same_everywhere():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    releases = re.findall(r"^## \[(\d[\d.]*)\] - (\S+)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)
    assert releases[0] == (__version__, str(citation["date-released"]))
    assert project["version"] == citation["version"] == __version__
