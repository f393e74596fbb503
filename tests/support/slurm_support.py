"""Parsers of batch files, and a context manager that runs Slurm with one node on loopback in a temporary folder."""

import getpass
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue")
# On Debian, only root's path contains the daemons.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

_CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MaxArraySize={max_array_size}
KillWait=5
ReturnToService=2
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def slurm_unavailable_reason() -> str | None:
    """Return the reason why Slurm cannot be started on this machine; None if it can."""
    missing_programs = [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]
    if missing_programs:
        return f"{', '.join(missing_programs)} not found: install slurmctld, slurmd, slurm-client and munge"
    return None if os.geteuid() == 0 else "slurmd needs root"


@dataclass(frozen=True)
class SlurmCluster:
    """A running Slurm cluster.

    Attributes:
        folder: folder with state, logs and sockets.
        environment: environment variables for Slurm's commands, which connect them to the cluster.
    """

    folder: Path
    environment: dict[str, str]

    def query(self, *command: str) -> str:
        """Run one of Slurm's commands, and return its output."""
        result = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30, check=False)
        assert result.returncode == 0, (command, result.stderr, self.logs())
        return result.stdout

    def jobs(self) -> dict[str, str]:
        """Return the state of every unfinished job by job ID (``7_2`` for a task of an array)."""
        lines = self.query("squeue", "--noheader", "--array", "--format=%i %T").split("\n")
        return dict(line.split() for line in lines if line)

    def job(self, job: str) -> dict[str, str]:
        """Return the controller's fields of a job (``7_2`` for a task of an array), finished or not."""
        fields = self.query("scontrol", "--oneliner", "show", "job", job).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def start_requeued(self, job: str) -> None:
        """Start a requeued job as soon as its first run has ended.

        By itself, Slurm would wait for two minutes, because a node could mistake the second run for the first one,
        whose credential it has just revoked.
        """
        step = f"[{self.job(job)['JobId']}.batch]"
        self.wait_for(lambda: not any(step in title for title in _process_titles()))
        time.sleep(2)
        self.query("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait_for(self, condition: Callable[[], object], seconds: float = 240) -> None:
        """Wait until a condition is true.

        Raises:
            AssertionError: the condition is still false after `seconds`. The message contains Slurm's logs.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        """Return the last lines of the daemons' logs."""
        tails = []
        for path in sorted(self.folder.glob("*.log")):
            tails.append(f"== {path.name}\n" + "\n".join(path.read_text().splitlines()[-30:]))
        return "\n".join(tails)


@contextmanager
def slurm_on_loopback(*, cpus: int = 2, max_array_size: int = 33) -> Iterator[SlurmCluster]:
    """Start munge, a controller and a node; at the end of the block, stop them and their jobs.

    Args:
        cpus: number of CPUs that the node offers, independently of the machine.
        max_array_size: Slurm's limit on array indices, exclusive.
    """
    # In pytest's folders, the path of munge's socket could exceed the maximum of 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    controller_port, node_port = _free_ports(2)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(
            folder=folder,
            user=getpass.getuser(),
            controller_port=controller_port,
            node_port=node_port,
            cpus=cpus,
            max_array_size=max_array_size,
        )
    )
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    # Batch jobs inherit this environment, so variables of other jobs or clusters are removed.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    environment = inherited | {"PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    cluster = SlurmCluster(folder, environment)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        munge_paths = {name: f"{folder}/munge.{name}" for name in ("socket", "seed")}
        munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--log-file={folder}/munged.log"]
        munge += [
            f"--pid-file={folder}/munged.pid",
            f"--socket={munge_paths['socket']}",
            f"--seed-file={munge_paths['seed']}",
        ]
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost", "-c"]):
            with (folder / f"{command[0]}.out.log").open("wb") as log:
                daemons.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
            if command is munge:
                cluster.wait_for((folder / "munge.socket").exists)
        cluster.wait_for(lambda: _is_node_idle(cluster))
        yield cluster
    finally:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            for job in cluster.jobs():
                cluster.query("scancel", job)
            cluster.wait_for(lambda: not cluster.jobs(), 20)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _process_titles() -> Iterator[str]:
    for process in psutil.process_iter(["cmdline"]):
        yield " ".join(process.info["cmdline"] or [])


def _is_node_idle(cluster: SlurmCluster) -> bool:
    """Return whether the node is up and idle."""
    result = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return result.returncode == 0 and result.stdout.strip() == "idle"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound_socket in sockets:
            bound_socket.bind(("127.0.0.1", 0))
        return [bound_socket.getsockname()[1] for bound_socket in sockets]
    finally:
        for bound_socket in sockets:
            bound_socket.close()


def parse_directives(text: str) -> dict[str, str]:
    """Return the long options of a batch file by name, with quotes removed as by a shell."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    pairs = (line.partition("=") for line in lines)
    return {name: shlex.split(value)[0] if value else "" for name, _, value in pairs}


def parse_command(text: str) -> list[str]:
    """Return the arguments of `exec` in a batch file, as the shell would expand them."""
    (line,) = [line for line in text.splitlines() if line.startswith("exec ")]
    result = subprocess.run(
        ["bash", "-c", line.replace("exec ", "printf '%s\\0' ", 1)],
        env={"SLURM_ARRAY_TASK_ID": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.split("\0")[:-1]
