"""A second driver: on the same host, and on another host that sees the same folder."""

import json
import signal
import subprocess

from tests.faults.trial import Trial, UnavailableError

_INLINE = ("--executor", "inline")
_OTHER_HOST = ("unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c")
_RENAME = 'hostname robust201-other && exec "$0" "$@"'


def second_driver(trial: Trial) -> None:
    """Start a second driver on the same host: refused while the first lives, stopped or not; let in once it is dead."""
    trial.write_sweep()
    trial.order(pace=0.5)
    first = trial.start_run(*_INLINE)
    trial.wait_for_shards(2, first)
    _refuse(trial, ())
    first.process.send_signal(signal.SIGSTOP)
    _refuse(trial, ())
    first.process.send_signal(signal.SIGCONT)
    shards = trial.count_shards()
    trial.wait_for_shards(shards + 2, first)
    first.process.kill()
    first.wait()
    trial.injected["drivers killed"] += 1
    trial.run(*_INLINE)


def _refuse(trial: Trial, wrapper: tuple[str, ...]) -> None:
    second = trial.start_run(*_INLINE, wrapper=wrapper)
    trial.finish(second, {4})
    trial.injected["second drivers refused"] += 1
    trial.fail_unless("which is alive" in second.text(), f"refused otherwise: {second.text()[-300:]}")


def second_driver_elsewhere(trial: Trial) -> dict[str, bool]:
    """Start a second driver on another host: refused while the first beats, let in once it is killed."""
    _require_namespaces()
    trial.write_sweep()
    trial.order(pace=1.5)
    first = trial.start_run(*_INLINE)
    trial.wait_for_shards(1, first)
    _refuse(trial, (*_OTHER_HOST, _RENAME))
    first.process.kill()
    first.wait()
    trial.injected["drivers killed"] += 1
    trial.order()
    second = trial.start_run(*_INLINE, wrapper=(*_OTHER_HOST, _RENAME))
    trial.finish(second, {0})
    trial.fail_unless("watching its heartbeat" in second.text(), "took over without watching")
    return {}


def stopped_driver_elsewhere(trial: Trial) -> dict[str, bool]:
    """Stop the first driver (SIGSTOP) until one on another host has taken over; continued, it notices and stops."""
    _require_namespaces()
    trial.write_sweep()
    trial.order(pace=1.0)
    first = trial.start_run(*_INLINE)
    trial.wait_for_shards(1, first)
    first.process.send_signal(signal.SIGSTOP)
    trial.injected["drivers stopped"] += 1
    second = trial.start_run(*_INLINE, wrapper=(*_OTHER_HOST, _RENAME))
    shards = trial.count_shards()
    trial.wait_for_shards(shards + 1, second)
    first.process.send_signal(signal.SIGCONT)
    trial.finish(first, {4})
    trial.fail_unless("Keeping the lease failed" in first.text(), f"stopped otherwise: {first.text()[-300:]}")
    trial.fail_unless(_host_of_lease(trial) == "robust201-other", "the lease changed hands again")
    trial.finish(second, {0})
    return {"may_duplicate": True}


def _host_of_lease(trial: Trial) -> str:
    payload = json.loads((trial.results / "lease.json").read_text(encoding="utf-8"))
    return str(payload["host_id"]["host"])


def _require_namespaces() -> None:
    done = subprocess.run([*_OTHER_HOST, _RENAME, "true"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"no other host by namespaces: {done.stderr.strip()}")
