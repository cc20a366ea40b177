"""Chooses the engine that runs the job, and turns its errors into readable messages."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipelines import errors
from pipelines.options import workers_of
from tfrecord_io import flags

#: Seconds a job server has to answer. Beam alone would try six times, for a minute each.
_JOB_SERVER_SECONDS = 20.0


def make_pipeline(beam_args: Sequence[str]) -> beam.Pipeline:
    """Returns an empty pipeline on the chosen engine: by default, all cores of this machine.

    Raises:
        errors.UserError: for a mode that loses records, or flags that the engine refuses.
        errors.BuildError: if the job server does not answer.
    """
    options = PipelineOptions(list(beam_args), save_main_session=False)
    if not _is_local(options):
        # A remote engine logs the job's address at INFO. There the type checker logs too much, and
        # workers within this process log after its last message.
        logging.getLogger().setLevel(logging.INFO)
        for name in ("typehints", "runners.worker"):
            logging.getLogger(f"apache_beam.{name}").setLevel(logging.WARNING)
        if workers_of(options.view_as(StandardOptions).runner) == "dataflow":
            _require_package(options)
        _require_job_server(options)
        try:
            return beam.Pipeline(options=options)
        except ValueError as error:
            raise errors.UserError(str(error)) from None
    # Beam's `DirectRunner` first tries to download another engine, and hangs behind a proxy that
    # does not answer; then it falls back to FnApiRunner, which is used here directly. It runs in
    # this process and opens no port; `local` starts the worker processes.
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
    return pipeline


def num_processes(beam_args: Sequence[str]) -> int | None:
    """Returns the number of local worker processes; by default one per core.

    It is None if Beam's own workers write the shards: those of a remote engine, or the launcher
    itself with `--direct_running_mode=in_memory`.
    """
    # Of two flags of the same name the last one counts, so these are defaults in place of Beam's.
    defaults = ["--direct_running_mode=multi_processing", "--direct_num_workers=0"]
    options = PipelineOptions([*defaults, *beam_args])
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode == "in_memory" or not _is_local(options):
        return None
    # For 0 Beam would count all cores of the machine, also those that this process may not use, as
    # in a container.
    if direct.direct_num_workers < 1:
        return len(os.sched_getaffinity(0))
    return direct.direct_num_workers


def returns_early(options: PipelineOptions) -> bool:
    """Returns whether the pipeline's run ends before the job: a template, dry run or no waiting."""
    return bool(
        options.view_as(GoogleCloudOptions).template_location
        or options.view_as(TestOptions).dry_run
        or options.view_as(StandardOptions).no_wait_until_finish
    )


def _is_local(options: PipelineOptions) -> bool:
    """Returns whether the job runs on this machine, in processes that the launcher starts."""
    return workers_of(options.view_as(StandardOptions).runner) == "here"


def _require_package(options: PipelineOptions) -> None:
    """Raises if Dataflow's workers would lack this package, which they report minutes later."""
    setup = options.view_as(SetupOptions)
    image = options.view_as(WorkerOptions).sdk_container_image
    if not (image or setup.setup_file or setup.extra_packages):
        raise errors.UserError(
            "Dataflow's workers need this package: give --sdk_container_image, an image built from "
            "docker/pipeline.Dockerfile, or --setup_file=./setup.py; docs/dataflow.md explains both"
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


def _require_job_server(options: PipelineOptions) -> None:
    endpoint = options.view_as(PortableOptions).job_endpoint
    if not endpoint or endpoint == "embed":
        return
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_JOB_SERVER_SECONDS)
        except grpc.FutureTimeoutError:
            raise errors.BuildError(
                f"no job server answers at --job_endpoint {endpoint}; check that it is running and "
                "that this is its port. docs/flink.md explains how to start one"
            ) from None


@contextlib.contextmanager
def clear_errors(options: PipelineOptions) -> Iterator[None]:
    """Turns an engine's error into a readable message.

    A worker's own error keeps its message. Any other error of a remote engine becomes a
    `BuildError` with the engine's message. Any other error of the local engine is raised unchanged,
    because it is a bug. `options` are those of the pipeline that runs in the block.

    Raises:
        errors.BuildError: with the message for the user.
        KeyboardInterrupt: if the user stopped the job.
    """
    # Read before the job runs: Beam's portable runners remove their name from the options.
    remote = None if _is_local(options) else options.view_as(StandardOptions).runner
    try:
        yield
    except Exception as error:
        if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
            raise KeyboardInterrupt from None  # Beam turns it into a RuntimeError
        message = _root_cause(error)
        if message is None and remote is not None:
            message = f"{remote} did not finish the job: {_summary(error)}"
        if message is None:
            raise
        raise errors.BuildError(message) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, then its cause or context, then the cause of that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _summary(error: Exception) -> str:
    """Returns the first line of an engine's message and the last, which usually names the cause."""
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    lines = [line.strip() for line in (details or "").splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    shown = lines if len(lines) < 3 else [lines[0], "…", lines[-1]]
    return "\n  ".join(line if len(line) <= 400 else f"{line[:400]} …" for line in shown)


def _root_cause(error: BaseException) -> str | None:
    """Returns the message of the build's own error that ended a job, or None for other errors.

    Beam reports an exception of another process as text, so the message is searched for in it.
    """
    if isinstance(error, errors.ToldError):
        return str(error).split(" [while running")[0]
    for line in reversed(str(error).splitlines()):
        for kind in (errors.BuildError, errors.UserError, errors.StoreError):
            head, found, message = line.partition(f"{kind.__module__}.{kind.__qualname__}: ")
            if found and not head.strip():
                return message.split(" [while running")[0]
    return None


def check_flags(beam_args: Sequence[str], own_flags: Iterable[str]) -> None:
    """Raises for a flag that neither the build nor Beam knows; Beam alone would only warn.

    Raises:
        errors.UserError: naming the flag and the most similar known one.
    """
    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    (parser,) = parsers
    # Otherwise the parser prints all of Beam's flags with each error.
    parser.usage = "%(prog)s [flags]; see --help"
    found, unknown = parser.parse_known_args(list(beam_args))
    if unknown:
        flag = unknown[0].split("=")[0]
        known = [*own_flags, *(f"--{name}" for name in vars(found))]
        raise errors.UserError(f"unknown flag {flag}{flags.meant(flag, known) or '; see --help'}")
