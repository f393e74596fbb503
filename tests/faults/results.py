"""What becomes of results on the disk: it fills up, or shards rot between two runs."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.trial import INLINE, N_UNITS, Trial, stray_files


def damage_shards(trial: Trial) -> None:
    """Flip a bit of one shard's data and of another's footer, cut a third short, empty a fourth; then resume."""
    trial.write_sweep()
    trial.run(*INLINE)
    shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
    for harm, shard in zip(("data", "footer", "cut", "empty"), trial.draws.sample(shards, 4), strict=True):
        shard.write_bytes(_damaged(trial, shard.read_bytes(), harm))
        trial.injected["shards damaged"] += 1
    trial.run("--keys", "clean", *INLINE)  # narrowed, it sets all four aside and mends what it is asked for
    resumed = trial.run(*INLINE)
    assert len(list((trial.results / "damaged").rglob("*.parquet"))) == 4, "not all were set aside"
    resumed.expect(f"of {N_UNITS} network-key pairs")  # not planned anew


def _damaged(trial: Trial, content: bytes, harm: str) -> bytes:
    # A Parquet file is four magic bytes, data, the footer, four bytes of its length and the magic again.
    end = len(content) - 8
    footer = end - int.from_bytes(content[end : end + 4], "little")
    if harm == "empty":
        return b""
    if harm == "cut":
        return content[: trial.draws.randrange(1, len(content))]
    position = trial.draws.randrange(4, footer) if harm == "data" else trial.draws.randrange(footer, end)
    flipped = bytearray(content)
    flipped[position] ^= 1 << trial.draws.randrange(8)
    return bytes(flipped)


def fill_disk(trial: Trial) -> None:
    """Compute into a file system of its own that has room for half of the shards; then give it room, and resume."""
    _fill(trial, *INLINE)


def fill_disk_of_workers(trial: Trial) -> None:
    """The same where workers write and the driver only hears of it."""
    _fill(trial)


def _fill(trial: Trial, *options: str) -> None:
    trial.write_sweep()
    trial.results.mkdir()
    _mount(trial.results)
    try:
        trial.finish(trial.start("plan", str(trial.sweep), "--save"), {0})
        for _ in range(trial.repeats):
            # A shard takes two pages of 4 kB; progress, lease and what is being written take some more.
            left = (N_UNITS - trial.count_shards()) // 2
            _resize(trial.results, shutil.disk_usage(trial.results).used // 1024 + 8 * left + 16)
            trial.run(*options, expected={4}).expect("free space")
            trial.injected["disk full"] += 1
            assert not stray_files(trial.results)
            assert 0 < trial.count_shards() < N_UNITS
        _resize(trial.results, 1 << 16)
        trial.resume(*options)
        shutil.copytree(trial.results, trial.folder / "kept")
    finally:
        subprocess.run(["umount", "--lazy", str(trial.results)], check=True)
    trial.results.rmdir()
    (trial.folder / "kept").rename(trial.results)


def _mount(folder: Path) -> None:
    words = ["mount", "-t", "tmpfs", "-o", "size=64m", "robust201-faults", str(folder)]
    mounted = subprocess.run(words, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small file system: {mounted.stderr.strip()}")


def _resize(folder: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(folder)], check=True)
