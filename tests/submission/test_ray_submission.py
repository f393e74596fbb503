"""`robust201 submit ray`, tested without a Ray cluster: accepted addresses, files of a job, and exit codes."""

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray._raylet import AuthenticationTokenLoader, Config

from robust201.core.errors import ConfigError, RobustWarning
from robust201.planning.plan_file import load_any_sweep
from robust201.submission import ray_jobs
from robust201.sweep.loading import load_training
from tests.conftest import WriteSweep
from tests.support.tiny_trainings import training_fields


@pytest.fixture(autouse=True)
def _remove_user_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    _reset_ray_token_cache()  # an earlier test may have started Ray in this process with another mode
    yield
    monkeypatch.undo()
    _reset_ray_token_cache()


def _reset_ray_token_cache() -> None:
    """Make Ray, which caches its mode and token, read them from the environment again."""
    Config.initialize("")  # as in ray._private.authentication.authentication_token_setup
    AuthenticationTokenLoader.instance().reset_cache()


class FakeClient:
    def __init__(self, logs: Sequence[list[str] | Exception], states: Sequence[Any]) -> None:
        self.logs, self.states = list(logs), list(states)

    async def tail_job_logs(self, _job: str) -> AsyncIterator[str]:
        await asyncio.sleep(0)
        response = self.logs.pop(0)
        for text in response if isinstance(response, list) else ["one\n", "t"]:  # an interrupted log ends within a line
            yield text
        if isinstance(response, Exception):
            raise response

    def get_job_info(self, _job: str) -> Any:
        response = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(response, BaseException):
            raise response
        return response

    def get_job_logs(self, _job: str) -> str:
        return "one\ntwo\n"


def make_job_details(status: str, exit_code: int | None = None, message: str | None = None) -> Any:
    return SimpleNamespace(status=ray_jobs.JobStatus(status), driver_exit_code=exit_code, message=message)


@pytest.fixture(autouse=True)
def _skip_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "_RECONNECT_SECONDS", 0.0)


@pytest.mark.parametrize(
    "logs",
    [
        [["one\n", "two\n"]],
        [RuntimeError("closed"), ["one\n", "two\n"]],
        [RuntimeError("closed"), ConnectionError("gone"), ["one\ntwo\n"]],
        [RuntimeError("closed")],
    ],
)
def test_follow_writes_an_interrupted_log_once_and_completely(logs: list[list[str] | Exception]) -> None:
    states = [*[make_job_details("RUNNING") for _ in logs[1:]], make_job_details("SUCCEEDED", 0)]
    written_texts: list[str] = []
    assert ray_jobs.follow(FakeClient(logs, states), "job", written_texts.append).status == "SUCCEEDED"
    assert "".join(written_texts) == "one\ntwo\n"


@pytest.mark.parametrize(
    ("details", "code", "description"),
    [
        (make_job_details("SUCCEEDED", 0), 0, "SUCCEEDED, exit code 0 of its driver"),
        (make_job_details("FAILED", 2), 2, "FAILED, exit code 2 of its driver"),
        (make_job_details("FAILED", 4), 4, "FAILED, exit code 4 of its driver"),
        (make_job_details("FAILED", -9), 3, "FAILED, exit code -9 of its driver"),
        (make_job_details("FAILED", None, "no\nenvironment."), 3, "FAILED: no environment"),
        (make_job_details("STOPPED"), 3, "STOPPED: no reason given"),
    ],
)
def test_exit_code_and_description_follow_from_the_end_of_a_job(details: Any, code: int, description: str) -> None:
    assert ray_jobs.exit_code_of(details) == code
    assert ray_jobs.describe_end(details) == description


@pytest.mark.parametrize("address", ["127.0.0.1:8265", "ray://head:10001", "auto", "evil_module://x", "http://"])
def test_address_other_than_http_is_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:8265"):
        ray_jobs.connect(address)


@pytest.mark.parametrize("address", ["http://192.0.2.1:8265", "https://head.example", "http://localhost.example:8265"])
def test_token_is_required_for_another_machine(address: str) -> None:
    with pytest.raises(ConfigError, match="requires a token"):
        ray_jobs.connect(address)


