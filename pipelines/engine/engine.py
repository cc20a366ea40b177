"""The Beam side of the job: its two steps, the engine that runs them, and that engine's errors.

Both steps write their results to files and are safe to repeat: an engine may retry a task, or run
it twice at the same time.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import logging
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import grpc
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    TestOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineRunner

from pipelines import errors, workers
from pipelines.options import workers_of
from pipelines.planning.plan import ShardTask
from pipelines.shards.build import Build
from pipelines.shards.finish import finish_dataset
from pipelines.shards.write import TaskWriter, write_in_processes
from tfrecord_io.terminal import flags


def make_pipeline(beam_args: Sequence[str]) -> beam.Pipeline:
    """Returns an empty pipeline on the chosen engine: by default, all cores of this machine.

    Raises:
        errors.UserError: for a mode that loses records, or flags that Beam refuses.
    """
    options = PipelineOptions(list(beam_args), save_main_session=False)
    is_here = (where := workers_of(options.view_as(StandardOptions).runner)) == "here"
    direct = options.view_as(DirectOptions)
    if is_here and direct.direct_running_mode == "multi_threading":
        raise errors.UserError(
            "--direct_running_mode=multi_threading silently loses records (apache-beam 2.77); "
            "leave the flag out to get one process per core"
        )
    chosen = options.get_all_options()
    package = ("sdk_container_image", "setup_file", "extra_packages")
    if where == "dataflow" and not any(chosen[name] for name in package):
        raise errors.UserError(
            "Dataflow's workers need this package: give --sdk_container_image, an image built from "
            "docker/pipeline.Dockerfile, or --setup_file=./setup.py; docs/clusters.md explains both"
        )
    if is_here:
        direct.direct_running_mode, direct.direct_num_workers = "in_memory", 1
    else:
        # A remote engine logs the job's address at INFO. There the type checker logs too much, and
        # workers within this process log after its last message.
        logging.getLogger().setLevel(logging.INFO)
        for name in ("typehints", "runners.worker"):
            logging.getLogger(f"apache_beam.{name}").setLevel(logging.WARNING)
        # With --setup_file, Beam runs setup.py to make an archive of this package for the workers.
        os.environ["SCAN_TFRECORDS_WORKER"] = "1"
    try:
        # Beam's `DirectRunner` first tries to download another engine, and hangs behind a proxy
        # that does not answer; then it falls back to FnApiRunner, which is used here directly. It
        # runs in this process and opens no port.
        pipeline = beam.Pipeline(FnApiRunner() if is_here else None, options=options)
    except Exception as error:
        raise errors.UserError(f"Beam refuses {shlex.join(beam_args)}: {error}") from None
    # Beam makes a temporary folder for a pipeline and removes it after the run, but a complete
    # output needs no run.
    atexit.register(shutil.rmtree, pipeline.local_tempdir, ignore_errors=True)
    return pipeline


def num_processes(beam_args: Sequence[str]) -> int | None:
    """Returns the number of local worker processes; by default one per core.

    It is None if Beam's own workers write the shards: those of a remote engine, or the launcher
    itself with `--direct_running_mode=in_memory`.
    """
    # Of two flags of the same name the last one counts, so these are defaults in place of Beam's.
    defaults = ["--direct_running_mode=multi_processing", "--direct_num_workers=0"]
    options = PipelineOptions([*defaults, *beam_args])
    chosen = options.view_as(DirectOptions)
    is_here = workers_of(options.view_as(StandardOptions).runner) == "here"
    if chosen.direct_running_mode == "in_memory" or not is_here:
        return None
    # For 0 Beam would count all cores of the machine, also those that this process may not use, as
    # in a container.
    if chosen.direct_num_workers < 1:
        return len(os.sched_getaffinity(0))
    return chosen.direct_num_workers


def returns_early(options: PipelineOptions) -> bool:
    """Returns whether the pipeline's run ends before the job: a template, dry run or no waiting."""
    return bool(
        options.view_as(GoogleCloudOptions).template_location
        or options.view_as(TestOptions).dry_run
        or options.view_as(StandardOptions).no_wait_until_finish
    )


