"""Which engine runs the job, and what is done when one of its workers dies."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import difflib
import importlib.util
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import apache_beam as beam
import grpc
import psutil
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
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.job import utils as job_utils
from apache_beam.runners.portability.fn_api_runner import FnApiRunner, fn_runner

from pipelines import errors, local_runner, local_workers

#: Names under which a user may ask for Beam's own engine on this machine.
_LOCAL_RUNNERS = ("directrunner", "fnapirunner", "bundlebaseddirectrunner", "direct")

#: How long a job server may take to answer. Beam would try six times, for a minute each.
_JOB_SERVER_SECONDS = 20.0

#: How long an engine that lost a worker may take to end by itself.
_GRACE_SECONDS = 10.0


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
    pipeline = beam.Pipeline(_local_runner(options, beam_args), options=options)
    # Beam makes a folder for a pipeline and removes it when that has run; ours may not have to.
    atexit.register(shutil.rmtree, pipeline.local_tempdir, ignore_errors=True)
    return pipeline


def _local_runner(options: PipelineOptions, beam_args: Sequence[str]) -> FnApiRunner:
    """Returns Beam's own engine, with one process a core.

    Beam's `DirectRunner` is a switch that first tries to fetch another engine from the network,
    and hangs behind a proxy that answers nothing; this is the engine it would end with.
    """
    direct = options.view_as(DirectOptions)
    mode = direct.direct_running_mode
    if mode == "multi_threading":
        raise errors.UserError(
            "--direct_running_mode=multi_threading loses records without a word (apache-beam "
            "2.77); leave the flag out for one process a core"
        )
    if mode == "in_memory" and _is_given(beam_args, "direct_running_mode"):
        direct.direct_num_workers = 1
        return FnApiRunner()
    # Beam's default is one worker, and its count of cores is the machine's, not those that this
    # process may use (a container's share).
    if not _is_given(beam_args, "direct_num_workers") or direct.direct_num_workers < 1:
        direct.direct_num_workers = len(os.sched_getaffinity(0))
    # The engine would start Beam's talkative worker in `multi_processing` mode. In its default
    # mode it takes the environment it is given, and only complains that this cannot be meant.
    direct.direct_running_mode = "in_memory"
    # Launcher and workers talk over this machine's own address, which gRPC would send to a proxy
    # that the environment names.
    os.environ["no_grpc_proxy"] = "localhost,127.0.0.1,::1"  # noqa: SIM112 - gRPC's own name
    return local_runner.LocalRunner(
        default_environment=local_workers.LocalWorkers(),
        provision_info=_provision_info(options),
    )


def _provision_info(options: PipelineOptions) -> fn_runner.ExtendedProvisionInfo:
    """Returns what worker processes are told: the options, which by default this engine keeps.

    File systems need them: an endpoint, a key.
    """
    told = {}
    for name, value in options.get_all_options(drop_default=True).items():
        if isinstance(value, list):
            told[name] = [str(item) for item in value]
        elif isinstance(value, str | int | float):
            # A number would arrive as a float, which is no valid value of an integer's flag.
            told[name] = value if isinstance(value, bool) else str(value)
    content = beam_provision_api_pb2.ProvisionInfo(pipeline_options=job_utils.dict_to_struct(told))
    return fn_runner.ExtendedProvisionInfo(content)


def is_local(options: PipelineOptions) -> bool:
    """Tells whether the job runs on this machine, in processes of the launcher."""
    runner = options.view_as(StandardOptions).runner
    return runner is None or runner.rsplit(".", 1)[-1].lower() in _LOCAL_RUNNERS


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
def watched_workers() -> Iterator[None]:
    """Ends the job, or this program, if a local worker process dies while the job runs.

    A worker that the kernel kills, for want of memory say, leaves Beam's engine waiting for ever.
    The engine's own thread notices the death and raises an exception that nobody reads; here it
    is read. Nothing is lost: what was written is whole, and the same command goes on.

    An engine that ends the job itself stops its workers too, not always gently; so it is given
    the time to leave this block first.
    """
    previous = threading.excepthook
    deadlines: list[threading.Timer] = []

    def on_thread_error(args: threading.ExceptHookArgs) -> None:
        if args.thread is not None and args.thread.name == local_workers.WATCHER:
            what = str(args.exc_value)
            deadlines.append(threading.Timer(_GRACE_SECONDS, _end_with_dead_worker, [what]))
            deadlines[-1].daemon = True
            deadlines[-1].start()
            return
        # The threads that talk to a worker find out too, and would say so at length.
        if not isinstance(args.exc_value, grpc.RpcError):
            previous(args)

    threading.excepthook = on_thread_error
    try:
        yield
    except (errors.BuildError, errors.UserError):
        raise
    except Exception as error:
        if deadlines:
            raise errors.BuildError(_dead_worker_message(deadlines[0].args[0])) from error
        raise
    finally:
        threading.excepthook = previous
        for deadline in deadlines:
            deadline.cancel()


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
        message = _root_cause(error)
        if message is None and remote is not None:
            message = f"{remote} did not finish the job: {_summary(error)}"
        if message is None:
            raise
        raise errors.BuildError(message) from error


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


def _dead_worker_message(what: str) -> str:
    return (
        f"a worker process died ({what}), most likely for want of memory; shards that were "
        "finished are kept.\nRun the same command again to go on, with fewer workers "
        "(--direct_num_workers=1) if memory is short."
    )


def _end_with_dead_worker(what: str) -> NoReturn:
    print(f"\nerror: {_dead_worker_message(what)}", file=sys.stderr, flush=True)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    # The main thread waits inside the engine and cannot be unwound.
    os._exit(1)


def check_flags(beam_args: Sequence[str], own_flags: Iterable[str]) -> None:
    """Refuses a flag that neither the build nor Beam knows; Beam would only warn.

    Args:
        beam_args: the arguments that the build did not take.
        own_flags: the build's own, to suggest for a misspelled one.

    Raises:
        errors.UserError: naming the flag and what may have been meant.
    """
    # Without a usage of its own it would print all of Beam's flags with an error.
    usage = "build_tfrecords.py [flags]; see --help"
    parser = argparse.ArgumentParser(usage=usage, add_help=False, allow_abbrev=False)
    for options in [PipelineOptions, *_subclasses(PipelineOptions)]:
        # Beam's own parsers overlap, and the same flag twice is an error to argparse.
        with contextlib.suppress(argparse.ArgumentError):
            options._add_argparse_args(_Tolerant(parser))
    _, unknown = parser.parse_known_args(list(beam_args))
    if unknown:
        flag = unknown[0].split("=")[0]
        known = [
            *own_flags,
            *(name for action in parser._actions for name in action.option_strings),
        ]
        close = difflib.get_close_matches(flag, known, 1)
        hint = f"; did you mean {close[0]}?" if close else "; see --help"
        raise errors.UserError(f"unknown flag {flag}{hint}")


class _Tolerant:
    """Lets one parser take the flags of all of Beam's option classes, each once."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def add_argument(self, *names: str, **settings: Any) -> None:
        settings.pop("required", None)
        with contextlib.suppress(argparse.ArgumentError):
            self._parser.add_argument(*names, **settings)

    def add_value_provider_argument(self, *names: str, **settings: Any) -> None:
        self.add_argument(*names, **settings)

    def add_mutually_exclusive_group(self, **_: Any) -> _Tolerant:
        return self

    def add_argument_group(self, *_: Any, **__: Any) -> _Tolerant:
        return self


def _subclasses(kind: type) -> list[type]:
    direct = kind.__subclasses__()
    return direct + [deeper for each in direct for deeper in _subclasses(each)]


def _is_given(beam_args: Sequence[str], flag: str) -> bool:
    return any(arg.split("=")[0] == f"--{flag}" for arg in beam_args)
