"""Cluster files are valid for Ray and for KubeRay, use token authentication, and name no path of one machine."""

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
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
    spec = read_yaml("jobs/kuberay-rayjob.yaml")["spec"]
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == RAY_PIN
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    for pod in pods:
        volume_names = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volume_names
    for group in cluster["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
