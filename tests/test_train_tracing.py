import csv
import gzip
import json

import pytest

from train.training import callbacks


def events_of(*events):
    """The events of one thread, of (name, start, duration, bytes allocated) in microseconds."""
    ids = {"pid": 1, "tid": 2}
    host = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}}
    return [host] + [
        {"ph": "X", **ids, "name": name, "ts": start, "dur": duration}
        | {"args": {"allocation_bytes": str(allocated)}}  # JAX writes texts
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
    assert callbacks.operation_table(events) == [
        ("Conv2D", "/host:CPU", 2, 6.0, 3.0, 512),
        ("Relu", "/host:CPU", 1, 1.0, 1.0, 0),
    ]


def test_events_are_in_microseconds_under_named_processes_and_threads():
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    plane.event_metadata[1].name, plane.stat_metadata[2].name = "relu:Relu", "allocation_bytes"
    line = plane.lines.add(name="thread", timestamp_ns=5000)
    event = line.events.add(metadata_id=1, offset_ps=3_000_000, duration_ps=1_500_000)
    event.stats.add(metadata_id=2, int64_value=7)
    process, thread, found = callbacks._events(space.SerializeToString())
    assert (process["args"], thread["args"]) == ({"name": "/host:CPU"}, {"name": "thread"})
    assert (found["name"], found["ts"], found["dur"]) == ("relu:Relu", 8, 1.5)
    assert found["args"] == {"allocation_bytes": 7}


@pytest.mark.parametrize("steps_at_a_time", [1, 4])
def test_the_wanted_steps_are_traced_for_real(tmp_path, steps_at_a_time):
    import tensorflow as tf

    @tf.function
    def step(matrix):
        return tf.linalg.matmul(matrix, matrix)

    matrix = tf.ones((64, 64))
    step(matrix)
    with callbacks.tracer((3, 4), tmp_path / "profile", "tensorflow") as turn:
        for first in range(1, 9, steps_at_a_time):
            turn(first, first + steps_at_a_time - 1)
            for _ in range(steps_at_a_time):
                step(matrix)
            turn(first + steps_at_a_time, first + steps_at_a_time - 1)
    with gzip.open(tmp_path / "profile" / callbacks.TRACE_NAME) as file:
        events = json.load(file)["traceEvents"]
    assert {"process_name", "thread_name"} < {event["name"] for event in events}
    assert min(event["ts"] for event in events if event["ph"] == "X") > 0
    with (tmp_path / "profile" / callbacks.OPERATIONS_NAME).open() as file:
        calls = {row["operation"]: int(row["calls"]) for row in csv.DictReader(file)}
    (matmul,) = (count for name, count in calls.items() if "MatMul" in name)
    assert matmul == (2 if steps_at_a_time == 1 else 4)


@pytest.mark.parametrize("steps", [(1, 100), None])
def test_a_run_that_ends_early_still_leaves_the_trace_that_was_asked_for(tmp_path, steps):
    with callbacks.tracer(steps, tmp_path / "profile", "tensorflow") as turn:
        turn(1, 1)
        turn(2, 1)
    assert (tmp_path / "profile" / callbacks.TRACE_NAME).exists() == (steps is not None)
