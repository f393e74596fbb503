"""What becomes of results on the disk: it fills up, or shards rot between two runs."""

import shutil
import subprocess
from pathlib import Path

from tests.faults.trial import N_UNITS, Trial, UnavailableError, stray_files

_INLINE = ("--executor", "inline")


def damage_shards(trial: Trial) -> None:
    """Flip a bit of one shard's data and of another's footer, cut a third short, empty a fourth; then resume."""
    trial.write_sweep()
    trial.run(*_INLINE)
    shards = sorted((trial.results / "shards").rglob("[!.]*.parquet"))
    harms = {"data": _flip_in_data, "footer": _flip_in_footer, "truncated": _cut, "empty": _empty}
    for harm, shard in zip(harms.values(), trial.draws.sample(shards, len(harms)), strict=True):
        harm(trial, shard)
    trial.injected["shards damaged"] += len(harms)
    trial.run("--keys", "clean", *_INLINE)  # narrowed, it sets all four aside and mends what it is asked for
    resumed = trial.run(*_INLINE)
    trial.fail_unless(len(list((trial.results / "damaged").rglob("*.parquet"))) == len(harms), "not all were set aside")
    trial.fail_unless(f"of {N_UNITS} network-key pairs" in resumed.text(), "the sweep was planned anew")


def _flip(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(bytes(content))


def _flip_in_data(trial: Trial, path: Path) -> None:
    # A Parquet file is four magic bytes, data, the footer, four bytes of its length and the magic again.
    length = int.from_bytes(path.read_bytes()[-8:-4], "little")
    _flip(path, trial.draws.randrange(4, path.stat().st_size - 8 - length), trial.draws.randrange(8))


def _flip_in_footer(trial: Trial, path: Path) -> None:
    length = int.from_bytes(path.read_bytes()[-8:-4], "little")
    size = path.stat().st_size
    _flip(path, trial.draws.randrange(size - 8 - length, size - 8), trial.draws.randrange(8))


def _cut(trial: Trial, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: trial.draws.randrange(1, path.stat().st_size)])


def _empty(_trial: Trial, path: Path) -> None:
    path.write_bytes(b"")


def fill_disk(trial: Trial) -> None:
    """Compute into a file system of its own that has room for half of the shards; then give it room, and resume."""
    _fill(trial, *_INLINE)


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
            full = trial.run(*options, expected={4})
            trial.injected["disk full"] += 1
            trial.fail_unless("free space" in full.text(), f"another reason: {full.text()[-300:]}")
            trial.fail_unless(not stray_files(trial.results), f"half-written: {stray_files(trial.results)}")
            trial.fail_unless(0 < trial.count_shards() < N_UNITS, f"{trial.count_shards()} shards fitted")
        _resize(trial.results, 1 << 16)
        trial.resume(*options)
        shutil.copytree(trial.results, trial.folder / "kept")
    finally:
        subprocess.run(["umount", "--lazy", str(trial.results)], check=True)
    trial.results.rmdir()
    (trial.folder / "kept").rename(trial.results)


def _mount(folder: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "robust201-faults", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        raise UnavailableError(f"no small file system: {mounted.stderr.strip()}")


def _resize(folder: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(folder)], check=True)
