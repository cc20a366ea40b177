import csv
import gzip
import json

import pytest

from train.training import tracing


def events_of(*events):
    """The events of one thread, of (name, start, duration, bytes allocated) in microseconds."""
    return [
        tracing.Event(
            "/host:CPU",
            (0, "thread"),
            name,
            5000 + start * 1e3,
            duration * 1e3,
            {"allocation_bytes": allocated} if allocated else {},
        )
        for name, start, duration, allocated in events
    ]


def test_time_and_memory_are_added_up_by_operation():
    events = events_of(
        ("conv/a:Conv2D", 0, 4, 0),
        ("MemoryAllocation", 1, 0, 512),
        ("conv/b:Conv2D", 5, 2, 0),
        ("MemoryAllocation", 9, 0, 4096),  # between operations: nobody's
        ("relu:Relu", 10, 1, 0),
        ("ExecutorState::Process", 0, 20, 0),
        ("EagerExecute: train", 0, 20, 0),
        ("$trainer.py:12 train", 0, 20, 0),
    )
    assert tracing.operation_table(events) == [
        ("Conv2D", "/host:CPU", 2, 6.0, 3.0, 512),
        ("Relu", "/host:CPU", 1, 1.0, 1.0, 0),
    ]


def test_events_are_in_microseconds_under_named_processes_and_threads():
    events = list(tracing.trace_events(events_of(("relu:Relu", 3, 1.5, 7))))
    assert [event["ph"] for event in events] == ["M", "M", "X"]
    assert events[0]["args"] == {"name": "/host:CPU"}
    assert (events[2]["ts"], events[2]["dur"]) == (8.0, 1.5)
    assert events[2]["args"] == {"allocation_bytes": 7}


@pytest.mark.parametrize("steps_at_a_time", [1, 4])
def test_the_wanted_steps_are_traced_for_real(tmp_path, steps_at_a_time):
    import tensorflow as tf

    @tf.function
    def step(matrix):
        return tf.linalg.matmul(matrix, matrix)

    matrix = tf.ones((64, 64))
    step(matrix)
    with tracing.Tracer((3, 4), tmp_path / "profile", "tensorflow") as tracer:
        for first in range(1, 9, steps_at_a_time):
            tracer.before(first, steps_at_a_time)
            for _ in range(steps_at_a_time):
                step(matrix)
            tracer.after(first + steps_at_a_time - 1)
    with gzip.open(tmp_path / "profile" / tracing.TRACE_NAME) as file:
        assert json.load(file)["traceEvents"]
    with (tmp_path / "profile" / tracing.OPERATIONS_NAME).open() as file:
        calls = {row["operation"]: int(row["calls"]) for row in csv.DictReader(file)}
    (matmul,) = (count for name, count in calls.items() if "MatMul" in name)
    assert matmul == (2 if steps_at_a_time == 1 else 4)


def test_a_run_that_ends_early_still_leaves_its_trace(tmp_path):
    with tracing.Tracer((1, 100), tmp_path / "profile", "tensorflow") as tracer:
        tracer.before(1, 1)
    assert (tmp_path / "profile" / tracing.TRACE_NAME).exists()


def test_nothing_is_traced_unless_asked_for(tmp_path):
    with tracing.Tracer(None, tmp_path / "profile", "tensorflow") as tracer:
        tracer.before(1, 1)
        tracer.after(1)
    assert list(tmp_path.iterdir()) == []
