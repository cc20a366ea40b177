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


@pytest.mark.parametrize("flags", [[], ["--runner=directrunner"]])
def test_by_default_it_is_one_process_a_core_and_no_engine_is_fetched(flags):
    # Beam's own DirectRunner would be a SwitchingDirectRunner, which asks the network for Prism.
    assert type(engine.make_pipeline(flags).runner) is FnApiRunner
    assert engine.num_processes(flags) == CORES


@pytest.mark.parametrize(
    ("flags", "num_processes"),
    [
        ("--direct_num_workers 3 --direct_running_mode=multi_processing", 3),
        (f"{IN_MEMORY} --direct_num_workers=3", None),
        ("--runner=FlinkRunner --direct_num_workers=3", None),
    ],
)
def test_flags_of_beam_set_the_number_of_worker_processes(flags, num_processes):
    assert engine.num_processes(flags.split()) == num_processes


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--clases=a"], r"unknown flag --clases; did you mean --classes\?"),
        (["scans"], r"unknown argument scans; did you mean --input scans\?"),
        (["--xyzzy"], "unknown flag --xyzzy; see --help"),
    ],
)
def test_an_unknown_flag_is_named_with_what_may_have_been_meant(flags, message):
    engine.check_flags(["--runner=FlinkRunner", "--region", "west"], FLAG_NAMES)
    with pytest.raises(errors.UserError, match=message):
        engine.check_flags(flags, FLAG_NAMES)


@pytest.mark.parametrize("flags", ["--runner=NoSuchRunner", "--runner=InteractiveRunner"])
def test_what_beam_refuses_is_wrong_usage_in_its_words(flags):
    with pytest.raises(errors.UserError, match=f"Beam refuses {flags}: "):
        engine.make_pipeline(flags.split())


def fail_with(_, error):
    raise error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (errors.BuildError("a.zip is gone"), errors.BuildError, "a.zip is gone"),
        (errors.UserError("a.zip is gone"), errors.BuildError, "a.zip is gone"),
        # Beam turns it into a RuntimeError.
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_a_workers_own_error_comes_back_as_its_message_alone(error, kind, message):
    clear = engine.clear_errors(FnApiRunner())
    with pytest.raises(kind) as raised, clear, engine.make_pipeline([IN_MEMORY]) as pipeline:
        pipeline | beam.Create([1]) | beam.Map(fail_with, error)
    assert str(raised.value) == message
    with pytest.raises(ZeroDivisionError), engine.clear_errors(FnApiRunner()):  # a bug
        _ = 1 // 0


def test_the_message_of_a_remote_engine_is_kept_and_shortened():
    error = RuntimeError("oct failed:\n  at java.lang\n  at java.util\nOSError: no disk\n")
    clear = engine.clear_errors(FlinkRunner())
    with pytest.raises(errors.BuildError) as raised, clear:
        raise error
    assert str(raised.value) == (
        "FlinkRunner did not finish the job: oct failed:\n  OSError: no disk"
    )
