"""A console that shows what the user asked for, and nothing of what libraries say at import."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import tempfile
from collections.abc import Iterator

from train.config import ConfigError


def set_defaults() -> None:
    """Sets the environment variables that Keras and TensorFlow read when they are imported.

    Also has a crash of native code say where it was. The kernel ends a process with SIGBUS that
    reads a mapped shard which was cut off meanwhile, and the shell would say `Bus error` at most.
    """
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    # What a user has set stays. TensorFlow counts 0 all, 1 no info, 2 no warnings, 3 no errors;
    # errors stay.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")


@contextlib.contextmanager
def hide_native_noise() -> Iterator[None]:
    """Holds back what is written to the error stream, and shows it only if the block fails.

    TensorFlow's C++ code writes about oneDNN and missing CUDA drivers before its log level is
    read, past Python's `sys.stderr`: only the file descriptor can be turned away.

    Raises:
        BaseException: whatever the block raises, after what it wrote has been shown; a message
            made for users (`ConfigError`) comes without.
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
