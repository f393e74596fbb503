"""Plugins (tasks and spaces of installed packages): lookup by name, execution like user files, and identity."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import ConfigError
from robust201.core.user_code import hash_file
from robust201.planning.code_consent import announce_code
from robust201.planning.loading import load_config
from robust201.planning.plan import assumed_facts, make_plan
from robust201.planning.plugins import TASKS_GROUP, find_plugin, is_installed, plugin_names
from robust201.planning.sweep_record import portable_fields
from tests.conftest import RunCommand, WriteSweep
from tests.runtime.test_extended_sweeps import read_columns
from tests.runtime.test_user_code import ATTACK, MEASURE, MODELS

DECLARATIONS = """
SHIFT = {"file": "shift.py", "norm": "Linf", "strengths": [1, 8]}
LOGITS = {"file": "logits.py", "kind": "measure", "columns": ["mean", "spread"]}
SMALL = {"file": "networks.py"}
"""
ENTRY_POINTS = """
[robust201.tasks]
shift = shift_package.declared:SHIFT
logits = shift_package.declared:LOGITS

[robust201.spaces]
small = shift_package.declared:SMALL
"""


def install_package(
    site: Path, name: str = "shift-package", version: str = "1.2", entry_points: str = ENTRY_POINTS
) -> Path:
    """Write the files of an installed package, with the layout that pip creates."""
    site.mkdir()
    package = site / "shift_package"
    package.mkdir()
    content_by_file = {"__init__.py": "", "declared.py": DECLARATIONS, "shift.py": ATTACK, "logits.py": MEASURE}
    for file_name, content in (content_by_file | {"networks.py": MODELS}).items():
        (package / file_name).write_text(content)
    metadata_folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata_folder / "entry_points.txt").write_text(entry_points)
    return package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with two tasks and a space; return the folder of its files."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(site)
    for name in [name for name in sys.modules if name.startswith("shift_package")]:
        monkeypatch.delitem(sys.modules, name)
    return install_package(site)


@pytest.fixture
def write_plugin_sweep(write_sweep: WriteSweep) -> WriteSweep:
    """Return a function that writes a sweep over a network of the package's space."""

    def write(keys: dict[str, Any], **changes: Any) -> Path:
        fields = {"space": "small", "architectures": ["narrow"], "network": {}, "checkpoints": None}
        return write_sweep(**(fields | {"weights": {"random": {"seeds": [0]}}, "keys": keys} | changes))

    return write


def test_plugin_identity_has_package_version_and_file_hash(package: Path, write_plugin_sweep: WriteSweep) -> None:
    config = load_config(write_plugin_sweep({"clean": {}, "shift": {"strengths": [2]}, "logits": {}}))
    assert {field: path.name for field, path in config.code_files().items()} == {
        "space": "networks.py",
        "keys.shift": "shift.py",
        "keys.logits": "logits.py",
    }
    assert config.parameters["shift"].strengths == (2.0,)
    assert config.parameters["shift"].identity()["distribution"] == "shift-package==1.2"
    sha256 = hash_file(package / "networks.py")
    space = config.make_space({"space": sha256}).identity()
    assert space == {"function": "build", "file_sha256": sha256, "distribution": "shift-package==1.2"}
    record = portable_fields(config)
    assert (record["space"]["file"], record["keys"]["shift"]["file"]) == ("networks.py", "shift.py")
    assert make_plan(config, assumed_facts(config)).planned_keys


def test_plugins_run_like_user_files(package: Path, write_plugin_sweep: WriteSweep, robust201: RunCommand) -> None:
    path = write_plugin_sweep({"clean": {}, "shift": {}, "logits": {}})
    result = robust201("run", path)
    assert result.code == 0, result.err
    assert "Will execute" in result.err
    assert {key for key, _, _ in read_columns(load_config(path).results)} == {"clean", "shift", "logits"}


def test_installed_plugin_needs_no_consent(
    package: Path, write_plugin_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_plugin_sweep({"shift": {}})
    config = load_config(path)
    (path.parent / "SHA256SUMS").touch()  # now the YAML is part of a dataset
    output: list[str] = []
    announce_code(config, path, allowed=(), say=output.append)
    assert len(output) == 2
    # A YAML cannot avoid consent by claiming a distribution for its own file.
    (tmp_path / "mine.py").write_text(ATTACK)
    claim = {"file": str(tmp_path / "mine.py"), "distribution": "shift-package==1.2", "norm": "Linf", "strengths": [1]}
    claiming_config = load_config(write_plugin_sweep({"mine": claim}))
    with pytest.raises(ConfigError, match=r"executing .*mine\.py requires your consent"):
        announce_code(claiming_config, path, allowed=(), say=output.append)
    for name in [name for name in sys.modules if name.startswith("shift_package")]:
        monkeypatch.delitem(sys.modules, name)
    assert not is_installed(TASKS_GROUP, tmp_path / "mine.py", "shift-package==1.2")
    assert not any(name.startswith("shift_package") for name in sys.modules)  # the package is not imported
    assert not is_installed(TASKS_GROUP, package / "shift.py", "shift-package==1.1")
    assert is_installed(TASKS_GROUP, package / "shift.py", "shift-package==1.2")


def test_invalid_uses_and_declarations_of_plugins_are_rejected(
    package: Path, write_plugin_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError, match=r"keys\.shift\.norm: expected one of strengths, .* since shift-package==1\.2 sets"
    ):
        load_config(write_plugin_sweep({"shift": {"norm": "L2"}}))
    with pytest.raises(ConfigError, match=r"keys\.shitf: expected a known key, got 'shitf'\. Did you mean 'shift'"):
        load_config(write_plugin_sweep({"shitf": {}}))
    with pytest.raises(ConfigError, match="Did you mean 'small'"):
        load_config(write_plugin_sweep({"clean": {}}, space="smal"))
    other_entry_points = (
        "[robust201.tasks]\nlogits = shift_package.declared:LOGITS\nnothing = shift_package.declared:__name__"
    )
    monkeypatch.syspath_prepend(tmp_path / "other")
    install_package(tmp_path / "other", "other-package", "0.1", other_entry_points)
    with pytest.raises(ConfigError, match=r"got other-package==0\.1, shift-package==1\.2\. Uninstall all but one"):
        find_plugin(TASKS_GROUP, "logits")
    with pytest.raises(ConfigError, match="to be a mapping with the field `file`"):
        load_config(write_plugin_sweep({"nothing": {}}))


def test_plugins_are_not_imported_before_use(package: Path) -> None:
    code = "import sys, robust201.planning.config, robust201.cli.app; print('shift_package' in sys.modules)"
    path = f"{package.parent}:{':'.join(sys.path)}"
    result = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"
    assert plugin_names(TASKS_GROUP) == ["logits", "shift"]
