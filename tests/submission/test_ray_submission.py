"""`robust201 submit ray`, tested without a Ray cluster: accepted addresses, files in the archive, and exit codes."""

import asyncio
import zipfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray._raylet import AuthenticationTokenLoader, Config

from robust201.core.errors import ConfigError
from robust201.planning.loading import is_training_yaml, load_training
from robust201.planning.plan_file import load_any_sweep
from robust201.submission import ray_jobs
from robust201.submission.access import check_access, find_token
from robust201.submission.shipment import Shipment, list_package_files, pack, prepare_shipment
from tests.conftest import WriteSweep
from tests.support.tiny_trainings import training_fields

TOKEN = "a-token-for-tests-only"


def make_shipment(source: Path, environment: dict[str, str], filter_options: tuple[str, ...] = ()) -> Shipment:
    config = load_training(source) if is_training_yaml(source) else load_any_sweep(source)
    return prepare_shipment(config, source, environment, filter_options)


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


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8265",
        "ray://head:10001",
        "http://me:pw@h:1",
    ],
)
def test_address_other_than_http_is_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match="expected http://HOST:8265"):
        check_access(address, TOKEN)


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("http://127.0.0.1:8265", True),
        ("http://[::1]:8265/", True),
        ("http://192.0.2.1:8265", False),
        ("https://head.example", False),
        ("http://127.0.0.1.example:8265", False),
    ],
)
def test_token_is_required_for_another_machine(address: str, is_local: bool) -> None:
    assert check_access(address, TOKEN).is_loopback is is_local
    if is_local:
        assert check_access(address, None).token is None
    else:
        with pytest.raises(ConfigError, match=r"connecting to another machine requires a token"):
            check_access(address, None)
    assert check_access(address, TOKEN).sends_token_in_plain_text is (not is_local and address.startswith("http:"))


def test_find_token_prefers_variable_to_named_file_and_default_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_token() is None
    default_file = tmp_path / "home" / ".ray" / "auth_token"
    default_file.parent.mkdir(parents=True)
    default_file.write_text("default\n")
    assert find_token() == "default"
    (tmp_path / "named").write_text(" named ")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "named"))
    assert find_token() == "named"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "variable")
    assert find_token() == "variable"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    (tmp_path / "named").write_text("")
    with pytest.raises(ConfigError, match="set in RAY_AUTH_TOKEN_PATH, got an empty file"):
        find_token()
    (tmp_path / "named").unlink()
    with pytest.raises(ConfigError, match="set in RAY_AUTH_TOKEN_PATH, got No such file"):
        find_token()


def test_malformed_token_is_rejected_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "se\ncret")
    with pytest.raises(ConfigError, match="RAY_AUTH_TOKEN") as caught:
        find_token()
    assert "cret" not in str(caught.value).replace("secret", "")


def test_shipment_contains_only_code_and_sweep(write_sweep: WriteSweep, tmp_path: Path) -> None:
    sweep = write_sweep(results="${FOLDER}/runs", checkpoints={"path": "bundled:benchmark_data/demo"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLDER", str(tmp_path))
        shipment = make_shipment(sweep, {"FOLDER": str(tmp_path), "SECRET": "x"})
    assert shipment.variables == {"FOLDER": str(tmp_path)}
    shipped_fields = yaml.safe_load(shipment.text)
    assert shipped_fields["execution"] == yaml.safe_load(sweep.read_text())["execution"] | {
        "executor": "ray",
        "ray_address": "auto",
    }
    assert shipped_fields["results"] == "${FOLDER}/runs"

    size = pack(shipment, tmp_path / "one.zip")
    pack(shipment, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert size == (tmp_path / "one.zip").stat().st_size < 2 << 20
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        member_names = archive.namelist()
        assert archive.read("sweep.yaml").decode() == shipment.text
    assert {"robust201/cli/app.py", "robust201/figures/report_page.html", "benchmark_data/downloads.toml"} <= set(
        member_names
    )
    assert all(name.startswith(("robust201/", "benchmark_data/")) or name == "sweep.yaml" for name in member_names)


def test_shipment_of_trainings_runs_train(tmp_path: Path) -> None:
    trainings = tmp_path / "train.yaml"
    fields = training_fields(tmp_path, store="${FOLDER}/store", execution={"device": "cpu"})
    trainings.write_text(yaml.safe_dump(fields))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLDER", str(tmp_path))
        shipment = make_shipment(trainings, {"FOLDER": str(tmp_path)}, ("--recipes", "plain"))
        assert load_training(trainings).store == tmp_path / "store"
    assert shipment.variables == {"FOLDER": str(tmp_path)}
    assert ray_jobs.entrypoint(shipment) == ("python -m robust201 run trainings.yaml --executor ray --recipes plain")
    pack(shipment, tmp_path / "job.zip")
    with zipfile.ZipFile(tmp_path / "job.zip") as archive:
        shipped_fields = yaml.safe_load(archive.read("trainings.yaml"))
    assert shipped_fields == fields | {"execution": fields["execution"] | {"executor": "ray", "ray_address": "auto"}}
    fields["store"] = "store"
    trainings.write_text(yaml.safe_dump(fields))
    with pytest.raises(ConfigError, match="the path in `store` must be absolute"):
        make_shipment(trainings, {})


def test_list_package_files_excludes_hidden_files_caches_weights_and_arrays(tmp_path: Path) -> None:
    for name in ("a.py", "page.html", "sub/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in (".git/config", ".venv/x.py", "__pycache__/a.pyc", "w.safetensors", "x.npy", "_bundled/jobs/a.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(list_package_files(tmp_path)) == ["robust201/a.py", "robust201/page.html", "robust201/sub/b.py"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"results": "runs/x"}, "results"),
        ({"checkpoints": {"path": "weights"}}, r"checkpoints\.path"),
        (
            {"datasets": {"digits": {"corruptions": {"source": "generated", "path": "c"}}}},
            r"datasets\.digits\.corruptions\.path",
        ),
    ],
)
def test_shipment_rejects_relative_paths(write_sweep: WriteSweep, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"the path in `{field}` must be absolute"):
        make_shipment(write_sweep(**changes), {})


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


def test_submit_job_passes_variables_and_drain_time(write_sweep: WriteSweep, tmp_path: Path) -> None:
    submitted_fields: dict[str, Any] = {}
    client = SimpleNamespace(submit_job=lambda **fields: submitted_fields.update(fields) or "new")
    sweep = write_sweep(results=f"${{FOLDER:-{tmp_path}}}", execution={"part_minutes": 10})
    shipment = make_shipment(sweep, {"FOLDER": "/elsewhere"})
    assert ray_jobs.submit_job(client, shipment, tmp_path / "job.zip") == "new"
    assert submitted_fields["runtime_env"] == {
        "working_dir": str(tmp_path / "job.zip"),
        "env_vars": {"FOLDER": "/elsewhere", "RAY_JOB_STOP_WAIT_TIME_S": "660"},
    }
    client.submit_job = lambda **_: (_ for _ in ()).throw(RuntimeError("Request failed with status code 500: full"))
    with pytest.raises(ConfigError, match=r"the head did not accept the job \(Request failed"):
        ray_jobs.submit_job(client, shipment, tmp_path / "job.zip")


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