@contextlib.contextmanager
def clear_errors(runner: PipelineRunner) -> Iterator[None]:
    """Turns an error of the engine that runs in the block into a readable message.

    An error that a worker raised for the user keeps its message. Any other error of a remote engine
    becomes a `BuildError` with the engine's message, and one of the local engine is raised
    unchanged, because it is a bug.

    Raises:
        errors.BuildError: with the message for the user.
        KeyboardInterrupt: if the user stopped the job.
    """
    try:
        yield
    except Exception as error:
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        if any(isinstance(link, KeyboardInterrupt) for link in chain):
            raise KeyboardInterrupt from None  # Beam turns it into a RuntimeError
        known = [str(link) for link in chain if isinstance(link, errors.MessageError)]
        if known:
            # Beam adds the name of the step to a worker's message.
            raise errors.BuildError(re.sub(r" \[while running '.*'\]$", "", known[0])) from error
        if isinstance(runner, FnApiRunner):
            raise
        text = error.details() if isinstance(error, grpc.Call) else str(error)
        lines = [line.strip() for line in (text or type(error).__name__).splitlines()]
        # The last line usually names the cause.
        shown = "\n  ".join(dict.fromkeys([lines[0], lines[-1]]))
        raise errors.BuildError(
            f"{type(runner).__name__} did not finish the job: {shown}"
        ) from error


def check_flags(beam_args: Sequence[str], own_flags: Iterable[str]) -> None:
    """Refuses a flag that neither the build nor Beam knows; Beam alone would only warn.

    Raises:
        errors.UserError: naming the flag and the most similar known one.
    """
    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    # Otherwise the parser prints all of Beam's flags with each error.
    parsers[0].usage = "%(prog)s [flags]; see --help"
    found, unknown = parsers[0].parse_known_args(list(beam_args))
    if unknown:
        flag = unknown[0].split("=")[0]
        if not flag.startswith("-"):
            raise errors.UserError(f"unknown argument {flag}; did you mean --input {flag}?")
        known = [*own_flags, *(f"--{name}" for name in vars(found))]
        raise errors.UserError(f"unknown flag {flag}{flags.meant(flag, known) or '; see --help'}")


def add_steps(
    pipeline: beam.Pipeline,
    tasks: Sequence[ShardTask],
    build: Build,
    num_processes: int | None,
) -> None:
    """Adds to an empty pipeline the steps that write shards and finish the dataset.

    `num_processes` is the number of local worker processes, for the engine in this process; None if
    the engine's own workers write the shards.
    """
    if num_processes is None:
        written = (
            pipeline | "Tasks" >> beam.Create(tasks) | "WriteShards" >> beam.ParDo(_Write(build))
        )
        _ = (
            written
            | "Gather" >> beam.GroupByKey()
            | "FinishDataset" >> beam.Map(lambda _: finish_dataset(build))
        )
        return
    # The engine in this process would write the shards one after another, so all tasks are one
    # element.
    written = (
        pipeline
        | "Tasks" >> beam.Create([tasks])
        | "WriteShards" >> beam.Map(write_in_processes, build, num_processes)
    )
    _ = written | "FinishDataset" >> beam.Map(_finish_here, build)


class _Write(beam.DoFn):
    """Writes each shard in the process to which Beam gives its task."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def setup(self) -> None:
        self._writer = TaskWriter(self._build)

    def process(self, task: ShardTask) -> Iterator[tuple[str, int]]:
        if sidecar := self._writer.write(task):
            # The page of the engine shows it while the job runs.
            Metrics.counter("build", "images").inc(sidecar.num_examples)
        yield self._build.draft.name, task.index

    def finish_bundle(self) -> None:
        # Beam keeps the yielded elements only if the bundle succeeds, so it waits for the files.
        self._writer.wait()

    def teardown(self) -> None:
        self._writer.close()


def _finish_here(_: object, build: Build) -> None:
    # A worker process does not hold the listing in memory, as this one does.
    list(workers.results(finish_dataset, [(build,)], 1))
