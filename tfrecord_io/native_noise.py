"""Hides what native libraries write to the console while they are loaded."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def hide_native_noise(*told: type[BaseException]) -> Iterator[None]:
    """Hides what the block writes to standard error, and shows it only if the block fails.

    TensorFlow's C++ code reports oneDNN and missing CUDA drivers before it reads its log level. It
    does not use Python's `sys.stderr`, so the file descriptor itself is redirected.

    Args:
        *told: errors that are raised without the hidden text, because their message is meant for
            users.

    Raises:
        BaseException: whatever the block raises, after the hidden text was shown.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held_back:
        saved = os.dup(2)
        try:
            os.dup2(held_back.fileno(), 2)
            try:
                yield
            finally:
                sys.stderr.flush()
                os.dup2(saved, 2)
        except told:
            raise
        except BaseException:
            held_back.seek(0)
            os.write(2, held_back.read())
            raise
        finally:
            os.close(saved)
