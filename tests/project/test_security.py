"""Untrusted data (SECURITY.md): YAML creates no arbitrary objects, and a sweep opens no pickles.

Ruff (rules S) finds unsafe calls, and `test_layers.py` finds imports of pickle.
"""

import pickle
import sys
from pathlib import Path

import yaml

from robust201.sweep.loading import load_config
from robust201.sweep.sweep_yaml import _StrictLoader
from tests.support.runs import run_sweep


def test_sweep_yaml_loader_is_safe(write_sweep):
    assert issubclass(_StrictLoader, yaml.SafeLoader | yaml.CSafeLoader)
    unsafe_tags = set(yaml.UnsafeLoader.yaml_constructors) | set(yaml.UnsafeLoader.yaml_multi_constructors)
    strict_tags = set(_StrictLoader.yaml_constructors) | set(_StrictLoader.yaml_multi_constructors)
    assert strict_tags & unsafe_tags == set(yaml.SafeLoader.yaml_constructors) & unsafe_tags
    assert load_config(write_sweep()).name == "tiny"


class _UnpicklingRecorder:
    """Records the globals that unpicklers of this process look up while it is active."""

    def __init__(self) -> None:
        self.is_active = False
        self.globals: list[str] = []
        sys.addaudithook(self._record)

    def _record(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_active and event == "pickle.find_class":
            self.globals.append(".".join(map(str, arguments)))


def test_sweep_opens_no_pickles(make_sweep):
    recorder = _UnpicklingRecorder()
    control_pickle = pickle.dumps(Path("control"))
    recorder.is_active = True
    try:
        pickle.loads(control_pickle)
        assert [name.rpartition(".")[2] for name in recorder.globals] == ["PosixPath"], "the recorder does not work"
        recorder.globals.clear()
        assert run_sweep(make_sweep()).is_complete
    finally:
        recorder.is_active = False
    assert recorder.globals == []
