"""A folder on a disk that takes 4 ms for a random read, as network disks do: Linux as root only.

The kernel mounts it through FUSE, so what is tested meets the real page cache, `posix_fadvise` and
memory maps. Up to 12 reads are served at once, which gives at most 3,000 random reads a second. A
read that goes on where another one ended takes only its time at 500 MB/s.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

RANDOM_SECONDS = 0.004
BYTES_PER_SECOND = 500e6
_NUM_READS = 12
# Reads that wait to be served; the kernel forgets announcements beyond that.
_MOST_WAITING = 4096
_READ_LENGTH = 128 * 1024

# Requests and flags of the protocol, from linux/fuse.h.
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH = 1, 2, 3, 14, 15, 18, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 26, 27, 28, 29, 36, 42
_ASYNC_READ, _KEEP_CACHE = 1, 2
_ROOT = 1


@contextlib.contextmanager
def slow_folder(folder: Path, mount_point: Path) -> Iterator[Path]:
    """Shows the files of a folder below `mount_point`, read-only, until the block ends."""
    mount_point.mkdir(parents=True, exist_ok=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={_READ_LENGTH}"
    if libc.mount(b"slow", os.fsencode(mount_point), b"fuse", 1, options.encode()):
        raise OSError(ctypes.get_errno(), "cannot mount a slow disk", str(mount_point))
    # A process of its own, because a program that waits for its own file system could hang.
    server = multiprocessing.get_context("fork").Process(
        target=_serve, args=(device, folder), daemon=True
    )
    server.start()
    os.close(device)
    try:
        yield mount_point
    finally:
        libc.umount2(os.fsencode(mount_point), 2)  # also if a file is still open
        server.kill()
        server.join()


def _serve(device: int, folder: Path) -> None:
    files = [os.open(path, os.O_RDONLY) for path in sorted(folder.iterdir())]
    names = [path.name.encode() for path in sorted(folder.iterdir())]
    disk = _Disk(device, files, names)
    threads = [threading.Thread(target=disk.serve) for _ in range(_NUM_READS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Disk:
    def __init__(self, device: int, files: list[int], names: list[bytes]) -> None:
        self._device = device
        self._files = files
        self._names = names
        self._ends = dict.fromkeys(range(len(files)), -1)  # of the last read of each file

    def serve(self) -> None:
        """Answers requests until the disk is unmounted."""
        while True:
            try:
                request = os.read(self._device, 2 * _READ_LENGTH)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):  # a request that was taken back
                    continue
                return
            _, code, unique, node, _ = struct.unpack_from("<IIQQQ", request)
            if code in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            try:
                answer, status = self._answer(code, node, request[40:]), 0
            except OSError as error:
                answer, status = b"", -(error.errno or errno.EIO)
            with contextlib.suppress(OSError):
                head = struct.pack("<IiQ", 16 + len(answer), status, unique)
                os.writev(self._device, [head, answer])

    def _answer(self, code: int, node: int, body: bytes) -> bytes:
        if code == _READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self._read(node - _ROOT - 1, offset, size)
        if code == _INIT:
            sizes = (_READ_LENGTH, _ASYNC_READ, _MOST_WAITING, _MOST_WAITING, _READ_LENGTH, 1)
            return struct.pack("<IIIIHHII36x", 7, 31, *sizes)
        if code == _LOOKUP:
            with contextlib.suppress(ValueError):
                node = self._names.index(body.rstrip(b"\0")) + _ROOT + 1
                return struct.pack("<QQQQII", node, 0, 3600, 3600, 0, 0) + self._facts(node)
            raise OSError(errno.ENOENT, "no such file")
        if code == _GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + self._facts(node)
        if code == _READDIR:
            first = struct.unpack_from("<QQ", body)[1]
            return b"".join(
                struct.pack("<QQII", _ROOT + 1 + place, place + 1, len(name), stat.S_IFREG >> 12)
                + name.ljust(-(-len(name) // 8) * 8, b"\0")
                for place, name in enumerate(self._names[first : first + 64], first)
            )
        if code in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, _KEEP_CACHE, 0)
        if code in (_RELEASE, _RELEASEDIR, _FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "not served")

    def _read(self, place: int, offset: int, size: int) -> bytes:
        is_next, self._ends[place] = self._ends[place] == offset, offset + size
        time.sleep(size / BYTES_PER_SECOND if is_next else RANDOM_SECONDS)
        return os.pread(self._files[place], size, offset)

    def _facts(self, node: int) -> bytes:
        mode, size, seconds, nanoseconds = stat.S_IFDIR | 0o755, 0, 0, 0
        if node != _ROOT:
            found = os.fstat(self._files[node - _ROOT - 1])
            mode, size = stat.S_IFREG | 0o644, found.st_size
            seconds, nanoseconds = divmod(found.st_mtime_ns, 10**9)
        times = (seconds,) * 3 + (nanoseconds,) * 3
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, -(-size // 512), *times,
                           mode, 1, 0, 0, 0, 4096, 0)  # fmt: skip
