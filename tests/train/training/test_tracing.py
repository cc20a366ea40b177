import pytest

from train.training import callbacks


@pytest.mark.parametrize("steps_at_a_time", [1, 4])
def test_the_wanted_steps_are_traced_for_real(tmp_path, steps_at_a_time, capsys):
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

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
    assert "trace written to" in capsys.readouterr().out
    (trace,) = tmp_path.rglob("*.xplane.pb")
    names = [
        plane.event_metadata[event.metadata_id].name
        for plane in xplane_pb2.XSpace.FromString(trace.read_bytes()).planes
        for line in plane.lines
        for event in line.events
    ]
    assert sum(name.endswith(":MatMul") for name in names) == (2 if steps_at_a_time == 1 else 4)


@pytest.mark.parametrize("steps", [(1, 100), None])
def test_a_run_that_ends_early_still_leaves_the_trace_that_was_asked_for(tmp_path, steps):
    with callbacks.tracer(steps, tmp_path / "profile", "tensorflow") as turn:
        turn(1, 1)
        turn(2, 1)
    assert bool([*tmp_path.rglob("*.xplane.pb")]) == (steps is not None)
