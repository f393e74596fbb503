"""`robust201 submit ray`, tested without a Ray cluster: addresses, files of a job, and cluster files."""

import os
import re
import warnings
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from robust201.core.errors import ConfigError, RobustWarning
from robust201.submit import ray_jobs
from robust201.sweep.facts import load_sweep
from robust201.sweep.loading import load_training
from tests.conftest import REPOSITORY
from tests.support.tiny_trainings import write_training_yaml

pytestmark = pytest.mark.usefixtures("_without_ray_token")


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        *((address, "expected http://HOST:8265") for address in ("127.0.0.1:8265", "ray://head:10001", "http://")),
        *((f"http://{host}", "requires a token") for host in ("192.0.2.1:8265", "localhost.example:8265")),
    ],
)
def test_address_without_http_or_token_is_rejected(address, fault):
    with pytest.raises(ConfigError, match=fault):
        ray_jobs.connect(address)


@pytest.mark.parametrize(
    ("address", "n_warnings"), [("http://192.0.2.1:8265", 1), ("https://192.0.2.1", 0), ("http://127.0.0.1:8265", 0)]
)
def test_unencrypted_token_gives_a_warning(monkeypatch, address, n_warnings):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    monkeypatch.setattr(ray_jobs, "JobSubmissionClient", lambda _address, headers: headers)
    monkeypatch.setenv("RAY_ADDRESS", "http://192.0.2.7:8265")  # Ray's client would prefer it to the argument
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert ray_jobs.connect(address) == cast("Any", {"Authorization": "Bearer token"})
    assert "RAY_ADDRESS" not in os.environ
    assert [warning.category for warning in caught] == [RobustWarning] * n_warnings
    assert all(address in str(warning.message) for warning in caught)


def test_job_folder_contains_only_the_package_the_bundled_files_and_the_yaml(write_sweep, tmp_path):
    sweep = write_sweep(results="${FOLDER}/runs", checkpoints={"path": "bundled:benchmark_data/demo"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOLDER", str(tmp_path))
        variables = ray_jobs.write_job_folder(load_sweep(sweep), sweep, tmp_path / "job")
    assert variables == {"FOLDER": str(tmp_path)}
    shipped_fields = yaml.safe_load((tmp_path / "job" / ray_jobs.YAML_NAME).read_text())
    local_fields = yaml.safe_load(sweep.read_text())
    execution = local_fields["execution"] | {"executor": "ray", "ray_address": "auto"}
    assert shipped_fields == local_fields | {"execution": execution}
    names = {path.relative_to(tmp_path / "job").as_posix() for path in (tmp_path / "job").rglob("*") if path.is_file()}
    assert {"robust201/cli/app.py", "robust201/figures/report_page.html", "benchmark_data/downloads.toml"} <= names
    assert {name.split("/")[0] for name in names} == {"robust201", "benchmark_data", ray_jobs.YAML_NAME}
    assert not any(name.endswith((".pyc", ".so")) for name in names)


def test_job_folder_of_training_runs_contains_the_yaml(tmp_path):
    training_yaml = write_training_yaml(tmp_path)
    fields = yaml.safe_load(training_yaml.read_text())
    ray_jobs.write_job_folder(load_training(training_yaml), training_yaml, tmp_path / "job")
    shipped_fields = yaml.safe_load((tmp_path / "job" / ray_jobs.YAML_NAME).read_text())
    assert shipped_fields == fields | {"execution": fields["execution"] | {"executor": "ray", "ray_address": "auto"}}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"results": "runs/x"}, "results"),
        ({"checkpoints": {"path": "weights"}}, r"checkpoints\.path"),
        ({"datasets": {"cifar10": {"path": "data", "corruptions": None}}}, r"datasets\.cifar10\.path"),
        ({"keys": {"mine": {"file": "mine.py"}}}, r"keys\.mine"),
        ({"keys": {"pgd": {"images": {"file": "chosen.json"}}}}, r"keys\.pgd\.images\.file"),
    ],
)
def test_job_folder_rejects_relative_paths(write_sweep, tmp_path, changes, field):
    sweep = write_sweep(**changes)
    with pytest.raises(ConfigError, match=f"absolute path in `{field}`"):
        ray_jobs.write_job_folder(load_sweep(sweep), sweep, tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_submit_job_passes_variables_and_drain_time(write_sweep, tmp_path):
    submitted_fields: dict[str, Any] = {}
    client: Any = SimpleNamespace(submit_job=lambda **fields: submitted_fields.update(fields))
    config = load_sweep(write_sweep(execution={"drain_seconds": 600}))
    job_id = ray_jobs.submit_job(client, config, tmp_path, {"FOLDER": "/elsewhere"}, ("--allow-code",))
    assert job_id == submitted_fields["submission_id"]
    assert submitted_fields["runtime_env"] == {
        "working_dir": str(tmp_path),
        "env_vars": {"FOLDER": "/elsewhere", "RAY_JOB_STOP_WAIT_TIME_S": "660"},
    }
    assert submitted_fields["entrypoint"].endswith(f"run {ray_jobs.YAML_NAME} --executor ray --allow-code")
    client.submit_job = lambda **_: (_ for _ in ()).throw(RuntimeError("Request failed with status code 500: full"))
    with pytest.raises(ConfigError, match="Request failed"):
        ray_jobs.submit_job(client, config, tmp_path, {})


RAY_PIN = re.findall(r"^ray==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.M)[0]
MACHINE_PATH = re.compile(r"(?<![\w~.])/(?:work|tmp|root|home|Users|scratch)\b")


def read_yaml(file_name):
    text = (REPOSITORY / file_name).read_text()
    assert not MACHINE_PATH.search(re.sub("#.*", "", text))
    return yaml.safe_load(text)


@pytest.mark.parametrize("name", ["cluster.yaml", "jobs/cluster-local.yaml"])
def test_cluster_file_is_valid_and_uses_token_authentication(name):
    from ray.autoscaler._private.util import prepare_config, validate_config

    fields = read_yaml(name)
    assert name != "cluster.yaml" or f":{RAY_PIN}-py311" in fields["docker"]["worker_image"]
    assert "~/.ray/auth_token" in fields["file_mounts"]
    for role in ("head", "worker"):
        (command,) = [command for command in fields[f"{role}_start_ray_commands"] if "ray start" in command]
        assert re.search(r"export .*RAY_AUTH_MODE=token\b.*RAY_enable_autoscaler_v2=1;.*ray start", command)
        assert ("--dashboard-host=127.0.0.1" in command) == (role == "head")
    prepared_fields = prepare_config(fields)  # as `ray up` does before it starts a machine
    validate_config(prepared_fields)
    assert prepared_fields["max_workers"] >= 1


def test_rayjob_uses_token_authentication_and_the_pinned_ray():
    cluster = read_yaml("jobs/kuberay-rayjob.yaml")["spec"]["rayClusterSpec"]
    assert (cluster["authOptions"], cluster["rayVersion"]) == ({"mode": "token"}, RAY_PIN)
