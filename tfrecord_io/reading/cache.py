"""The records of a remote dataset that this machine keeps on its disk, shared by its processes.

    CACHE_DIR/CACHEDIR.TAG     says what this folder is: another that is not empty is refused
    CACHE_DIR/lock             bytes on the disk or reserved for it, of all datasets; locked while
                               that changes
    CACHE_DIR/ID/lock          locked by each process that uses the dataset
    CACHE_DIR/ID/records       of all shards in the manifest's order, with holes for absent ones
    CACHE_DIR/ID/states        a byte a record

ID is a hash of the manifest's digests of the shards, and of the URLs and versions (ETags) of those
on the store: records of a shard that was replaced under the old manifest never mix with older ones.
A record is written first and marked second, so a process can be killed at any moment. After a crash
of the system, marks may have reached the disk and their records not, so each process checks a
record before it uses it. Records are images of patients: folders and files are their owner's alone,
and no link is followed.

No record of a dataset in use is ever removed: in random orders without repetition, a cache that
makes room for newer records serves no more than one that keeps what it has.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import mmap
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tfrecord_io.format.manifest import Manifest
from tfrecord_io.reading.order import check_type
from tfrecord_io.stores.files import atomic_write, open_private
from tfrecord_io.terminal.errors import UserError

if sys.platform != "win32":  # where local datasets can be read, but no remote ones
    import fcntl

#: States of a record.
ABSENT, PRESENT = 0, 1

_log = logging.getLogger(__name__)

_LOCK, _RECORDS, _STATES, _TAG_NAME = "lock", "records", "states", "CACHEDIR.TAG"
# The first line is that of bford.info/cachedir, by which backups know such folders.
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\nRecords of remote datasets: tfrecord_io\n"
_ID = re.compile(r"[0-9a-f]{64}")

_PAGE = 4096
# Taken from the limit at once: the lock between processes costs as much as writing a record.
_RESERVED_BYTES = 4 << 20
_OPEN_SECONDS = 60.0
_STORE_SECONDS = 1.0


class DatasetCache:
    """The records of one dataset on this machine's disk, in use as long as this object exists.

    Attributes:
        path: of the file of records.
        memory: uint8 [(records + 1) * stride], read-only: that file, mapped into memory.
        states: uint8 [records], read-only: the state of each record of the dataset. Other
            processes and threads change it at any time.
        is_full: whether there is no room for another record.
    """

    def __init__(
        self,
        manifest: Manifest,
        versions: str,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_gb: float | None = None,
    ) -> None:
        """Opens the cache of a dataset, and makes room by removing unused datasets.

        `versions` is a digest of the URLs and versions of the shards on their store. `cache_dir`
        is the folder of all caches, by default that of the user. It may take `cache_gb` 10^9 bytes,
        by default half of the free space there.

        Raises:
            UserError: if the folder belongs to another user or holds anything else than a cache.
            OSError: if no dataset can be kept there.
        """
        if cache_gb is not None:
            check_type("cache_gb", cache_gb, float)
            if not cache_gb >= 0:
                raise ValueError(f"cache_gb must be at least 0, received {cache_gb}")
        if cache_dir is None:
            cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tfrecord_io")
        digests = [(shard.name, shard.num_bytes, shard.sha256) for shard in manifest.shards]
        identity = hashlib.sha256(repr((_RECORDS, digests, versions)).encode()).hexdigest()
        try:
            self._root = Path(cache_dir).expanduser().resolve()
        except RuntimeError as error:  # of a user without a home folder
            raise OSError(f"{error} Name a folder with cache_dir") from None
        self.path = self._root / identity / _RECORDS
        self._stride = manifest.layout.stride
        self._num_bytes, self._num_records = manifest.num_bytes, manifest.num_examples
        self.is_full, self._reserved, self._mutex = False, 0, threading.Lock()
        self._files: dict[str, int] = {}
        _claim(self._root)
        with _locked(self._root / _LOCK, _OPEN_SECONDS) as total:
            self.path.parent.mkdir(0o700, exist_ok=True)
            os.close(open_private(self.path.parent, os.O_RDONLY | os.O_DIRECTORY))
            self._open()
            os.pwrite(total, self._make_room(cache_gb).to_bytes(8, "little"), 0)

    def __del__(self) -> None:
        for file in getattr(self, "_files", {}).values():
            os.close(file)

    def describe(self) -> str:
        """Returns a sentence on how much of the dataset is on the disk."""
        held = int((self.states != ABSENT).sum()) * self._stride
        return (
            f"{held / 1e9:.2f} of {self._num_bytes / 1e9:.2f} GB of the dataset are in "
            f"{self._root}, which may take {self._limit / 1e9:.2f} GB"
        )

    def keep(self, first: int, records: np.ndarray) -> bool:
        """Writes neighbours, uint8 [records, stride], to the disk, as many as there is room for.

        Returns whether all of them are there now, from the place `first` in `states` on.
        """
        # Pages that are used in part. Those of a dataset that fits are all used in the end.
        partial = 0 if self._fits else 2 * _PAGE
        try:
            with self._mutex:
                if self._reserved < records.nbytes + partial:
                    self._reserve(records.nbytes + partial)
                kept = records[: max(0, (self._reserved - partial) // self._stride)]
                self.is_full |= len(kept) < len(records)
                if not (self.states[first : first + len(kept)] == PRESENT).all():
                    self._reserved -= kept.nbytes + partial
                    _write(self._files[_RECORDS], first * self._stride, kept)
                    self.mark(first, len(kept), PRESENT)
                return len(kept) == len(records)
        except TimeoutError:
            return False  # a process that holds the lock was stopped
        except OSError as error:
            warn_once(f"{self._root} keeps no more records: {error}")
            self.is_full = True
            return False

    def _reserve(self, needed: int) -> None:
        """Takes so many free bytes for this process, or more at once."""
        with _locked(self._root / _LOCK, _STORE_SECONDS) as total:
            used = int.from_bytes(os.pread(total, 8, 0), "little")
            room = int(min(max(needed, _RESERVED_BYTES), max(0, self._limit - used)))
            os.pwrite(total, (used + room).to_bytes(8, "little"), 0)
            self._reserved += room

    def mark(self, first: int, count: int, state: int) -> None:
        """Writes the state of neighbours; through the map, a full disk would end the process."""
        _write(self._files[_STATES], first, np.full(count, state, np.uint8))

    def _open(self) -> None:
        """Takes the dataset into use; the folder of the cache is locked."""
        for name in (_LOCK, _RECORDS, _STATES):
            self._files[name] = open_private(self.path.with_name(name), os.O_RDWR | os.O_CREAT)
        lock, records, states = self._files.values()
        with contextlib.suppress(BlockingIOError):  # another process uses it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            length = (self._num_records + 1) * self._stride
            if os.fstat(records).st_size != length or os.fstat(states).st_size != self._num_records:
                os.truncate(states, 0)
                # Not to 0 bytes first: ext4 then writes all that follows when any reader closes it.
                os.truncate(records, length)
                os.truncate(states, self._num_records)
        os.utime(self.path.parent)
        fcntl.flock(lock, fcntl.LOCK_SH)
        self.memory = np.frombuffer(mmap.mmap(records, 0, prot=mmap.PROT_READ), np.uint8)
        self.states = np.frombuffer(mmap.mmap(states, 0, prot=mmap.PROT_READ), np.uint8)

    def _make_room(self, cache_gb: float | None) -> int:
        """Sets the limit, and removes unused datasets; returns the bytes of those that are left."""
        used = {
            Path(folder): sum(
                512 * file.stat(follow_symlinks=False).st_blocks for file in os.scandir(folder)
            )
            for folder in os.scandir(self._root)
            if _ID.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False)
        }
        total = sum(used.values())
        free = shutil.disk_usage(self._root).free
        self._limit = (free + total) / 2 if cache_gb is None else cache_gb * 1e9
        wanted = self._num_bytes - used.pop(self.path.parent)
        for path in sorted(used, key=os.path.getmtime):  # when it was opened last
            if total + wanted <= self._limit:
                break
            if _remove(path):
                total -= used[path]
        self._fits = total + wanted <= self._limit
        return total


@functools.cache
def warn_once(message: str) -> None:
    """Logs a warning for the first time in this process: each epoch opens the dataset again."""
    _log.warning("%s", message)


def _claim(root: Path) -> None:
    """Makes the folder of the cache, or checks that it is one of this user."""
    root.mkdir(0o700, parents=True, exist_ok=True)  # an old one may be shared on purpose
    tag = root / _TAG_NAME
    try:
        owner = tag.lstat().st_uid
    except FileNotFoundError:
        owner = os.geteuid()
    except PermissionError:
        owner = root.stat().st_uid
    if owner != os.geteuid():
        raise UserError(
            f"the cache {root} belongs to another user (user id {owner}); give each a cache of "
            "their own with cache_dir (--cache_dir)"
        )
    # Processes that start together may all write the tag, each under a temporary name first.
    names = [path.name for path in root.iterdir() if not path.name.startswith(f".{_TAG_NAME}.")]
    if tag.is_file() and tag.read_bytes() == _TAG:
        return
    if names:
        raise UserError(
            f"the cache {root} holds {names[0]}, which is not of a cache; name an empty folder"
        )
    with atomic_write(tag, is_private=True) as file:
        file.write(_TAG)


@contextlib.contextmanager
def _locked(path: Path, seconds: float) -> Iterator[int]:
    """Holds a lock between processes; yields the file, or raises TimeoutError."""
    file = open_private(path, os.O_RDWR | os.O_CREAT)
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


def _write(file: int, start: int, array: np.ndarray) -> None:
    """Writes all of an array at a place of a file."""
    view = np.ascontiguousarray(array).data.cast("B")
    while view:
        written = os.pwrite(file, view, start)
        view, start = view[written:], start + written


def _remove(folder: Path) -> bool:
    """Removes a dataset that no process uses; returns whether it did."""
    try:
        with _locked(folder / _LOCK, seconds=0):
            # The states first: without them, what a kill leaves of the records counts as absent.
            for name in (_STATES, _RECORDS, _LOCK):
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()
    except OSError:  # in use, or it holds a file that is not of this cache
        return False
    return True
