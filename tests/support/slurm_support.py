"""Batch files, read; and a real Slurm of one node on loopback, in a folder of its own, for the length of a block."""

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
# Debian keeps daemons where only root's path leads.
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


def reason_against() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]
    if missing:
        return f"no {', '.join(missing)}: install slurmctld, slurmd, slurm-client and munge"
    return None if os.geteuid() == 0 else "slurmd runs as root only"


@dataclass(frozen=True)
class SlurmCluster:
    """A Slurm that runs.

    Attributes:
        folder: its state, logs and sockets.
        environment: what programs need to find it.
    """

    folder: Path
    environment: dict[str, str]

    def query(self, *command: str) -> str:
        """Run one of Slurm's commands and return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, (command, done.stderr, self.logs())
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """State of every job that is not over, by its id (``7_2`` for a task of an array)."""
        lines = self.query("squeue", "--noheader", "--array", "--format=%i %T").split("\n")
        return dict(line.split() for line in lines if line)

    def job(self, job: str) -> dict[str, str]:
        """What the controller knows of a job (``7_2`` for a task of an array), over or not: field to value."""
        words = self.query("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def start_requeued(self, job: str) -> None:
        """Start a job that was put back into the queue, which by Slurm's own rule waits for two minutes.

        Slurm waits lest a node takes the job's second run for its first, whose right to run it has just revoked, to the
        second. A test can look whether the first run has ended.
        """
        step = f"[{self.job(job)['JobId']}.batch]"
        self.wait_for(lambda: not any(step in title for title in _process_titles()))
        time.sleep(2)
        self.query("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait_for(self, condition: Callable[[], object], seconds: float = 240) -> None:
        """Wait until something holds.

        Raises:
            AssertionError: it did not in time; Slurm's logs are in the message.
        """
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        """Last lines of the daemons' logs."""
        tails = []
        for path in sorted(self.folder.glob("*.log")):
            tails.append(f"== {path.name}\n" + "\n".join(path.read_text().splitlines()[-30:]))
        return "\n".join(tails)


@contextmanager
def slurm_on_loopback(*, cpus: int = 2, max_array_size: int = 33) -> Iterator[SlurmCluster]:
    """Start munge, a controller and a node; stop them, and what they started, at the end of the block.

    Args:
        cpus: CPUs that the node offers, whatever it has.
        max_array_size: Slurm's limit on array indices, exclusive.
    """
    # Below pytest's folders the path of munge's socket could become longer than the 107 bytes that a socket takes.
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
    # Batch jobs inherit this environment; what names another job or cluster must not reach them.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    environment = inherited | {"PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    cluster = SlurmCluster(folder, environment)
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        names = {name: f"{folder}/munge.{name}" for name in ("socket", "seed")}
        munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--log-file={folder}/munged.log"]
        munge += [f"--pid-file={folder}/munged.pid", f"--socket={names['socket']}", f"--seed-file={names['seed']}"]
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost", "-c"]):
            with (folder / f"{command[0]}.out.log").open("wb") as log:
                daemons.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )
            if command is munge:
                cluster.wait_for((folder / "munge.socket").exists)
        cluster.wait_for(lambda: _answers(cluster))
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


def _answers(cluster: SlurmCluster) -> bool:
    """Whether the node is up and idle."""
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode == 0 and done.stdout.strip() == "idle"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def directives(text: str) -> dict[str, str]:
    """Options of a batch file, as the shell's own quoting reads them."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    pairs = (line.partition("=") for line in lines)
    return {name: shlex.split(value)[0] if value else "" for name, _, value in pairs}


def command(text: str) -> list[str]:
    """Words that the shell hands to exec in a batch file's last line."""
    (line,) = [line for line in text.splitlines() if line.startswith("exec ")]
    shown = subprocess.run(
        ["bash", "-c", line.replace("exec ", "printf '%s\\0' ", 1)],
        env={"SLURM_ARRAY_TASK_ID": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.split("\0")[:-1]