@pytest.mark.parametrize(
    ("address", "n_warnings"), [("http://192.0.2.1:8265", 1), ("https://192.0.2.1", 0), ("http://127.0.0.1:8265", 0)]
)
def test_unencrypted_token_gives_a_warning(monkeypatch: pytest.MonkeyPatch, address: str, n_warnings: int) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    monkeypatch.setattr(ray_jobs, "JobSubmissionClient", lambda _address, headers: headers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert ray_jobs.connect(address) == {"authorization": "Bearer token"}
    assert [warning.category for warning in caught] == [RobustWarning] * n_warnings
    assert all(address in str(warning.message) for warning in caught)


def test_job_folder_contains_only_code_and_sweep(write_sweep: WriteSweep, tmp_path: Path) -> None:
    sweep = write_sweep(results="${FOLDER}/runs", checkpoints={"path": "bundled:benchmark_data/demo"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLDER", str(tmp_path))
        variables = ray_jobs.write_job_folder(load_any_sweep(sweep), sweep, tmp_path / "job")
    assert variables == {"FOLDER": str(tmp_path)}
    shipped_fields = yaml.safe_load((tmp_path / "job" / ray_jobs.YAML_NAME).read_text())
    local_fields = yaml.safe_load(sweep.read_text())
    execution = local_fields["execution"] | {"executor": "ray", "ray_address": "auto"}
    assert shipped_fields == local_fields | {"execution": execution}
    names = {path.relative_to(tmp_path / "job").as_posix() for path in (tmp_path / "job").rglob("*") if path.is_file()}
    assert {"robust201/cli/app.py", "robust201/figures/report_page.html", "benchmark_data/downloads.toml"} <= names
    assert {name.split("/")[0] for name in names} == {"robust201", "benchmark_data", ray_jobs.YAML_NAME}
    assert not any(name.endswith((".pyc", ".so")) for name in names)


def test_job_folder_of_trainings_contains_their_yaml(tmp_path: Path) -> None:
    trainings = tmp_path / "train.yaml"
    fields = training_fields(tmp_path, store=str(tmp_path / "store"), execution={"device": "cpu"})
    trainings.write_text(yaml.safe_dump(fields))
    ray_jobs.write_job_folder(load_training(trainings), trainings, tmp_path / "job")
    shipped_fields = yaml.safe_load((tmp_path / "job" / ray_jobs.YAML_NAME).read_text())
    assert shipped_fields == fields | {"execution": fields["execution"] | {"executor": "ray", "ray_address": "auto"}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"results": "runs/x"}, "results"),
        ({"checkpoints": {"path": "weights"}}, r"checkpoints\.path"),
        ({"datasets": {"cifar10": {"path": "data", "corruptions": None}}}, r"datasets\.cifar10\.path"),
    ],
)
def test_job_folder_rejects_relative_paths(
    write_sweep: WriteSweep, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    sweep = write_sweep(**changes)
    with pytest.raises(ConfigError, match=f"the path in `{field}` must be absolute"):
        ray_jobs.write_job_folder(load_any_sweep(sweep), sweep, tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_submit_job_passes_variables_and_drain_time(write_sweep: WriteSweep, tmp_path: Path) -> None:
    submitted_fields: dict[str, Any] = {}
    client = SimpleNamespace(submit_job=lambda **fields: submitted_fields.update(fields) or "new")
    config = load_any_sweep(write_sweep(execution={"part_minutes": 10}))
    assert ray_jobs.submit_job(client, config, tmp_path, {"FOLDER": "/elsewhere"}, ("--allow-code",)) == "new"
    assert submitted_fields["runtime_env"] == {
        "working_dir": str(tmp_path),
        "env_vars": {"FOLDER": "/elsewhere", "RAY_JOB_STOP_WAIT_TIME_S": "660"},
    }
    assert submitted_fields["entrypoint"].endswith(f"run {ray_jobs.YAML_NAME} --executor ray --allow-code")
    client.submit_job = lambda **_: (_ for _ in ()).throw(RuntimeError("Request failed with status code 500: full"))
    with pytest.raises(ConfigError, match="Request failed"):
        ray_jobs.submit_job(client, config, tmp_path, {})
