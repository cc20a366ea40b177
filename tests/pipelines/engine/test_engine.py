import os

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from builds import IN_MEMORY

from pipelines import errors
from pipelines.engine import engine

CORES = len(os.sched_getaffinity(0))


def test_by_default_no_engine_is_fetched():
    # Beam's own DirectRunner would be a SwitchingDirectRunner, which asks the network for Prism.
    assert type(engine.make_pipeline([]).runner) is FnApiRunner


@pytest.mark.parametrize(
    ("flags", "num_processes"),
    [
        ("", CORES),
        ("--runner=directrunner", CORES),
        ("--direct_num_workers 3 --direct_running_mode=multi_processing", 3),
        (f"{IN_MEMORY} --direct_num_workers=3", None),
        ("--runner=FlinkRunner --direct_num_workers=3", None),
    ],
)
def test_flags_of_beam_set_the_number_of_worker_processes(flags, num_processes):
    assert engine.num_processes(flags.split()) == num_processes


@pytest.mark.parametrize(
    "flag",
    ["--runner=NoSuchRunner", "--runner=InteractiveRunner",
     "--direct_running_mode=multi_threading"],  # it loses records
)  # fmt: skip
def test_what_beam_refuses_and_what_loses_records_is_wrong_usage(flag):
    with pytest.raises(errors.UserError, match=flag):
        engine.make_pipeline([flag])


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
