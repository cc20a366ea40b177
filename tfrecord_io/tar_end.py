"""Checks that nothing but zeros follows the members of a tar."""

from __future__ import annotations

import tarfile
from typing import IO

_BLOCK_BYTES = 4 * 1024 * 1024


def check_tar_end(file: IO[bytes], end: int) -> None:
    """Refuses a tar that is cut off, damaged between two members, or followed by other data.

    tarfile stops at a block of zeros, which marks the end, and also at a damaged header. Only zeros
    may follow the end, as padding.

    Args:
        file: the tar, seekable.
        end: where tarfile stopped.

    Raises:
        tarfile.ReadError: if members may be missing.
    """
    file.seek(end)
    block = file.read(tarfile.BLOCKSIZE)
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it is cut off: it has no end mark")
    if block.strip(b"\0"):
        raise tarfile.ReadError(f"it is damaged at byte {end:,}")
    while block := file.read(_BLOCK_BYTES):
        if block.strip(b"\0"):
            raise tarfile.ReadError(
                f"it ends at byte {end:,} but other data follows; if archives were joined, "
                "unpack them one by one and give the folder"
            )
