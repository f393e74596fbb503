"""Handling of untrusted data (SECURITY.md): rules for the source, and an audited run."""

import ast
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

import robust201
from robust201.planning.loading import load_config
from robust201.planning.sweep_yaml import _StrictLoader
from robust201.runtime.executors import make_executor
from robust201.runtime.sweep import run_sweep
from tests.conftest import MakeSweep, WriteSweep

PACKAGE = Path(robust201.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "_bundled" not in path.parts)
PICKLING = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
ALLOW_LIST = "core/unpickling.py"
# End of a call's name, and the keyword without which it unpickles, builds objects or trusts remote data.
REQUIRED = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "np.save": ("allow_pickle", False),
}
BUILTINS = {"eval", "exec"}
FORBIDDEN = {
    "os.system",
    "extractall",
    "tar.extract",
    "shutil.unpack_archive",
    "read_pickle",
    "torch.jit.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "_create_unverified_context",
}


def violations(source: str, name: str) -> Iterator[str]:
    """Yield the lines of a module that open untrusted data in an unsafe way."""
    for node in ast.walk(ast.parse(source)):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        for module in imported:
            if module.split(".")[0] in PICKLING and name != ALLOW_LIST:
                yield f"{name}:{getattr(node, 'lineno', 0)} imports {module}"
        if isinstance(node, ast.Call):
            yield from (f"{name}:{node.lineno} {found}" for found in unsafe_call(node))


def unsafe_call(call: ast.Call) -> Iterator[str]:
    called = ast.unparse(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    for end, (keyword, wanted) in REQUIRED.items():
        value = keywords.get(keyword)
        if _is(called, end) and not (isinstance(value, ast.Constant) and value.value is wanted):
            yield f"{called} without {keyword}={wanted}"
    if called in BUILTINS or any(_is(called, end) for end in FORBIDDEN):
        yield called
    if _is(called, "yaml.load") and ast.unparse(keywords.get("Loader", ast.Constant(None))) != "_StrictLoader":
        yield f"{called} with a loader that builds objects"
    for keyword, bad in (("shell", True), ("verify", False)):
        value = keywords.get(keyword)
        if isinstance(value, ast.Constant) and value.value is bad and _is(called, "run", "Popen", "get", "request"):
            yield f"{called} with {keyword}={bad}"


def _is(called: str, *ends: str) -> bool:
    return any(called == end or called.endswith(f".{end}") for end in ends)


def test_source_has_no_unsafe_calls_on_external_data() -> None:
    found = {
        place: unsafe
        for path in SOURCES
        if (unsafe := list(violations(path.read_text(), place := str(path.relative_to(PACKAGE)))))
    }
    assert len(SOURCES) > 300
    assert found == {}


def test_sweep_yaml_loader_is_safe(write_sweep: WriteSweep) -> None:
    assert issubclass(_StrictLoader, yaml.SafeLoader | yaml.CSafeLoader)
    unsafe = set(yaml.UnsafeLoader.yaml_constructors) | set(yaml.UnsafeLoader.yaml_multi_constructors)
    added = (set(_StrictLoader.yaml_constructors) | set(_StrictLoader.yaml_multi_constructors)) & unsafe
    assert added == set(yaml.SafeLoader.yaml_constructors) & unsafe
    assert load_config(write_sweep()).name == "tiny"


class _Audit:
    """Records the globals that unpicklers of this process look up while it is active."""

    def __init__(self) -> None:
        self.listening = False
        self.found: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.listening and event == "pickle.find_class":
            self.found.append(".".join(map(str, arguments)))


def test_sweep_opens_no_pickles(make_sweep: MakeSweep) -> None:
    audit = _Audit()
    content = pickle.dumps(Path("control"))
    audit.listening = True
    try:
        pickle.loads(content)
        assert [name.rpartition(".")[2] for name in audit.found] == ["PosixPath"], "the audit hears nothing"
        audit.found.clear()
        assert run_sweep(make_sweep(), make_executor).complete
    finally:
        audit.listening = False
    assert audit.found == []
