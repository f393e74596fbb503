"""Faults that kill a node of a cluster, or disconnect a host for half a minute."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import pytest

from tests.faults.processes import is_ray, kill, wait_until
from tests.faults.trial import N_UNITS, Command, Trial

DISCONNECTED_SECONDS = 30.0


@contextmanager
def _separate_ray_folder(trial: Trial) -> Iterator[None]:
    """Use a separate folder for Ray's files, with a short path, because the length of socket paths is limited."""
    folder = tempfile.mkdtemp(prefix="r201-")
    trial.extra_environment["RAY_TMPDIR"] = folder
    try:
        yield
    finally:
        kill(filter(is_ray, trial.live_processes()))
        shutil.rmtree(folder, ignore_errors=True)


def kill_node(trial: Trial) -> None:
    """Kill the second of two nodes while its worker computes; the run continues and reports a preemption."""
    from ray.cluster_utils import Cluster

    with _separate_ray_folder(trial):
        with mock.patch.dict(os.environ, trial.environment()):  # inherited by the nodes
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            _kill_node(trial, cluster)
        finally:
            with suppress(Exception):  # the shutdown raises an error if a node has already ended
                cluster.shutdown()


def _kill_node(trial: Trial, cluster: Any) -> None:
    def add_node() -> Any:
        with mock.patch.dict(os.environ, trial.environment()):
            return cluster.add_node(num_cpus=1)

    node = add_node()
    trial.write_sweep(ray_address=cluster.address, max_attempts=1)
    trial.set_faults(seconds_per_part=1.0)
    command = trial.start_run()
    trial.wait_until(lambda: len(trial.occurrences("worked-")) == 2, command, "both workers compute")
    for _ in range(trial.repeats):
        cluster.remove_node(node, allow_graceful=False)
        trial.injection_counts["nodes killed"] += 1
        n_shards = trial.count_shards()
        if n_shards + 6 > N_UNITS:  # too little work remains for another node
            break
        trial.wait_until(lambda: "preempted: The actor" in command.text(), command, "the loss is reported", 120)
        node = add_node()
        trial.wait_for_shards(min(n_shards + 8, N_UNITS - 1), command)
    trial.finish(command, {0})
    command.expect_output("0 failures, 0 workers died")
    assert "0 were preempted" not in command.text(), f"no preemption counted: {command.text()[-300:]}"


class Hosts:
    """Two connected hosts, simulated by network namespaces and a veth pair.

    The test is skipped if it is not permitted to create namespaces.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self.names = [f"r201-{trial.marker[:6]}{suffix}" for suffix in "ab"]
        self._links = [f"v{trial.marker[:6]}{suffix}" for suffix in "ab"]
        try:
            for name in self.names:
                _ip("netns", "add", name)
            _ip("link", "add", self._links[0], "type", "veth", "peer", "name", self._links[1])
            for number, (name, link) in enumerate(zip(self.names, self._links, strict=True), start=1):
                _ip("link", "set", link, "netns", name)
                _ip("-n", name, "address", "add", f"10.201.0.{number}/24", "dev", link)
                _ip("-n", name, "link", "set", link, "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.remove()
            pytest.skip(f"no network namespaces: {getattr(error, 'stderr', error)}")

    def wrapper(self, host: int) -> Sequence[str]:
        """Return the beginning of a command line that runs a command on a host."""
        return ("ip", "netns", "exec", self.names[host])

    def start_ray(self, host: int, *options: str) -> Command:
        argv = [*self.wrapper(host), sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
        argv += [f"--node-ip-address=10.201.0.{host + 1}", "--disable-usage-stats", *options]
        node = self._trial.start_process(argv)
        wait_until(lambda: "Ray runtime started" in node.text(), 120, f"node {host} is up")
        return node

    def set_link(self, state: str) -> None:
        """Disconnect the hosts (``down``) or connect them again (``up``)."""
        _ip("-n", self.names[1], "link", "set", self._links[1], state)

    def remove(self) -> None:
        """Delete both hosts, whose processes must have ended."""
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def disconnect_host(trial: Trial) -> None:
    """Disconnect the second host for 30 s while its worker computes; the run continues."""
    trial.extra_environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": trial.marker}
    with _separate_ray_folder(trial):
        hosts = Hosts(trial)
        try:
            _disconnect_host(trial, hosts)
        finally:
            kill(trial.live_processes())
            hosts.remove()


def _disconnect_host(trial: Trial, hosts: Hosts) -> None:
    nodes = [hosts.start_ray(0, "--head", "--port=6379", "--include-dashboard=false")]
    nodes.append(hosts.start_ray(1, "--address=10.201.0.1:6379"))
    trial.write_sweep(ray_address="10.201.0.1:6379")
    trial.set_faults(seconds_per_part=4.0)
    command = trial.start_run(wrapper=hosts.wrapper(0))
    trial.wait_until(lambda: len(trial.occurrences("worked-")) == 2, command, "both workers compute")
    for _ in range(trial.repeats):
        hosts.set_link("down")
        trial.injection_counts["hosts disconnected"] += 1
        time.sleep(DISCONNECTED_SECONDS)
        hosts.set_link("up")
        if not command.is_running:
            break
        time.sleep(DISCONNECTED_SECONDS)
    trial.finish(command, {0})
    for node in nodes:
        node.process.terminate()
        node.process.wait()
