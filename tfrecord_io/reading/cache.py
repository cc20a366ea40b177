"""The records of a remote dataset that this machine keeps on its disk, shared by its processes.

    CACHE_DIR/CACHEDIR.TAG     says what this folder is: one that holds anything else is refused
    CACHE_DIR/lock             bytes on the disk, of all datasets; locked while that changes
    CACHE_DIR/ID/.lock         locked by each process that uses the dataset
    CACHE_DIR/ID/.states       a byte a record, in the order of the manifest's shards
    CACHE_DIR/ID/*.tfrecord    the shards, with holes where records are absent

ID is a hash of the manifest's digests of the shards, and of the URLs and versions (ETags) of those
on the store: the records of a shard that was replaced under the old manifest never mix with those
that were kept before. A record is written first and marked second, so a process can be killed at
any moment. After a power cut or a crash of the system, marks may have reached the disk and their
records not, so each record is checked before it is used again.

No record of a dataset in use is ever removed. Each epoch is a random order without repetition, in
which a cache that keeps what it has serves as large a share as it holds; one that makes room for
newer records serves no more than that, and with least-recently-used almost nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from tfrecord_io.errors import UserError
from tfrecord_io.files import atomic_write
from tfrecord_io.manifest import Manifest

if sys.platform != "win32":  # where local datasets can be read, but no remote ones
    import fcntl

#: States of a record. An unchecked one was written before the system started.
ABSENT, PRESENT, UNCHECKED = 0, 1, 2

_log = logging.getLogger(__name__)

# No shard has such a name: theirs begin with a letter or a digit.
_USERS_NAME, _STATES_NAME = ".lock", ".states"
_TAG_NAME, _LOCK_NAME = "CACHEDIR.TAG", "lock"
# The first line is that of bford.info/cachedir, by which backups know such folders.
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\nRecords of remote datasets: tfrecord_io\n"
_ID = re.compile(r"[0-9a-f]{64}")

# The states begin with the name of the start of the system that wrote them.
_HEADER_LENGTH = 64
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_PAGE = 4096
# Fewer bytes by themselves would waste too much of the pages that they touch.
_LEAST_BYTES = 8 * _PAGE
_OPEN_SECONDS = 60.0
_STORE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where remote records are kept, and how many.

    Attributes:
        folder: of the cache; None for `tfrecord_io` in the user's cache folder.
        num_bytes: that all datasets in the folder may take on the disk together; None for half of
            what is free there.
    """

    folder: str | os.PathLike[str] | None = None
    num_bytes: float | None = None

    @property
    def path(self) -> Path:
        """The folder."""
        if self.folder is not None:
            return Path(self.folder).expanduser()
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        return Path(home).expanduser() / "tfrecord_io"


#: What is used where nothing else is said; a command may replace it.
defaults = CacheOptions()


def options_with(cache_dir: str | os.PathLike[str] | None, cache_gb: float | None) -> CacheOptions:
    """Returns `defaults` with another folder, or another size in 10^9 bytes, where they are given.

    Raises:
        ValueError: if the size is negative, or not a number.
    """
    if cache_gb is not None and not cache_gb >= 0:
        raise ValueError(f"cache_gb must be at least 0, received {cache_gb}")
    return CacheOptions(
        folder=defaults.folder if cache_dir is None else cache_dir,
        num_bytes=defaults.num_bytes if cache_gb is None else cache_gb * 1e9,
    )


