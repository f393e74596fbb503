"""Cluster files are valid for Ray and for KubeRay, and have no other known problems."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
LAUNCHER_FILES = ("cluster.yaml", "jobs/cluster-local.yaml")
RAY_PIN = re.findall(r"^ray==(\S+)$", (REPOSITORY / "constraints.txt").read_text(), re.M)[0]
PROVIDER_KEYS = {
    "aws": {"type", "region", "availability_zone", "cache_stopped_nodes", "use_internal_ips", "security_group"},
    "local": {"type", "head_ip", "worker_ips"},
}
MACHINE_PATH = re.compile(r"(?<![\w~.])/(?:work|tmp|root|home|Users|scratch)\b")

Fields = dict[str, Any]


def read_yaml(file_name: str) -> Fields:
    fields: Fields = yaml.safe_load((REPOSITORY / file_name).read_text())
    return fields


def prepare_as_ray_up(fields: Fields) -> Fields:
    """Prepare a cluster file as `ray up` does before it starts a machine."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared_fields: Fields = prepare_config(copy.deepcopy(fields))
    validate_config(prepared_fields)
    return prepared_fields


def find_problems(fields: Fields) -> Iterator[str]:
    """Yield problems that Ray's validation accepts but that make a cluster fail or leave it insecure."""
    provider = fields["provider"]
    known_keys = PROVIDER_KEYS.get(provider["type"], set())
    yield from (f"unknown provider key {key}" for key in provider if key not in known_keys)
    if provider["type"] == "aws":
        yield from find_cloud_problems(fields)
    elif len({provider["head_ip"], *provider["worker_ips"]}) != 1 + len(provider["worker_ips"]):
        yield "a duplicate address"
    if MACHINE_PATH.search(yaml.safe_dump(fields)):
        yield "a machine-specific path"
    if "~/.ray/auth_token" not in fields.get("file_mounts", {}):
        yield "the token is not copied to the machines"
    for role in ("head", "worker"):
        start_commands = [command for command in fields.get(f"{role}_start_ray_commands", ()) if "ray start" in command]
        if len(start_commands) != 1 or not re.search(r"export .*RAY_AUTH_MODE=token\b.*ray start", start_commands[0]):
            yield f"{role} starts without token authentication"
        if role == "head" and "--dashboard-host=127.0.0.1" not in "".join(start_commands):
            yield "the dashboard listens on a network"
        if role == "head" and "RAY_enable_autoscaler_v2=1" not in "".join(start_commands):
            yield "autoscaler v1"


def find_cloud_problems(fields: Fields) -> Iterator[str]:
    if not fields["provider"].get("region"):
        yield "no region"
    if not all(f":{RAY_PIN}-py311" in fields["docker"][f"{role}_image"] for role in ("head", "worker")):
        yield f"no image of Ray {RAY_PIN}"
    nodes = dict(fields["available_node_types"])
    head = nodes.pop(fields["head_node_type"])
    if head["resources"] != {"CPU": 0, "GPU": 0} or head["max_workers"] != 0:
        yield "the head accepts work"
    for node in nodes.values():
        if not node["resources"].get("GPU"):
            yield "a worker without a GPU"
        if node["node_config"].get("InstanceMarketOptions") != {"MarketType": "spot"}:
            yield "a worker that is not a spot machine"


@pytest.mark.parametrize("name", LAUNCHER_FILES)
def test_cluster_file_is_valid_and_has_no_problems(name: str) -> None:
    prepared_fields = prepare_as_ray_up(read_yaml(name))
    assert prepared_fields["max_workers"] >= 1
    assert list(find_problems(read_yaml(name))) == []


def test_rayjob_uses_token_authentication_and_the_pinned_ray() -> None:
    spec = read_yaml("jobs/kuberay-rayjob.yaml")["spec"]
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == RAY_PIN
    assert cluster["autoscalerOptions"]["version"] == "v2"
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert not MACHINE_PATH.search(yaml.safe_dump(spec))
    pods = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    for pod in pods:
        volume_names = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volume_names
    for group in cluster["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
