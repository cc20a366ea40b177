"""Runs a job as a command: starts the engine, shows the progress, and returns the exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import logging
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from pipelines import errors, workers
from pipelines.engine.job import (
    Job,
    copied_from,
    prepared,
    require_finished,
    was_finished_elsewhere,
)
from pipelines.engine.preview import print_preview
from pipelines.options import BuildOptions, flag_names
from pipelines.planning.plan import ShardTask
from pipelines.report import summary
from pipelines.stores import beam_flags
from tfrecord_io.format import manifest
from tfrecord_io.stores.folder import BUILD_DIR, Folder
from tfrecord_io.terminal import printing, redaction

# Beam is imported inside functions: each local worker imports this module and does not need Beam.
if TYPE_CHECKING:
    import apache_beam as beam

# Flags with which the job may need no local worker process.
_NEEDS_NO_WORKER = ("--runner", "--direct_running_mode")

# How often the images are counted.
_LOCAL_SECONDS = 0.5
_REMOTE_SECONDS = 15.0

#: Runs a job in an empty pipeline, with a number of local worker processes.
Run = Callable[[Job, "beam.Pipeline", int | None], None]


def launch(options: BuildOptions, run: Run) -> None:
    """Prepares a job, has `run` run it, and prints what became of it."""
    # Before any worker starts: workers inherit the store settings through the environment.
    beam_args = beam_flags.use(options.beam_args)
    # The workers' server process imports while this one imports Beam. A worker renders the card.
    workers.set_modules(["pipelines.build_tfrecords", "pipelines.report.card"])
    needs_none = any(arg.split("=")[0] in _NEEDS_NO_WORKER for arg in beam_args)
    if not (needs_none or options.output.preview):
        workers.start_ahead()
    _import_beam()
    from pipelines.engine import engine

    engine.check_flags(beam_args, flag_names())
    if passed := beam_flags.for_beam_alone(beam_args):
        print(f"passed to Beam: {shlex.join(passed)}")
    if options.output.preview:
        print_preview(options, engine.num_processes(beam_args) or 1)
        return
    pipeline, output = engine.make_pipeline(beam_args), options.output.output
    with prepared(options) as job:
        if job is None:
            summary.print_complete(output)
            return
        try:
            stride = job.build.draft.layout.stride
            with progress_bar(job.build.output, job.todo, job.num_finished, stride):
                run(job, pipeline, engine.num_processes(beam_args))
        except (errors.BuildError, errors.StoreError):
            if not was_finished_elsewhere(job):
                raise
            summary.print_complete(output)
            return
        if engine.returns_early(pipeline.options):
            print(f"not waiting for the job; when it is done, {output} has a manifest.json")
            return
        require_finished(job)
        copied = copied_from(job.build)
    summary.print_built(output, time.monotonic() - job.started, job.num_finished, copied)


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
                done = num_finished + _count_images(storage, tasks, record_stride)
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

    All that is printed goes without secrets and, with `--anonymize`, without the input's paths.

    Returns:
        0 if the dataset is there, 1 if the job failed, 2 for wrong usage, 130 after Ctrl-C, 143
        after SIGTERM.
    """
    private = (
        _values(argv, "--input", "--labels", "--exclude") if _values(argv, "--anonymize") else ()
    )
    with redaction.redacted_output(private), _sigterm_as_ctrl_c() as received:
        try:
            command(argv)
        except (errors.UserError, manifest.ManifestError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except (errors.ToldError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nstopped; run the same command again to resume", file=sys.stderr)
            return 128 + (received or [signal.SIGINT])[0]
    return 0


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[list[int]]:
    """Lets SIGTERM end the block as Ctrl-C does, which cleans up; yields a list of the signals."""
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield received
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _values(argv: Sequence[str], *flags: str) -> list[str]:
    """Returns the values of flags, which are not parsed yet."""
    words = [*argv, ""]
    return [
        word.partition("=")[2] or following
        for word, following in itertools.pairwise(words)
        if word.partition("=")[0] in flags
    ]


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
