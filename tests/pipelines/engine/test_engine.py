import os

import apache_beam as beam
import pytest
from apache_beam.runners.portability.flink_runner import FlinkRunner
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from builds import IN_MEMORY

from pipelines import errors
from pipelines.engine import engine
from pipelines.options import FLAG_NAMES

CORES = len(os.sched_getaffinity(0))
LOCAL = ["DirectRunner", "directrunner", "FnApiRunner", "BundleBasedDirectRunner", "direct"]


@pytest.mark.parametrize("flags", [[], *([f"--runner={name}"] for name in LOCAL)])
def test_without_a_word_it_is_one_process_a_core_and_no_engine_is_fetched(flags):
    # Beam's own DirectRunner would be a SwitchingDirectRunner, which asks the network for Prism.
    assert type(engine.make_pipeline(flags).runner) is FnApiRunner
    assert engine.num_processes(flags) == CORES


@pytest.mark.parametrize(
    ("flags", "num_processes"),
    [
        ("--direct_num_workers=3", 3),
        ("--direct_num_workers 3 --direct_running_mode=multi_processing", 3),
        ("--direct_num_workers=0", CORES),
        ("--direct_num_workers=-1", CORES),
        (f"{IN_MEMORY} --direct_num_workers=3", None),
        ("--direct_running_mode in_memory", None),
        ("--runner=FlinkRunner --direct_num_workers=3", None),
    ],
)
def test_the_number_of_worker_processes_can_be_told(flags, num_processes):
    assert engine.num_processes(flags.split()) == num_processes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clases=a"], r"unknown flag --clases; did you mean --classes\?"),
        (["--outptu", "x"], r"unknown flag --outptu; did you mean --output\?"),
        (["scans"], r"unknown argument scans; did you mean --input scans\?"),
        (["--direct_num_worker=2"], r"did you mean --direct_num_workers\?"),
        (["--xyzzy"], "unknown flag --xyzzy; see --help"),
    ],
)
def test_a_flag_that_nobody_knows_is_named_with_what_may_have_been_meant(flags, message):
    engine.check_flags(["--runner=FlinkRunner", "--region", "west"], FLAG_NAMES)
    with pytest.raises(errors.UserError, match=message):
        engine.check_flags(flags, FLAG_NAMES)


@pytest.mark.parametrize(
    "flags",
    [
        "--runner=InteractiveRunner",
        "--runner=NoSuchRunner",
        "--type_check_strictness=ALL_REQUIRED",
        "--runner=PortableRunner --type_check_strictness=ALL_REQUIRED",
        "--update_compatibility_version=2.50.0",
        "--runtime_type_check --performance_runtime_type_check",
    ],
)
def test_what_beam_refuses_is_wrong_usage_in_its_words(flags):
    with pytest.raises(errors.UserError, match=f"Beam refuses {flags}: "):
        engine.make_pipeline(flags.split())


def test_a_flag_that_says_what_beam_does_anyhow_is_known():
    given = ["--pipeline_type_check", "--direct_num_workers=2"]
    assert engine.check_flags(given, FLAG_NAMES) == given[1:]


def fail_with(_, error):
    raise error


GONE = "/data/scans.zip is gone; every worker must be able to read it"
CAUSED = errors.BuildError(f"{GONE}. Try again")
CAUSED.__cause__ = errors.BuildError(GONE)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (errors.BuildError(GONE), errors.BuildError, GONE),
        (errors.UserError(GONE), errors.BuildError, GONE),
        (CAUSED, errors.BuildError, f"{GONE}. Try again"),
        # Beam turns it into a RuntimeError.
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_a_workers_own_error_comes_back_as_its_message_alone(error, kind, message):
    clear = engine.clear_errors(FnApiRunner())
    with pytest.raises(kind) as raised, clear, engine.make_pipeline([IN_MEMORY]) as pipeline:
        pipeline | beam.Create([1]) | beam.Map(fail_with, error)
    assert str(raised.value) == message


def test_an_error_nobody_foresaw_is_passed_on():
    with pytest.raises(ZeroDivisionError), engine.clear_errors(FnApiRunner()):
        _ = 1 // 0


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError("oct failed:\n  at java.lang\n  at java.util\nOSError: no disk\n"),
            "FlinkRunner did not finish the job: oct failed:\n  …\n  OSError: no disk",
        ),
        (TimeoutError(), "FlinkRunner did not finish the job: TimeoutError"),
    ],
)
def test_what_a_remote_engine_says_of_a_failure_is_kept_and_shortened(error, message):
    clear = engine.clear_errors(FlinkRunner())
    with pytest.raises(errors.BuildError) as raised, clear:
        raise error
    assert str(raised.value) == message


def test_a_job_server_that_does_not_answer_is_named_before_anything_is_read(monkeypatch):
    monkeypatch.setattr(engine, "_JOB_SERVER_SECONDS", 0.2)
    with pytest.raises(errors.BuildError, match="no job server answers at --job_endpoint localh"):
        engine.make_pipeline(["--runner=PortableRunner", "--job_endpoint=localhost:9"])