class DatasetCache:
    """The records of one dataset that are on this machine's disk.

    The dataset is in use as long as this object exists.

    Attributes:
        folder: of the shards.
        states: uint8 [records], read-only: the state of each record of the dataset. Other
            processes and threads change it at any time, but never from `PRESENT`.
        fits: whether there was room for the whole dataset when it was opened.
        is_full: whether there is no room for another record.
    """

    def __init__(self, manifest: Manifest, versions: str, options: CacheOptions) -> None:
        """Opens the cache of a dataset, and makes room by removing unused datasets.

        Args:
            manifest: of the dataset.
            versions: of the shards on their store, see `opening.open_split`.
            options: where, and how much.

        Raises:
            UserError: if the folder holds anything else, or another machine is using it.
            OSError: if it cannot be written.
        """
        digests = [(shard.name, shard.num_bytes, shard.sha256) for shard in manifest.shards]
        self._root = options.path.absolute()
        self.folder = self._root / hashlib.sha256(repr((digests, versions)).encode()).hexdigest()
        self.is_full = False
        self._stride = manifest.layout.stride
        self._shards = manifest.shards
        sizes = np.array([shard.num_examples for shard in manifest.shards], np.int64)
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        self._mutex = threading.Lock()
        _claim(self._root)
        with _locked(self._root / _LOCK_NAME, _OPEN_SECONDS) as total:
            self.folder.mkdir(exist_ok=True)
            self._lock = os.open(self.folder / _USERS_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            self._open()
            used = self._make_room(options.num_bytes)
            os.pwrite(total, used.to_bytes(8, "little"), 0)

    def __del__(self) -> None:
        if hasattr(self, "_lock"):  # else the opening failed before
            os.close(self._lock)

    def describe(self) -> str:
        """Returns a sentence on how much of the dataset is on the disk."""
        size = sum(shard.num_bytes for shard in self._shards)
        held = int((self.states != ABSENT).sum()) * self._stride
        return (
            f"{held / 1e9:.2f} of {size / 1e9:.2f} GB of the dataset are in {self._root}, which "
            f"may take {self._limit / 1e9:.2f} GB"
        )

    def keep(self, first: int, records: np.ndarray) -> int:
        """Writes records to the disk, as many as there is room for.

        Args:
            first: place in `states` of the first record.
            records: uint8 [records, stride], neighbours in one shard.

        Returns:
            the number of records, counted from the first, that are on the disk now.
        """
        shard = int(np.searchsorted(self._ends, first, side="right"))
        start = (first - int(self._starts[shard])) * self._stride
        try:
            with self._mutex, _locked(self._root / _LOCK_NAME, _STORE_SECONDS) as total:
                used = int.from_bytes(os.pread(total, 8, 0), "little")
                room = max(0, int((self._limit - used - 2 * _PAGE) // self._stride))
                self.is_full |= room < len(records)
                records = records[:room]
                if not self.fits and records.nbytes < _LEAST_BYTES:
                    return 0
                last = first + len(records)
                if (self.states[first:last] == PRESENT).all():
                    return len(records)
                stop = start + records.nbytes
                # Whole pages, without those that neighbours have taken already.
                pages = -(-stop // _PAGE) - start // _PAGE
                if start % _PAGE:
                    pages -= self.states[first - 1] != ABSENT
                if stop % _PAGE and last < self._ends[shard]:
                    pages -= self.states[last] != ABSENT
                os.pwrite(total, (used + int(pages) * _PAGE).to_bytes(8, "little"), 0)
                _write(self.folder / self._shards[shard].name, start, records)
                self.mark(first, len(records), PRESENT)
                return len(records)
        except TimeoutError:
            return 0  # a process that holds the lock was stopped
        except OSError as error:
            if not self.is_full:
                _log.warning("%s keeps no more records: %s", self._root, error)
            self.is_full = True
            return 0

    def mark(self, first: int, count: int, state: int) -> None:
        """Writes the state of neighbouring records; raises OSError if the disk cannot be written.

        Written through the map, it would end the process in that case.
        """
        states = np.full(count, state, np.uint8)
        _write(self.folder / _STATES_NAME, _HEADER_LENGTH + first, states)

    def _open(self) -> None:
        """Takes the dataset into use; the folder of the cache is locked."""
        boot = _boot_id()
        path = self.folder / _STATES_NAME
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with path.open("rb") as file:
                if file.read(_HEADER_LENGTH) != boot:
                    raise UserError(
                        f"{self._root} is in use by another machine; give each machine a cache "
                        "on a disk of its own"
                    ) from None
        else:
            self._repair(path, boot)
        os.utime(self._lock)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        num_records = int(self._ends[-1])
        states = np.memmap(path, np.uint8, "r", _HEADER_LENGTH, (num_records,))
        self.states = np.asarray(states)  # whose slices are made faster

    def _repair(self, path: Path, boot: bytes) -> None:
        """Makes files that are missing, and marks as unchecked what is not certain."""
        content = path.read_bytes() if path.exists() else b""
        states = np.zeros(int(self._ends[-1]), np.uint8)
        if len(content) == _HEADER_LENGTH + len(states):
            states[:] = np.frombuffer(content, np.uint8, offset=_HEADER_LENGTH)
        if content[:_HEADER_LENGTH] != boot:
            states[states != ABSENT] = UNCHECKED
        for shard, first, last in zip(self._shards, self._starts, self._ends, strict=True):
            with (self.folder / shard.name).open("ab") as file:
                if os.fstat(file.fileno()).st_size != shard.num_bytes:
                    states[first:last] = ABSENT
                    file.truncate(0)
                    file.truncate(shard.num_bytes)
        _write(path, _HEADER_LENGTH, states)
        _write(path, 0, np.frombuffer(boot, np.uint8))
        os.truncate(path, _HEADER_LENGTH + len(states))

    def _make_room(self, limit: float | None) -> int:
        """Sets the limit, and removes unused datasets; returns the bytes of those that are left."""
        used = {path: _bytes_in(path) for path in self._root.iterdir() if path.is_dir()}
        total = sum(used.values())
        if limit is None:
            limit = (shutil.disk_usage(self._root).free + total) / 2
        self._limit = limit
        wanted = sum(shard.num_bytes for shard in self._shards) - used.pop(self.folder)
        for path in sorted(used, key=_last_use):
            if total + wanted <= limit:
                break
            if _remove(path):
                total -= used[path]
        self.fits = total + wanted <= limit
        return total


def _claim(root: Path) -> None:
    """Makes the folder of the cache, or checks that it is one."""
    root.mkdir(parents=True, exist_ok=True)
    tag = root / _TAG_NAME
    # Processes that start together may all write the tag, each under a temporary name first.
    names = [path.name for path in root.iterdir() if not path.name.startswith(f".{_TAG_NAME}.")]
    is_ours = tag.exists() and tag.read_bytes() == _TAG
    known = (_TAG_NAME, _LOCK_NAME) if is_ours else ()
    for name in names:
        if name not in known and not (is_ours and _ID.fullmatch(name)):
            raise UserError(
                f"{root} cannot be the cache of remote datasets, because it holds {name}, which "
                "is not of such a cache; name an empty folder, or a new one"
            )
    if not is_ours:
        with atomic_write(tag) as file:
            file.write(_TAG)


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[int]:
    """Holds a lock between processes; yields the file, or raises TimeoutError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process holds {path}") from None
                time.sleep(0.002)
        yield file
    finally:
        os.close(file)


def _write(path: Path, start: int, array: np.ndarray) -> None:
    """Writes bytes at a place of a file, which is made if it is missing."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        view = np.ascontiguousarray(array).data.cast("B")
        while view:
            written = os.pwrite(file, view, start)
            view, start = view[written:], start + written
    finally:
        os.close(file)


def _bytes_in(folder: Path) -> int:
    """Returns the bytes that the files of a folder take on the disk."""
    return sum(512 * entry.stat().st_blocks for entry in os.scandir(folder))


def _last_use(folder: Path) -> float:
    """Returns when a dataset was opened last; 0 if its removal was cut short."""
    path = folder / _USERS_NAME
    return path.stat().st_mtime if path.exists() else 0.0


def _remove(folder: Path) -> bool:
    """Removes a dataset that no process uses; returns whether it did."""
    lock = os.open(folder / _USERS_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The states first: without them, what a kill leaves of the records counts as absent.
        for path in (folder / _STATES_NAME, *folder.glob("*.tfrecord"), folder / _USERS_NAME):
            path.unlink(missing_ok=True)
        folder.rmdir()
    except OSError:  # in use, or it holds a file that is not of this cache
        return False
    finally:
        os.close(lock)
    return True


def _boot_id() -> bytes:
    """Returns a name for this start of the system on this machine."""
    if _BOOT_ID.exists():
        name = _BOOT_ID.read_bytes().strip()
    else:
        name = f"{psutil.boot_time()} {socket.gethostname()}".encode()
    return name[:_HEADER_LENGTH].ljust(_HEADER_LENGTH)
