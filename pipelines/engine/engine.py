"""The Beam side of the job: its two steps, the engine that runs them, and that engine's errors.

Both steps write their results to files and are safe to repeat: an engine may retry a task, or run
it twice at the same time.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import importlib.util
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
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
from pipelines.stores import beam_flags
from tfrecord_io.terminal import flags

#: Seconds a job server has to answer. Beam alone would try six times, for a minute each.
_JOB_SERVER_SECONDS = 20.0


def make_pipeline(beam_args: Sequence[str]) -> beam.Pipeline:
    """Returns an empty pipeline on the chosen engine: by default, all cores of this machine.

    Raises:
        errors.UserError: for a mode that loses records, or flags that Beam refuses.
        errors.BuildError: if the job server does not answer.
    """
    options = PipelineOptions(list(beam_args), save_main_session=False)
    if (where := workers_of(options.view_as(StandardOptions).runner)) != "here":
        # A remote engine logs the job's address at INFO. There the type checker logs too much, and
        # workers within this process log after its last message.
        logging.getLogger().setLevel(logging.INFO)
        for name in ("typehints", "runners.worker"):
            logging.getLogger(f"apache_beam.{name}").setLevel(logging.WARNING)
        if where == "dataflow":
            _require_package(options.get_all_options())
        _require_job_server(options.view_as(PortableOptions).job_endpoint)
        # With --setup_file, Beam runs setup.py to make an archive of this package for the workers.
        os.environ["SCAN_TFRECORDS_WORKER"] = "1"
        with _clear_flag_errors(beam_args):
            add_steps(beam.Pipeline(options=options), (), None, None)  # Beam checks the graph
            return beam.Pipeline(options=options)
    # Beam's `DirectRunner` first tries to download another engine, and hangs behind a proxy that
    # does not answer; then it falls back to FnApiRunner, which is used here directly. It runs in
    # this process and opens no port; `WriteShards` starts the worker processes.
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode == "multi_threading":
        raise errors.UserError(
            "--direct_running_mode=multi_threading silently loses records (apache-beam 2.77); "
            "leave the flag out to get one process per core"
        )
    direct.direct_running_mode, direct.direct_num_workers = "in_memory", 1
    pipeline = beam.Pipeline(FnApiRunner(), options=options)
    # Beam makes a temporary folder for a pipeline and removes it after the run, but a complete
    # output needs no run.
    atexit.register(shutil.rmtree, pipeline.local_tempdir, ignore_errors=True)
    if for_beam := beam_flags.for_beam_alone(beam_args):
        # A run without a task finds what Beam refuses, before a file is read.
        with _clear_flag_errors(for_beam), beam.Pipeline(FnApiRunner(), options=options) as trial:
            add_steps(trial, (), None, num_processes(beam_args))
    return pipeline


@contextlib.contextmanager
def _clear_flag_errors(beam_args: Sequence[str]) -> Iterator[None]:
    """Turns any error of Beam over its flags into a `UserError` with Beam's words."""
    try:
        yield
    except Exception as error:
        raise errors.UserError(f"Beam refuses {shlex.join(beam_args)}: {error}") from None


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


def _require_package(chosen: Mapping[str, Any]) -> None:
    """Raises if Dataflow's workers would lack this package, which they report minutes later."""
    if not any(chosen[name] for name in ("sdk_container_image", "setup_file", "extra_packages")):
        raise errors.UserError(
            "Dataflow's workers need this package: give --sdk_container_image, an image built from "
            "docker/pipeline.Dockerfile, or --setup_file=./setup.py; docs/clusters.md explains both"
        )
    try:
        has_client = importlib.util.find_spec("google.cloud.dataflow") is not None
    except ModuleNotFoundError:  # raised if google.cloud is missing too
        has_client = False
    if not has_client:
        raise errors.UserError(
            "--runner=DataflowRunner needs Google's client libraries; run pip install '.[gcp]' in "
            "the clone of this project"
        )


def _require_job_server(endpoint: str | None) -> None:
    if not endpoint or endpoint == "embed":
        return
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_JOB_SERVER_SECONDS)
        except grpc.FutureTimeoutError:
            raise errors.BuildError(
                f"no job server answers at --job_endpoint {endpoint}; check that it is running and "
                "that this is its port. docs/clusters.md explains how to start one"
            ) from None


