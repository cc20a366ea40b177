"""A read of a store that fails is made again, some times, for a while.

Stores have retries of their own. These are for what they do not notice, such as an answer that was
cut off or garbled.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tfrecord_io.errors import ChangedError, StoreError

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

NUM_ATTEMPTS = 5
_RETRY_SECONDS = 120.0


def patiently(read: Callable[[], Result], closed: threading.Event | None = None) -> Result:
    """Returns the result of a function, which is called again after a `StoreError`.

    `closed` ends the attempts when it is set.

    Raises:
        StoreError: if it fails five times, or after two minutes, or at once if a file has changed.
    """
    closed = closed or threading.Event()
    deadline = time.monotonic() + _RETRY_SECONDS
    for attempt in range(1, NUM_ATTEMPTS):
        try:
            return read()
        except ChangedError:
            raise
        except StoreError as error:
            if time.monotonic() > deadline or closed.is_set():
                raise
            _log.warning("%s; trying again (%d of %d)", error, attempt, NUM_ATTEMPTS - 1)
            closed.wait(0.1 * 4 ** (attempt - 1))
    return read()
