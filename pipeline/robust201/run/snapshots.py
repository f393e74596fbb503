"""Files of unfinished training runs: saved states, and records of snapshots that are not yet in the store's manifest.

Each training run has a folder ``states/<name>/``, to which only the run's worker writes. A snapshot's record is
written after its weights, in a file ``snapshot-<steps>.json``. Only the driver writes the manifest: it moves records
there. Thus a killed worker or driver loses no snapshot, and workers need no lock.
"""

from collections.abc import Iterable
from pathlib import Path

from robust201.core.files import atomic_write, visible_entries
from robust201.weights.manifest import CheckpointRecord, parse_line
from robust201.weights.store import CheckpointStore

_STATES_FOLDER = "states"


def folder_of(results: Path, name: str) -> Path:
    """Return the folder of an unfinished training run (`PlannedTraining.folder_name`)."""
    return results / _STATES_FOLDER / name


def save_record(folder: Path, step: int, record: CheckpointRecord) -> None:
    """Save the record of a stored snapshot durably: after the function returns, it survives a crash."""
    with atomic_write(folder / f"snapshot-{step:09d}.json") as stream:
        stream.write(record.to_line())


def recorded_steps(folder: Path) -> tuple[int, ...]:
    """Return the steps of the snapshots that have records."""
    return tuple(_step_of(path) for path in _record_files(folder))


def move_records(folders: Iterable[Path], store: CheckpointStore) -> int:
    """Add the records of training runs to the manifest of the store, delete their files, and return their number."""
    paths = [path for folder in folders for path in _record_files(folder)]
    for path in paths:
        store.add_to_manifest(parse_line(path.read_bytes(), str(path)))
    store.flush()
    for path in paths:
        path.unlink()
    return len(paths)


def _record_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("snapshot-*.json"))


def _step_of(path: Path) -> int:
    return int(path.stem.split("-")[1])


def state_folders(results: Path) -> list[Path]:
    """Return the folders of all unfinished training runs."""
    folder = results / _STATES_FOLDER
    return [folder / name for name in visible_entries(folder)]


def saved_steps(results: Path) -> dict[str, tuple[int, ...]]:
    """Return the steps of the saved states by name of their folder."""
    return {
        folder.name: tuple(_step_of(path) for path in folder.glob("step-*.safetensors"))
        for folder in state_folders(results)
    }
