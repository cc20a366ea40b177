"""Starts the engine, shows the progress of a job, and returns the exit code of the command."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from pipelines import errors, workers
from pipelines.options import FLAG_NAMES, BuildOptions
from pipelines.planning.plan import ShardTask
from tfrecord_io.format import manifest
from tfrecord_io.stores.folder import Folder
from tfrecord_io.terminal import printing
from tfrecord_io.terminal.errors import StoreError

# Flags with which the job may need no local worker process.
_NEEDS_NO_WORKER = ("--runner", "--direct_running_mode")

# How often the shards are counted.
_LOCAL_SECONDS = 0.5
_REMOTE_SECONDS = 15.0


def start(options: BuildOptions) -> None:
    """Imports Beam, and starts local worker processes meanwhile if the job needs some.

    Raises:
        errors.UserError: for a flag that neither the build nor Beam knows.
    """
    needs_none = any(arg.split("=")[0] in _NEEDS_NO_WORKER for arg in options.beam_args)
    # The workers' server process imports while this one imports Beam. A worker renders the card.
    modules = ["pipelines.build_tfrecords", "pipelines.report.card"]
    workers.preload(modules, start_now=not (needs_none or options.preview.preview))
    # Beam warns of a missing optional library, and logs each worker's error, which the job raises.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    logging.getLogger().addFilter(lambda record: "apitools not found" not in record.getMessage())
    for name in ("common", "portability", "worker.data_plane"):
        logging.getLogger(f"apache_beam.runners.{name}").setLevel(logging.CRITICAL)
    # Imports create no garbage, so collecting it only costs time.
    gc.disable()
    from pipelines.engine import engine

    gc.freeze()
    gc.enable()
    # Skips the garbage collection at exit, which would take half a second.
    atexit.register(gc.freeze)
    engine.check_flags(options.beam_args, FLAG_NAMES)


@contextlib.contextmanager
def progress_bar(storage: Folder, tasks: Sequence[ShardTask], num_finished: int) -> Iterator[None]:
    """Shows the images of finished shards, the rate and the time left until the block ends.

    No engine reports images while the pipeline runs, so sidecars are looked for in the output
    folder. An earlier run has finished `num_finished` images.
    """
    left = {manifest.sidecar_name(task.shard_name): task.num_refs for task in tasks}
    total = num_finished + sum(left.values())
    stop = threading.Event()
    with printing.bar(
        desc="writing", total=total, initial=num_finished, unit=" images", smoothing=0.1
    ) as bar:

        def watch() -> None:
            while not stop.wait(_REMOTE_SECONDS if storage.remote else _LOCAL_SECONDS):
                # A store that fails here fails the build too, which has the message.
                with contextlib.suppress(StoreError):
                    done = sum(left.get(name, 0) for name in storage.names())
                    bar.update(max(0, num_finished + done - bar.n))

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        bar.update(total - bar.n)


def exit_code(command: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Calls a command with its command line, and prints its error, if there is one.

    SIGTERM, and SIGHUP of a closed terminal, end it as Ctrl-C does, which cleans up.

    Returns:
        0 if the dataset is there, 1 if the job failed, 2 for wrong usage, 130 after Ctrl-C, 143
        after SIGTERM, 129 after SIGHUP.
    """
    received = [signal.SIGINT.value]

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    ends = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    # Signals that are ignored stay so, as SIGHUP under nohup.
    numbers = [number for number in ends if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        command(argv)
    except (errors.MessageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, errors.MessageError) else 1
    except KeyboardInterrupt:
        print("\nstopped; run the same command again to resume", file=sys.stderr)
        return 128 + received[-1]
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
    return 0
