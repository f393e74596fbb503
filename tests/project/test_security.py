"""Handling of untrusted data (SECURITY.md): rules for the code, and a sweep during which unpickling is recorded."""

import ast
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

import robust201
from robust201.sweep.loading import load_config
from robust201.sweep.sweep_yaml import _StrictLoader
from tests.conftest import MakeSweep, WriteSweep
from tests.support.runs import run_sweep

PACKAGE = Path(robust201.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "_bundled" not in path.parts)
PICKLE_MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNPICKLING_MODULE = "core/unpickling.py"
# Calls that are unsafe without a keyword argument, by the end of the function's name.
REQUIRED_ARGUMENTS = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "np.save": ("allow_pickle", False),
    "tar.extractall": ("filter", "data"),
}
FORBIDDEN_BUILTINS = {"eval", "exec"}
FORBIDDEN_FUNCTIONS = {
    "os.system",
    "tar.extract",
    "shutil.unpack_archive",
    "read_pickle",
    "torch.jit.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "_create_unverified_context",
}


def find_violations(source: str, name: str) -> Iterator[str]:
    """Yield a description of each unsafe import or call in a module, with its line."""
    for node in ast.walk(ast.parse(source)):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        for module in imported:
            if module.split(".")[0] in PICKLE_MODULES and name != UNPICKLING_MODULE:
                yield f"{name}:{getattr(node, 'lineno', 0)} imports {module}"
        if isinstance(node, ast.Call):
            yield from (f"{name}:{node.lineno} {problem}" for problem in find_call_violations(node))


def find_call_violations(call: ast.Call) -> Iterator[str]:
    """Yield a description of each reason why a call is unsafe."""
    function = ast.unparse(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    for suffix, (keyword, required_value) in REQUIRED_ARGUMENTS.items():
        value = keywords.get(keyword)
        if _ends_with(function, suffix) and not (isinstance(value, ast.Constant) and value.value == required_value):
            yield f"{function} without {keyword}={required_value}"
    if function in FORBIDDEN_BUILTINS or any(_ends_with(function, suffix) for suffix in FORBIDDEN_FUNCTIONS):
        yield function
    if _ends_with(function, "yaml.load") and ast.unparse(keywords.get("Loader", ast.Constant(None))) != "_StrictLoader":
        yield f"{function} with a loader that builds objects"
    for keyword, unsafe_value in (("shell", True), ("verify", False)):
        value = keywords.get(keyword)
        if (
            isinstance(value, ast.Constant)
            and value.value is unsafe_value
            and _ends_with(function, "run", "Popen", "get", "request")
        ):
            yield f"{function} with {keyword}={unsafe_value}"


def _ends_with(function: str, *suffixes: str) -> bool:
    return any(function == suffix or function.endswith(f".{suffix}") for suffix in suffixes)


def test_source_has_no_unsafe_calls_on_external_data() -> None:
    violations_by_module = {}
    for path in SOURCES:
        module = str(path.relative_to(PACKAGE))
        violations_by_module[module] = list(find_violations(path.read_text(), module))
    assert len(SOURCES) > 300
    assert {module: problems for module, problems in violations_by_module.items() if problems} == {}


def test_sweep_yaml_loader_is_safe(write_sweep: WriteSweep) -> None:
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


def test_sweep_opens_no_pickles(make_sweep: MakeSweep) -> None:
    recorder = _UnpicklingRecorder()
    content = pickle.dumps(Path("control"))
    recorder.is_active = True
    try:
        pickle.loads(content)
        assert [name.rpartition(".")[2] for name in recorder.globals] == ["PosixPath"], "the recorder does not work"
        recorder.globals.clear()
        assert run_sweep(make_sweep()).is_complete
    finally:
        recorder.is_active = False
    assert recorder.globals == []
