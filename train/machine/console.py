"""What the commands of the trainer share: a quiet console, stages, and Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import importlib.util
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import Command

#: What is done before Ctrl-C or SIGTERM ends the process, the last one first.
cleanups: list[Callable[[], object]] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerCommand(Command):
    """A command of the trainer: Keras finds its settings, and Ctrl-C ends the process at once."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        set_defaults()
        with ended_by_interrupts():
            return super().__call__(argv)


def set_defaults() -> None:
    """Sets what Keras and TensorFlow read when they are imported, unless the user has set it.

    The backend is TensorFlow, or JAX where only that is installed.
    """
    # If a mapped shard is cut off while it is read, the kernel ends the process with SIGBUS; this
    # prints where.
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors alone
    # On a CPU, a step gets its memory from TensorFlow, which keeps it, instead of from the system,
    # which clears each page first: up to a third of the processor time.
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
    has_jax, has_tensorflow = map(importlib.util.find_spec, ("jax", "tensorflow"))
    backend = "jax" if has_jax and not has_tensorflow else "tensorflow"
    os.environ.setdefault("KERAS_BACKEND", backend)


@contextlib.contextmanager
def cleaned_up(cleanup: Callable[[], object]) -> Iterator[None]:
    """Calls a function at the end of the block, also if Ctrl-C or SIGTERM ends the process."""
    cleanups.append(cleanup)
    try:
        yield
    finally:
        cleanup()
        cleanups.remove(cleanup)


@contextlib.contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Makes Ctrl-C, SIGTERM and SIGHUP in the block end this process, with 128 and their number.

    Only `cleanups` are done before. A KeyboardInterrupt can get lost: Python only prints it while
    an object is destroyed, and TensorFlow turns it into another error while it builds a graph.
    """
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    defaults = (signal.default_int_handler, signal.SIG_DFL)
    handlers = {
        number: handler for number in ends if (handler := signal.getsignal(number)) in defaults
    }
    if not handlers or threading.current_thread() is not threading.main_thread():
        yield
        return
    terminal = os.dup(2)  # standard error may be hidden when the signal comes

    def end(number: int, frame: FrameType | None) -> None:
        os.write(terminal, b"stopped; run the same command again to continue\n")
        for cleanup in reversed(cleanups):
            with contextlib.suppress(Exception):
                cleanup()
        os._exit(128 + number)

    for number in handlers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(terminal)


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Prints the name of a block and its seconds when it is done."""
    started = time.monotonic()
    yield
    print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)


def warn(text: str) -> None:
    """Prints a warning to standard error."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def hide_native_noise() -> Iterator[None]:
    """Hides what the block writes to standard error, and shows it if the block fails.

    TensorFlow's C++ code reports oneDNN and missing CUDA drivers before it reads its log level. It
    writes to the file descriptor, not to Python's `sys.stderr`. After a `UserError`, whose message
    is meant for users, the text stays hidden.
    """
    sys.stderr.flush()
    saved, text = os.dup(2), b""
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException as error:
            sys.stderr.flush()
            hidden.seek(0)
            text = b"" if isinstance(error, UserError) else hidden.read()
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            os.write(2, text)


def make_folder(flag: str, folder: Path) -> None:
    """Makes the folder that a flag names; raises UserError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{flag} {folder} cannot be a folder: {error.strerror}") from None


def list_files(inputs: Sequence[Path]) -> list[Path]:
    """Returns the files named, and those in the folders named, sorted, each once.

    Hidden files and folders are left out, unless they are named. Links that lead nowhere or to a
    folder are among the files, because a scan may be missing there.

    Raises:
        UserError: if there is no such file or folder, it holds none, or it cannot be listed.
    """

    def fail(error: OSError) -> None:
        # By default os.walk skips a folder that it cannot list.
        raise UserError(f"--input {error.filename} cannot be listed: {error.strerror}")

    # A file may be named beside the folder that it is in. Two links to one file are two files.
    once: dict[Path, Path] = {}
    for path in inputs:
        found = [path] if path.is_file() else []
        for root, folders, names in os.walk(path, onerror=fail) if path.is_dir() else ():
            folders[:] = [name for name in folders if not name.startswith(".")]
            here = [Path(root, name) for name in (*folders, *names) if not name.startswith(".")]
            found += [file for file in here if file.is_file() or file.is_symlink()]
        if not found:
            raise UserError(f"--input {path}: expected a file, or a folder of files; found none")
        for file in sorted(found):
            once.setdefault(file.parent.resolve() / file.name, file)
    return list(once.values())
