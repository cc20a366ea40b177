"""Which engine runs the job, and what the user is told of its errors."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import difflib
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
from pipelines.options import LOCAL_RUNNERS

#: How long a job server may take to answer. Beam would try six times, for a minute each.
_JOB_SERVER_SECONDS = 20.0


def make_pipeline(beam_args: Sequence[str]) -> beam.Pipeline:
    """Returns an empty pipeline on the chosen engine: by default, all cores of this machine.

    Args:
        beam_args: Beam's own flags.

    Raises:
        errors.UserError: for a mode that loses records, or flags that the engine refuses.
        errors.BuildError: if no job server answers.
    """
    options = PipelineOptions(list(beam_args), save_main_session=False)
    if not is_local(options):
        # A remote engine tells where to look at the job on this level; of types it tells too much.
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger("apache_beam.typehints").setLevel(logging.WARNING)
        if is_dataflow(options):
            _require_package(options)
        _require_job_server(options)
        try:
            return beam.Pipeline(options=options)
        except ValueError as error:
            raise errors.UserError(str(error)) from None
    # Beam's `DirectRunner` is a switch that first tries to fetch another engine from the network,
    # and hangs behind a proxy that answers nothing; this is the engine it would end with. It runs
    # in this process and opens no port; `local` has the processes that work.
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode == "multi_threading":
        raise errors.UserError(
            "--direct_running_mode=multi_threading loses records without a word (apache-beam "
            "2.77); leave the flag out for one process a core"
        )
    direct.direct_running_mode, direct.direct_num_workers = "in_memory", 1
    pipeline = beam.Pipeline(FnApiRunner(), options=options)
    # Beam makes a folder for a pipeline and removes it when that has run; ours may not have to.
    atexit.register(shutil.rmtree, pipeline.local_tempdir, ignore_errors=True)
    return pipeline


def num_processes(beam_args: Sequence[str]) -> int | None:
    """Returns how many worker processes of this machine the job gets; by default one a core.

    Args:
        beam_args: Beam's own flags.

    Returns:
        The number, or None if tasks are to be written where their elements are: by another
        engine's workers, or with `--direct_running_mode=in_memory` in the launcher itself.
    """
    options = PipelineOptions(list(beam_args))
    direct = options.view_as(DirectOptions)
    in_memory = _is_given(beam_args, "direct_running_mode") and (
        direct.direct_running_mode == "in_memory"
    )
    if in_memory or not is_local(options):
        return None
    # Beam's default is one worker, and its count of cores is the machine's, not those that this
    # process may use (a container's share).
    if not _is_given(beam_args, "direct_num_workers") or direct.direct_num_workers < 1:
        return len(os.sched_getaffinity(0))
    return direct.direct_num_workers


def is_local(options: PipelineOptions) -> bool:
    """Tells whether the job runs on this machine, in processes of the launcher."""
    runner = options.view_as(StandardOptions).runner
    return runner is None or runner.rsplit(".", 1)[-1].lower() in LOCAL_RUNNERS


def is_dataflow(options: PipelineOptions) -> bool:
    """Tells whether the job runs on Dataflow, whose workers see no disk of this machine."""
    return "dataflow" in (options.view_as(StandardOptions).runner or "").lower()


def returns_early(options: PipelineOptions) -> bool:
    """Tells whether `run` ends before the job does: a template, a dry run, or no waiting."""
    return bool(
        options.view_as(GoogleCloudOptions).template_location
        or options.view_as(TestOptions).dry_run
        or options.view_as(StandardOptions).no_wait_until_finish
    )


def _require_package(options: PipelineOptions) -> None:
    """Refuses a Dataflow job whose workers, minutes later, would not find this package."""
    setup = options.view_as(SetupOptions)
    image = options.view_as(WorkerOptions).sdk_container_image
    if not (image or setup.setup_file or setup.extra_packages):
        raise errors.UserError(
            "Dataflow's workers need this package: give --sdk_container_image, an image made of "
            "docker/pipeline.Dockerfile, or --setup_file=./setup.py; docs/dataflow.md has both"
        )
    if not _has_dataflow_client():
        raise errors.UserError(
            "--runner=DataflowRunner needs Google's client libraries: pip install -e '.[gcp]'"
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
                f"no job server answers at --job_endpoint {endpoint}; is it running, and is that "
                "its port? docs/flink.md says how to start one"
            ) from None


def _has_dataflow_client() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.dataflow") is not None
    except ModuleNotFoundError:  # no google.cloud either
        return False


@contextlib.contextmanager
def clear_errors(options: PipelineOptions) -> Iterator[None]:
    """Turns what an engine makes of an error into the message that the user needs.

    A worker's `BuildError` comes back as itself. Where a remote engine does not start, or gives
    the job up, its own words are kept and this program's traceback is not; what an engine in this
    process did not foresee is passed on as it is.

    Args:
        options: Beam's, of the pipeline that runs in the block.

    Raises:
        errors.BuildError: with that message.
    """
    # Before the job: Beam's portable runners take their name out of the options.
    remote = None if is_local(options) else options.view_as(StandardOptions).runner
    try:
        yield
    except Exception as error:
        if any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error)):
            raise KeyboardInterrupt from None  # Beam makes a RuntimeError of it
        message = _root_cause(error)
        if message is None and remote is not None:
            message = f"{remote} did not finish the job: {_summary(error)}"
        if message is None:
            raise
        raise errors.BuildError(message) from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _summary(error: Exception) -> str:
    """Returns the beginning of an engine's message and its end, where a cause would stand."""
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    lines = [line.strip() for line in (details or "").splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    shown = lines if len(lines) < 3 else [lines[0], "…", lines[-1]]
    return "\n  ".join(line if len(line) <= 400 else f"{line[:400]} …" for line in shown)


def _root_cause(error: BaseException) -> str | None:
    """Returns the message of the build's own error that ended a job, if that was it.

    Beam passes a worker's exception on as text, unless the worker is this process.
    """
    if isinstance(error, errors.BuildError | errors.UserError):
        return str(error).split(" [while running")[0]
    for line in reversed(str(error).splitlines()):
        for kind in (errors.BuildError, errors.UserError):
            head, found, message = line.partition(f"{kind.__module__}.{kind.__qualname__}: ")
            if found and not head.strip():
                return message.split(" [while running")[0]
    return None


def check_flags(beam_args: Sequence[str], own_flags: Iterable[str]) -> None:
    """Refuses a flag that neither the build nor Beam knows; Beam would only warn.

    Args:
        beam_args: the arguments that the build did not take.
        own_flags: the build's own, to suggest for a misspelled one.

    Raises:
        errors.UserError: naming the flag and what may have been meant.
    """
    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    (parser,) = parsers
    # Without a usage of its own it would print all of Beam's flags with an error.
    parser.usage = "build_tfrecords.py [flags]; see --help"
    found, unknown = parser.parse_known_args(list(beam_args))
    if unknown:
        flag = unknown[0].split("=")[0]
        known = [*own_flags, *(f"--{name}" for name in vars(found))]
        close = difflib.get_close_matches(flag, known, 1)
        hint = f"; did you mean {close[0]}?" if close else "; see --help"
        raise errors.UserError(f"unknown flag {flag}{hint}")


def _is_given(beam_args: Sequence[str], flag: str) -> bool:
    return any(arg.split("=")[0] == f"--{flag}" for arg in beam_args)
