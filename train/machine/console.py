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

from tfrecord_io.terminal.command import Command
from tfrecord_io.terminal.errors import UserError

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
    has_jax, has_tensorflow = map(importlib.util.find_spec, ("jax", "tensorflow"))
    os.environ.setdefault(
        "KERAS_BACKEND", "jax" if has_jax and not has_tensorflow else "tensorflow"
    )


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

    Only `cleanups` are done before. Python's own KeyboardInterrupt can get lost: Python only prints
    it if it is raised while an object is destroyed, and TensorFlow turns it into another error
    while it builds a graph.
    """
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in ends}
    defaults = (signal.default_int_handler, signal.SIG_DFL)
    numbers = [number for number, handler in handlers.items() if handler in defaults]
    if not numbers or threading.current_thread() is not threading.main_thread():
        yield
        return
    terminal = os.dup(2)  # standard error may be hidden when the signal comes

    def end(number: int, frame: FrameType | None) -> None:
        os.write(terminal, b"stopped; run the same command again to continue\n")
        for cleanup in reversed(cleanups):
            with contextlib.suppress(Exception):
                cleanup()
        os._exit(128 + number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, handlers[number])
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


def check_backend(backend: str) -> None:
    """Refuses a backend of Keras that cannot train here.

    Raises:
        UserError: if it is neither TensorFlow nor JAX, or is not installed.
    """
    if backend not in ("tensorflow", "jax"):
        raise UserError(
            f"KERAS_BACKEND={backend} is not supported; use tensorflow or jax. PyTorch reads the "
            "data with tfrecord_io.make_batches (docs/reader.md)"
        )
    if importlib.util.find_spec(backend) is None:
        extra = "train" if backend == "tensorflow" else "jax"
        raise UserError(
            f"{backend}, on which Keras is to run, is not installed; run pip install "
            f"'scan-tfrecords[{extra}]', or name another backend with KERAS_BACKEND"
        )


@contextlib.contextmanager
def hide_native_noise() -> Iterator[None]:
    """Hides what the block writes to standard error, and shows it if the block fails.

    TensorFlow's C++ code reports oneDNN and missing CUDA drivers before it reads its log level. It
    does not use Python's `sys.stderr`, so the file descriptor itself is redirected. After a
    `UserError`, whose message is meant for users, the text stays hidden.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        shown = False
        try:
            yield
        except BaseException as error:
            shown = not isinstance(error, UserError)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            if shown:
                hidden.seek(0)
                os.write(2, hidden.read())


def make_folder(flag: str, folder: Path) -> None:
    """Makes the folder that a flag names.

    Raises:
        UserError: if it cannot be made, because a file has its name, for example.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{flag} {folder} cannot be a folder: {error.strerror}") from None


def list_files(inputs: Sequence[Path]) -> list[Path]:
    """Returns the files named, and those in the folders named, sorted, each once.

    Files and folders that are hidden are left out, unless they are named.
    """
    # A file may be named beside the folder that it is in. Two links to one file are two files.
    once: dict[Path, Path] = {}
    for path in inputs:
        if not path.exists():
            raise UserError(f"--input {path}: there is no such file or folder")
        if not (path.is_dir() or path.is_file()):
            raise UserError(
                f"--input {path}: expected a file or folder, received a pipe or a device; write "
                "what it gives into a file first"
            )
        found = _files_in(path) if path.is_dir() else [path]
        if not found:
            raise UserError(f"--input {path}: there is no file in this folder")
        for file in found:
            once.setdefault(file.parent.resolve() / file.name, file)
    return list(once.values())


def _files_in(folder: Path) -> list[Path]:
    """Returns the files below a folder, sorted, without hidden ones, pipes and devices.

    Links that lead nowhere or to a folder are among them, because a scan may be missing there.
    """

    def fail(error: OSError) -> None:
        # By default os.walk skips a folder that it cannot list.
        raise UserError(f"--input {error.filename} cannot be listed: {error.strerror}")

    found: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = [Path(root, name) for name in (*folders, *names) if not name.startswith(".")]
        found += [path for path in here if path.is_file() or path.is_symlink()]
    return sorted(found)
