"""A console without the messages that libraries print at import."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

from train.config import ConfigError


def set_defaults() -> None:
    """Sets the environment variables that Keras and TensorFlow read when they are imported."""
    # Settings of the user take precedence. Level 2 hides TensorFlow's infos and warnings, and shows
    # its errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")


@contextlib.contextmanager
def hide_native_noise() -> Iterator[None]:
    """Hides what the block writes to standard error, and shows it only if the block fails.

    TensorFlow's C++ code reports oneDNN and missing CUDA drivers before it reads its log level. It
    does not use Python's `sys.stderr`, so the file descriptor itself is redirected.

    Raises:
        BaseException: whatever the block raises, after the hidden text was shown. A `ConfigError`
            is raised without the hidden text, because its message is meant for users.
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
        except ConfigError:
            raise
        except BaseException:
            held_back.seek(0)
            os.write(2, held_back.read())
            raise
        finally:
            os.close(saved)
