"""Disk faults: the disk is full, or shards are damaged between two runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.trial import INLINE, N_UNITS, Trial, stray_files


def damage_shards(trial: Trial) -> None:
    """Damage four shards: flip a bit of the data or of the footer, or truncate or empty the file; then resume."""
    trial.write_sweep()
    trial.run(*INLINE)
    shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
    for damage, shard in zip(("data", "footer", "truncated", "empty"), trial.rng.sample(shards, 4), strict=True):
        shard.write_bytes(_damage(trial, shard.read_bytes(), damage))
        trial.injection_counts["shards damaged"] += 1
    trial.run("--keys", "clean", *INLINE)  # sets all four shards aside, and recomputes only the selected evaluations
    command = trial.run(*INLINE)
    assert len(list((trial.results / "damaged").rglob("*.parquet"))) == 4, "not all damaged shards were set aside"
    command.expect_output(f"of {N_UNITS} network-key pairs")  # the plan is unchanged


def _damage(trial: Trial, content: bytes, damage: str) -> bytes:
    # A Parquet file consists of four magic bytes, the data, the footer, its length in four bytes, and four magic bytes.
    footer_stop = len(content) - 8
    footer_start = footer_stop - int.from_bytes(content[footer_stop : footer_stop + 4], "little")
    if damage == "empty":
        return b""
    if damage == "truncated":
        return content[: trial.rng.randrange(1, len(content))]
    position = (
        trial.rng.randrange(4, footer_start) if damage == "data" else trial.rng.randrange(footer_start, footer_stop)
    )
    damaged = bytearray(content)
    damaged[position] ^= 1 << trial.rng.randrange(8)
    return bytes(damaged)


def fill_disk(trial: Trial) -> None:
    """Run on a file system with space for half of the missing shards; then enlarge it and resume."""
    _fill_disk(trial, *INLINE)


def fill_disk_in_run_with_worker_processes(trial: Trial) -> None:
    """Fill the disk like `fill_disk`, in a run whose workers are separate processes."""
    _fill_disk(trial)


def _fill_disk(trial: Trial, *options: str) -> None:
    trial.write_sweep()
    trial.results.mkdir()
    _mount(trial.results)
    try:
        trial.finish(trial.start("plan", str(trial.sweep), "--save"), {0})
        for _ in range(trial.repeats):
            # A shard takes two pages of 4 kB. Progress, lease and temporary files also need some space.
            n_shards = (N_UNITS - trial.count_shards()) // 2
            _resize(trial.results, shutil.disk_usage(trial.results).used // 1024 + 8 * n_shards + 16)
            trial.run(*options, expected_codes={4}).expect_output("the disk is full")
            trial.injection_counts["disk full"] += 1
            assert not stray_files(trial.results)
            assert 0 < trial.count_shards() < N_UNITS
        _resize(trial.results, 1 << 16)
        trial.resume(*options)
        shutil.copytree(trial.results, trial.folder / "copy")
    finally:
        subprocess.run(["umount", "--lazy", str(trial.results)], check=True)
    trial.results.rmdir()
    (trial.folder / "copy").rename(trial.results)


def _mount(folder: Path) -> None:
    argv = ["mount", "-t", "tmpfs", "-o", "size=64m", "robust201-faults", str(folder)]
    result = subprocess.run(argv, check=False, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"cannot mount a tmpfs: {result.stderr.strip()}")


def _resize(folder: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(folder)], check=True)
