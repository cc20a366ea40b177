"""A console without the messages that libraries print at import."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from tfrecord_io import printing
from train.errors import ConfigError


def set_defaults() -> None:
    """Sets the environment variables that Keras and TensorFlow read when they are imported.

    The backend is TensorFlow, or JAX where only that is installed. A crash of native code then
    prints where it was: if a mapped shard is cut off while it is read, the kernel ends the process
    with SIGBUS, and the shell would say `Bus error` at most.
    """
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    # Settings of the user take precedence. Level 2 hides TensorFlow's infos and warnings, and shows
    # its errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    only_jax = _is_installed("jax") and not _is_installed("tensorflow")
    os.environ.setdefault("KERAS_BACKEND", "jax" if only_jax else "tensorflow")


@contextlib.contextmanager
def clear_interrupts() -> Iterator[None]:
    """Makes Ctrl-C end the block with KeyboardInterrupt, even if it would be lost.

    Python only prints an exception that is raised while an object is destroyed, such as a progress
    bar. TensorFlow can turn it into another error while it builds a graph.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    was_interrupted = False
    previous_hook = sys.unraisablehook

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        signal.default_int_handler(number, frame)

    def repeat(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            previous_hook(unraisable)
            return
        # A little later, because in here it would be lost again.
        timer = threading.Timer(0.01, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = repeat
    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if was_interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = previous_hook


def check_backend(backend: str) -> None:
    """Refuses a backend of Keras that cannot train here.

    Raises:
        ConfigError: if it is neither TensorFlow nor JAX, or is not installed.
    """
    if backend not in ("tensorflow", "jax"):
        raise ConfigError(
            f"KERAS_BACKEND={backend} is not supported; use tensorflow or jax. PyTorch reads the "
            "data with tfrecord_io.make_batches (docs/reader.md)"
        )
    if not _is_installed(backend):
        extra = "train" if backend == "tensorflow" else "jax"
        raise ConfigError(
            f"{backend}, on which Keras is to run, is not installed; run pip install '.[{extra}]' "
            "in the clone of this project, or name another backend with KERAS_BACKEND"
        )


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def hide_native_noise() -> contextlib.AbstractContextManager[None]:
    """Hides what a block writes to standard error, and shows it only if the block fails.

    A `ConfigError` is raised without the hidden text, because its message is meant for users.
    """
    return printing.hide_native_noise(ConfigError)
