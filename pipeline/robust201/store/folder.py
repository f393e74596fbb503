"""The results folder: its format, shards (unless stored under a URL), and records that shard names refer to.

format.json                 format of the folder, and how units are sliced (see `SliceFormat`)
protocols/<digest>.json     protocols, and the tuples of strengths and columns whose digests are in names
shards/                     one file per part (see `store.names`), and packs of such files (see `store.packs`)
damaged/                    shards and packs whose content did not match their name
plan.json                   the sweep and the hashes of its inputs (see `sweep.facts`)
images/, corruptions/, code/    copied or generated inputs
events/, lock.json, slurm/  running processes (see `run`), and the batch file and logs of Slurm tasks
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from pydantic import PositiveFloat, PositiveInt, TypeAdapter

from robust201.core.errors import (
    FormatVersionError,
    InputError,
    ShardDamagedError,
    StorageError,
    describe_read_error,
    one_line,
)
from robust201.core.files import (
    WRITE_STEPS,
    create_text,
    is_temporary,
    load_json,
    make_folder,
    remove_leftovers,
    remove_old,
    visible_entries,
    write_text,
)
from robust201.core.records import canonical_json, content_digest
from robust201.store.local import LocalFolder, reading_error
from robust201.store.names import (
    Listing,
    Names,
    ShardName,
    merge_names,
    names_of,
    names_of_unit,
    parse_names,
    shard_name,
    tuple_digest,
)
from robust201.store.packs import PACKS, Location, Pack, PackTable, index_start, is_pack_name, read_index, write_packs

if TYPE_CHECKING:  # fsspec is imported only for object stores
    from robust201.store.object_store import ObjectStore

__all__ = ["WRITE_STEPS", "ResultsFolder", "SliceFormat"]

FORMAT_FILE = "format.json"
FORMAT_NAME = "robust201-results"
VERSION = 3


@dataclass(frozen=True)
class SliceFormat:
    """Rule for cutting units into slices, fixed when the folder is created and used by all later runs.

    Attributes:
        slice_gmacs: size of a slice, in billions of multiply-accumulates at one strength.
        batch_size: if rounding may depend on the batch, slices begin at multiples of this number of images.
        is_cpu: whether the folder's results are computed on CPUs.
    """

    slice_gmacs: PositiveFloat
    batch_size: PositiveInt
    is_cpu: bool


@dataclass(frozen=True)
class _FormatRecord:
    """Content of format.json. `shards` is the URL of the shards; empty if they are in the folder."""

    format: str
    version: int
    slices: SliceFormat
    shards: str


_RECORD = TypeAdapter(_FormatRecord)


class ResultsFolder:
    """A results folder. Any number of processes may write to it at the same time; shards are never changed in place.

    Args:
        root: the folder.
        slices: rule for cutting units.
        url: URL that contains the shards; empty if they are in the folder.
        on_step: called at each step of writing a shard (`WRITE_STEPS` or `PUT_STEPS`), for crash tests.
    """

    def __init__(
        self, root: Path, slices: SliceFormat, url: str = "", on_step: Callable[[str], None] = lambda _step: None
    ) -> None:
        self.root = root
        self.slices = slices
        self.url = url
        self.storage = _open_storage(root, url, on_step)
        self._records: dict[str, Any] = {}
        self._loose: Listing = {}
        self._packs: dict[str, PackTable] = {}
        self._unfinished: list[str] = []

    @classmethod
    def create(cls, root: Path, slices: SliceFormat, url: str = "") -> "ResultsFolder":
        """Create a folder, or open an existing one, which keeps its own slice format.

        Raises:
            InputError: the folder cannot be created, contains other files, has an invalid format file, or has its
                shards under another URL.
            FormatVersionError: the folder has another format version.
            StorageError: the URL cannot be reached, or the folder cannot be written.
        """
        make_folder(root)
        others = visible_entries(root)
        if FORMAT_FILE not in others:
            if others:
                raise InputError(
                    f"Creating a results folder failed for {root}: expected an empty folder, got {others[0]} without "
                    f"{FORMAT_FILE}. Choose a new folder."
                )
            if url:
                cls(root, slices, url).storage.names("", "")  # fails before a wrong URL is saved
            payload = {"format": FORMAT_NAME, "version": VERSION, "slices": asdict(slices), "shards": url}
            create_text(root / FORMAT_FILE, json.dumps(payload) + "\n")
        folder = cls.open(root)
        if folder.url != url:
            raise InputError(
                f"Opening results failed for {root}: expected shards in {folder.url or 'the folder itself'}, as in "
                f"{FORMAT_FILE}, got {url or 'no URL'}. Correct `shards`, or choose another folder."
            )
        return folder

    @classmethod
    def open(cls, root: Path) -> "ResultsFolder":
        """Open an existing folder.

        Raises:
            InputError: the path is not a results folder.
            FormatVersionError: the folder has another format version.
        """
        path = root / FORMAT_FILE
        try:
            payload = load_json(path)
            name, version = payload["format"], payload["version"]
            if (name, version) != (FORMAT_NAME, VERSION):
                raise FormatVersionError(
                    f"Opening results failed for {path}: expected {FORMAT_NAME} version {VERSION}, got {name} version "
                    f"{version}. Choose another folder, or use the version of robust201 that wrote this one."
                )
            record = _RECORD.validate_python(payload)
            return cls(root, record.slices, record.shards)
        except FileNotFoundError as error:
            raise InputError(
                f"Opening results failed for {root}: there is no {FORMAT_FILE}. Check the path, or start a sweep there "
                "with: robust201 run SWEEP.yaml"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"Opening results failed for {path}: not a valid format ({describe_read_error(error)}). "
                "Restore the file, or choose another folder."
            ) from error

    def _record_path(self, digest: str) -> Path:
        return self.root / "protocols" / f"{digest}.json"

    def save_record(self, digest: str, value: Any) -> None:
        """Store a protocol or a tuple under its digest, unless it is stored already and undamaged."""
        path, text = self._record_path(digest), canonical_json(value) + "\n"
        with suppress(OSError, ValueError):
            if path.read_text(encoding="utf-8") == text:
                return
        write_text(path, text)

    def save_tuple(self, values: Iterable[float | str]) -> str:
        """Store strengths or columns, and return their digest, which the names of shards contain."""
        items = list(values)
        digest = tuple_digest(items)
        self.save_record(digest, items)
        return digest

    def read_record(self, digest: str) -> Any:
        """Return the value stored under a digest; None if the record is missing or damaged.

        Raises:
            StorageError: the record cannot be read at the moment.
        """
        if digest in self._records:
            return self._records[digest]
        path = self._record_path(digest)
        try:
            value = load_json(path)
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise reading_error(path, error) from error
        if not content_digest(value).startswith(digest):
            return None
        self._records[digest] = value
        return value

    def read_tuple(self, digest: str) -> tuple[Any, ...]:
        """Return the strengths or columns of a digest; empty if `read_record` finds none."""
        return tuple(self.read_record(digest) or ())

    def read_protocols(self) -> dict[str, dict[str, Any]]:
        """Return all undamaged protocols by digest."""
        digests = [path.stem for path in sorted((self.root / "protocols").glob(f"{'?' * 32}.json"))]
        return {digest: payload for digest in digests if (payload := self.read_record(digest)) is not None}

    def copy_records(self, target: "ResultsFolder") -> None:
        """Copy all undamaged records to another folder."""
        for path in sorted((self.root / "protocols").glob("*.json")):
            value = self.read_record(path.stem)
            if value is not None:
                target.save_record(path.stem, value)

    def list(self, on_damage: Callable[[str], None] | None = None) -> Listing:
        """Return the names of all shards by dataset, loose or in packs.

        `on_damage` receives a message about each pack whose index is damaged, which was moved to ``damaged/``.

        Raises:
            ShardDamagedError: the index of a pack is damaged, and there is no `on_damage`.
            StorageError: the storage cannot be read.
        """
        while True:
            try:
                return self._list()
            except ShardDamagedError as error:
                if on_damage is None:
                    raise
                on_damage(str(error))

    def _list(self) -> Listing:
        loose: dict[str, list[str]] = {}
        packs: dict[str, list[str]] = {}
        self._unfinished = []
        for dataset, folder, names in self.storage.folders():
            (packs if folder == PACKS else loose).setdefault(dataset, []).extend(names)
            self._unfinished += [f"{dataset}/{folder}/{name}" for name in names if is_temporary(name)]
        for dataset in self._packs.keys() | packs.keys():
            self._read_packs(dataset, packs.get(dataset, []))
        self._loose = {dataset: parse_names(names) for dataset, names in loose.items()}
        return {
            dataset: merge_names([self.loose_names(dataset), self._packed(dataset).names])
            for dataset in sorted(loose.keys() | packs.keys())
        }

    def list_unit(self, dataset: str, unit: str) -> Listing:
        """Return the names of one unit's shards, by listing two folders with at most a few thousand names each."""
        loose = [name for name in self.storage.names(dataset, unit[:2]) if name.startswith(unit)]
        self.refresh_packs(dataset)
        return {dataset: merge_names([parse_names(loose), names_of_unit(self._packed(dataset).names, unit)])}

    def loose_names(self, dataset: str) -> Names:
        """Return the names of shards outside packs, as of the last `list`."""
        return names_of(self._loose, dataset)

    def packs(self, dataset: str) -> Mapping[str, Pack]:
        """Return the packs of a dataset by path, as of the last listing."""
        return self._packed(dataset).packs

    def is_packed(self, name: ShardName) -> bool:
        """Return whether a pack has a shard, as of the last listing."""
        return self._packed(name.dataset).find(name) is not None

    def _packed(self, dataset: str) -> PackTable:
        return self._packs.get(dataset, _NO_PACKS)

    def refresh_packs(self, dataset: str) -> None:
        """List the packs of a dataset again."""
        self._read_packs(dataset, self.storage.names(dataset, PACKS))

    def _read_packs(self, dataset: str, names: Iterable[str]) -> None:
        try:
            self._read_new_packs(dataset, names)
        except FileNotFoundError:  # replaced by a newer pack with the same shards
            try:
                self._read_new_packs(dataset, self.storage.names(dataset, PACKS))
            except FileNotFoundError as error:
                raise StorageError(
                    f"Reading failed for {self.storage.label(f'{dataset}/{PACKS}')}: a listed pack cannot be opened "
                    f"({one_line(error)}). Check the storage, and run the same command again."
                ) from error

    def _read_new_packs(self, dataset: str, names: Iterable[str]) -> None:
        """Read the indexes of packs that are not known yet; packs do not change."""
        known = self._packed(dataset).packs
        paths = sorted(f"{dataset}/{PACKS}/{name}" for name in names if is_pack_name(name))
        if paths != list(known):
            self._packs[dataset] = PackTable({path: known.get(path) or self._read_index(path) for path in paths})

    def _read_index(self, path: str) -> Pack:
        try:
            return read_index(path, self.storage.read(path, index_start(path)))
        except ValueError as error:
            target = self.storage.set_aside(path)
            raise _damage_error(self.storage.label(path), f"{error} in its index", target) from error

    def remove_leftovers(self) -> None:
        """Delete temporary files of killed processes; in `shards/`, only temporary files that the last `list` found."""
        remove_leftovers(self.root, skipped="shards")
        if isinstance(self.storage, LocalFolder):
            remove_old([self.storage.root / path for path in self._unfinished])

    def write(self, name: ShardName, content: bytes) -> None:
        """Write a shard, which appears completely or not at all. After the method returns, it survives a crash.

        Raises:
            StorageFullError: the disk is full.
            StorageError: the folder cannot be written.
        """
        self.storage.write(name.path, content)

    def read(self, name: ShardName) -> bytes:
        """Return a shard's content. A damaged copy is moved to ``damaged/``; without another copy, the shard is lost.

        Raises:
            ShardDamagedError: the content does not match the hash in the name.
            FileNotFoundError: the shard has vanished.
            StorageError: the shard cannot be read at the moment.
        """
        try:
            return self._read_once(name)
        except FileNotFoundError:  # it was packed since the last listing, or its pack was replaced
            self.refresh_packs(name.dataset)
            return self._read_once(name)

    def read_ahead(self, dataset: str, names: Names) -> Iterator[tuple[ShardName, bytes | ShardDamagedError]]:
        """Yield shards in order, with content or ShardDamagedError, reading several at once; skip vanished shards."""

        def read(row: Any) -> tuple[ShardName, bytes | ShardDamagedError | None]:
            name = shard_name(dataset, row)
            try:
                return name, self.read(name)
            except ShardDamagedError as error:
                return name, error
            except FileNotFoundError:  # another process has moved a damaged file aside
                return name, None

        with ThreadPoolExecutor(self.storage.n_readers) as pool:
            for start in range(0, len(names), _READ_AHEAD):
                for name, content in pool.map(read, names[start : start + _READ_AHEAD]):
                    if content is not None:
                        yield name, content

    def _read_once(self, name: ShardName) -> bytes:
        location = self._packed(name.dataset).find(name) or Location(name.path)
        try:
            content = self.storage.read(*location)
        except ValueError as error:
            raise self._set_copy_aside(name, location, str(error)) from error
        if not name.matches_content(content):
            raise self._set_copy_aside(name, location, "bytes that do not match its name")
        return content

    def set_aside(self, name: ShardName, fault: str) -> ShardDamagedError:
        """Move all copies of a shard to ``damaged/``, because its content is wrong; return the error to raise."""
        error = self._set_copy_aside(name, Location(name.path), fault)
        self.refresh_packs(name.dataset)
        while location := self._packed(name.dataset).find(name):
            error = self._set_copy_aside(name, location, fault)
        return error

    def _set_copy_aside(self, name: ShardName, location: Location, fault: str) -> ShardDamagedError:
        """Move a file to ``damaged/``; if it is a pack, first write its other undamaged shards to new packs."""
        pack = self.packs(name.dataset).get(location.path)
        if pack is not None:
            kept = ((other, content) for other, content, is_good in self.iter_pack(pack) if is_good and other != name)
            for _ in write_packs(kept, lambda: self.storage.new_file(name.dataset, PACKS)):
                pass
        error = _damage_error(self.storage.label(location.path), fault, self.storage.set_aside(location.path))
        self.refresh_packs(name.dataset)
        return error

    def check_pack(self, pack: Pack) -> None:
        """Check the content of every shard in a pack.

        Raises:
            ShardDamagedError: a shard is damaged; the undamaged shards were written to new packs.
        """
        for name, _content, is_good in self.iter_pack(pack):
            if not is_good:
                raise self._set_copy_aside(name, Location(pack.path), "bytes that do not match its name")

    def iter_pack(self, pack: Pack) -> Iterator[tuple[ShardName, bytes, bool]]:
        """Yield the shards of a pack, and whether each is undamaged; one read covers many shards."""
        dataset, positions = pack.path.partition("/")[0], pack.positions.tolist()
        start, content = 0, b""
        for row, first, last in zip(pack.names, positions, positions[1:], strict=False):
            if last > start + len(content):
                start, content = first, self.storage.read(pack.path, first, max(last, first + _RANGE_BYTES))
            name, shard = shard_name(dataset, row), content[first - start : last - start]
            yield name, shard, name.matches_content(shard)


_NO_PACKS = PackTable({})
_READ_AHEAD = 64
_RANGE_BYTES = 32 << 20


def _damage_error(label: str, fault: str, target: str) -> ShardDamagedError:
    return ShardDamagedError(
        f"Reading failed for {label}: expected an undamaged file, got {fault}. The file was moved to "
        f"{target}; run the sweep again to compute what is missing."
    )


def _open_storage(root: Path, url: str, on_step: Callable[[str], None]) -> Union[LocalFolder, "ObjectStore"]:
    """Open the storage of a results folder; an empty URL means the folder itself."""
    scheme, _, path = url.partition("://")
    if scheme in {"file", "local"}:
        return LocalFolder(Path(path), Path(path) / "damaged", on_step)
    if url:
        from robust201.store.object_store import ObjectStore

        return ObjectStore(url, on_step)
    return LocalFolder(root / "shards", root / "damaged", on_step)
