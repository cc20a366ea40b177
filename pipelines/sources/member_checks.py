"""Compares each member of an archive with its checksum once, whatever threads read it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Checks:
    """The members of an archive that were compared with their checksums, by any thread."""

    def __init__(self) -> None:
        self._done: set[int] = set()
        self._locks: dict[int, threading.Lock] = {}

    def once(self, place: int, check: Callable[[], object]) -> None:
        """Calls a function, unless it has returned for this member; other threads wait for it.

        Args:
            place: where the member is in the archive.
            check: compares the member; raises if it is damaged.
        """
        with self._locks.setdefault(place, threading.Lock()):
            if place not in self._done:
                check()
                self._done.add(place)
