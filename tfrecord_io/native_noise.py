"""Hides what native libraries write to the console while they are loaded."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def hide_native_noise(*told: type[BaseException]) -> Iterator[None]:
    """Hides what the block writes to standard error, and shows it if the block fails.

    TensorFlow's C++ code reports oneDNN and missing CUDA drivers before it reads its log level. It
    does not use Python's `sys.stderr`, so the file descriptor itself is redirected. Errors of the
    types `told` are raised without the hidden text, because their message is meant for users.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        shown = False
        try:
            yield
        except BaseException as error:
            shown = not isinstance(error, told)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            if shown:
                held_back.seek(0)
                os.write(2, held_back.read())
