"""Starts the engine, shows the progress of a job, and returns the exit code of the command."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from pipelines import errors, workers
from pipelines.options import FLAG_NAMES, BuildOptions
from pipelines.planning.plan import ShardTask
from pipelines.stores import beam_flags
from pipelines.stores.output_folder import PLAN_JSON
from tfrecord_io.format import manifest
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal import printing
from tfrecord_io.terminal.errors import StoreError

# Flags with which the job may need no local worker process.
_NEEDS_NO_WORKER = ("--runner", "--direct_running_mode")

# How often the images are counted.
_LOCAL_SECONDS = 0.5
_REMOTE_SECONDS = 15.0


def start(options: BuildOptions) -> list[str]:
    """Imports Beam, and starts local worker processes meanwhile if the job needs some.

    Returns:
        the flags that are left to Beam.

    Raises:
        errors.UserError: for a flag that neither the build nor Beam knows.
    """
    # Before any worker starts: workers inherit the store settings through the environment.
    beam_args = beam_flags.use(options.beam_args)
    needs_none = any(arg.split("=")[0] in _NEEDS_NO_WORKER for arg in beam_args)
    # The workers' server process imports while this one imports Beam. A worker renders the card.
    modules = ["pipelines.build_tfrecords", "pipelines.report.card"]
    workers.preload(modules, start_now=not (needs_none or options.preview.preview))
    _import_beam()
    from pipelines.engine import engine

    beam_args = engine.check_flags(beam_args, FLAG_NAMES)
    if passed := beam_flags.for_beam_alone(beam_args):
        print(f"passed to Beam: {shlex.join(passed)}")
    return beam_args


@contextlib.contextmanager
def progress_bar(
    storage: Folder, tasks: Sequence[ShardTask], num_finished: int, record_stride: int
) -> Iterator[None]:
    """Shows the number of images done, the rate and the time left until the block ends.

    No engine reports images while the pipeline runs, so they are counted in the output folder: a
    finished shard has a sidecar, and a temporary file grows by one record per image, which has
    `record_stride` bytes. An earlier run has finished `num_finished` images.
    """
    total = num_finished + sum(task.num_refs for task in tasks)
    stop = threading.Event()
    with printing.bar(
        desc="writing", total=total, initial=num_finished, unit=" images", smoothing=0.1
    ) as bar:

        def watch() -> None:
            is_last = False
            while not is_last:
                is_last = stop.wait(_REMOTE_SECONDS if storage.remote else _LOCAL_SECONDS)
                # A store that fails here fails the build too, which has the message.
                with contextlib.suppress(StoreError):
                    done = num_finished + _count_images(storage, tasks, record_stride)
                    if is_last and not storage.exists(PLAN_JSON):
                        done = total  # the dataset has taken the place of another one
                    bar.update(min(done, total) - bar.n)

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _count_images(storage: Folder, tasks: Sequence[ShardTask], record_stride: int) -> int:
    names = set(storage.names())
    finished = [task for task in tasks if manifest.sidecar_name(task.shard_name) in names]
    done = sum(task.num_refs for task in finished)
    if storage.remote:
        return done
    written = 0
    for path in Path(storage.path(BUILD_DIR)).glob(".*.tfrecord.*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            written += path.stat().st_size
    return done + written // record_stride


def exit_code(command: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Calls a command with its command line, and prints its error, if there is one.

    Returns:
        0 if the dataset is there, 1 if the job failed, 2 for wrong usage, 130 after Ctrl-C, 143
        after SIGTERM, 129 after SIGHUP.
    """
    with _signals_as_ctrl_c() as received:
        try:
            command(argv)
        except (errors.MessageError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code if isinstance(error, errors.MessageError) else 1
        except KeyboardInterrupt:
            print("\nstopped; run the same command again to resume", file=sys.stderr)
            return 128 + (received or [signal.SIGINT])[0]
    return 0


@contextlib.contextmanager
def _signals_as_ctrl_c() -> Iterator[list[int]]:
    """Lets SIGTERM, and SIGHUP of a closed terminal, end the block as Ctrl-C does, which cleans up.

    Yields a list of the signals.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    # Signals that are ignored stay so, as SIGHUP under nohup.
    is_main = threading.current_thread() is threading.main_thread()
    ends = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    numbers = [number for number in ends if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _import_beam() -> None:
    """Imports Beam without its log messages.

    The garbage collector is off meanwhile: imports create no garbage, so collecting only costs
    time.
    """
    # Beam warns of a missing optional library, and logs each worker's error, which the job raises.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
    for name in ("common", "portability", "worker.data_plane"):
        logging.getLogger(f"apache_beam.runners.{name}").setLevel(logging.CRITICAL)
    gc.disable()
    import pipelines.engine.engine  # noqa: F401

    gc.freeze()
    gc.enable()
    # Skips the garbage collection at exit, which would take half a second.
    atexit.register(gc.freeze)