@contextlib.contextmanager
def clear_errors(runner: PipelineRunner) -> Iterator[None]:
    """Turns an error of the engine that runs in the block into a readable message.

    An error that a worker of this machine raised for the user keeps its message. Any other error of
    a remote engine becomes a `BuildError` with the engine's message, and one of the local engine is
    raised unchanged, because it is a bug.

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
        known = [link for link in chain if isinstance(link, errors.MessageError)]
        message = str(known[0]) if known else None
        # Beam raises a copy of a worker's error, whose message ends with the name of the step.
        if len(known) > 1 and known[0].__cause__ is None and type(known[0]) is type(known[1]):
            original = str(known[1])
            message = original if str(known[0]).startswith(original) else message
        if message is None:
            if isinstance(runner, FnApiRunner):
                raise
            text = error.details() if isinstance(error, grpc.Call) else str(error)
            lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
            # The last line usually names the cause.
            lines = lines if len(lines) < 3 else [lines[0], "…", lines[-1]]
            shown = [line if len(line) <= 400 else f"{line[:400]} …" for line in lines]
            summary = "\n  ".join(shown) or type(error).__name__
            message = f"{type(runner).__name__} did not finish the job: {summary}"
        raise errors.BuildError(message) from error


def check_flags(beam_args: Sequence[str], own_flags: Iterable[str]) -> list[str]:
    """Refuses a flag that neither the build nor Beam knows; Beam alone would only warn.

    Returns:
        the flags, without those that say what Beam does anyhow, such as `--pipeline_type_check`,
        of which it knows the negation alone.

    Raises:
        errors.UserError: naming the flag and the most similar known one.
    """
    found, unknown = _beams_parser().parse_known_args(list(beam_args))
    defaults = {f"--{name}" for name, value in vars(found).items() if value is True}
    needless = defaults.intersection(unknown)
    if unknown := [flag for flag in unknown if flag not in needless]:
        flag = unknown[0].split("=")[0]
        if not flag.startswith("-"):
            raise errors.UserError(f"unknown argument {flag}; did you mean --input {flag}?")
        known = [*own_flags, *(f"--{name}" for name in vars(found))]
        raise errors.UserError(f"unknown flag {flag}{flags.meant(flag, known) or '; see --help'}")
    return [arg for arg in beam_args if arg not in needless]


@functools.cache
def _beams_parser() -> argparse.ArgumentParser:
    """Returns the parser of all flags of Beam."""
    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    # Otherwise the parser prints all of Beam's flags with each error.
    parsers[0].usage = "%(prog)s [flags]; see --help"
    return parsers[0]


def add_steps(
    pipeline: beam.Pipeline,
    tasks: Sequence[ShardTask],
    build: Build | None,
    num_processes: int | None,
) -> None:
    """Adds to an empty pipeline the steps that write shards and finish the dataset.

    For `num_processes` see `WriteShards`; `build` is None in a pipeline that is not run.
    """
    (
        pipeline
        | "Tasks" >> beam.Create(tasks)
        | "WriteShards" >> WriteShards(build, num_processes)
        | "FinishDataset" >> FinishDataset(build, num_processes)
    )


@beam.ptransform_fn
def WriteShards(  # noqa: N802
    tasks: beam.PCollection, build: Build | None, num_processes: int | None = None
) -> beam.PCollection:
    """Turns shard tasks into shard files, and yields (name of the dataset, what was written).

    `num_processes` is the number of local worker processes, for the engine in this process; None if
    the engine's own workers write the shards.
    """
    if num_processes is None:
        return tasks | beam.ParDo(_WriteHere(build))
    # The engine in this process would write the shards one after another, so all tasks become one
    # element.
    return (
        tasks
        | beam.BatchElements(min_batch_size=sys.maxsize, max_batch_size=sys.maxsize)
        | beam.Map(_write_in_processes, build, num_processes)
    )


def _write_in_processes(
    tasks: Sequence[ShardTask], build: Build, num_processes: int
) -> tuple[str, int]:
    write_in_processes(build, tasks, num_processes)
    return build.draft.name, len(tasks)


class _WriteHere(beam.DoFn):
    """Writes each shard in the process to which Beam gives its task."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def setup(self) -> None:
        beam_flags.use_those_of_job()
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


@beam.ptransform_fn
def FinishDataset(  # noqa: N802
    done: beam.PCollection, build: Build | None, num_processes: int | None = None
) -> beam.PCollection:
    """Finishes the dataset once all tasks are done; for `num_processes` see `WriteShards`."""
    finish = beam.Map(_finish, build, num_processes is not None)
    return done | "Gather" >> beam.GroupByKey() | "Finish" >> finish


def _finish(_: object, build: Build, in_worker: bool) -> None:
    if in_worker:
        # It does not hold the listing in memory, as the launcher does.
        list(workers.results(finish_dataset, [(build,)], 1))
        return
    beam_flags.use_those_of_job()
    finish_dataset(build)
