import os
import signal
from unittest import mock

import numpy as np
import pytest

from train.machine.errors import TrainingError
from train.training import callbacks, training_loop
from train.training.steps import StepResults


def results_of(losses, *, wait_seconds=0.0):
    totals = np.array([(loss, 1, 4) for loss in losses], np.float32)
    return StepResults(totals=totals, wait_seconds=wait_seconds)


def step_of(*, num_traces=1, losses=(1.0,), training=None):
    """Lets the training loop take some steps with these results; returns the training."""
    if training is None:
        training = mock.MagicMock(progress=training_loop.Progress())
    training._steps.train.return_value = results_of(losses)
    training._steps.num_traces = num_traces
    meter = callbacks.EpochMeter()
    training_loop._Training._train_steps(training, None, len(losses), meter)
    return training


def test_the_step_whose_loss_is_no_number_is_named():
    for bad in (np.nan, np.inf):
        training = step_of(losses=[0.0, 1e30])
        with pytest.raises(TrainingError, match="at step 5"):
            step_of(losses=[0.0, 1e30, bad, bad], training=training)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_remembered_and_the_old_handler_comes_back(number):
    # Under nohup a hangup is ignored, and stays so.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with callbacks.stop_signals() as received:
            assert received == []
            os.kill(os.getpid(), number)
            assert received == [number]
            # Asked again: at once.
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_graph_that_is_traced_again_ends_the_run():
    training = None
    for num_traces in (1, 1):
        training = step_of(num_traces=num_traces, training=training)
    with pytest.raises(TrainingError, match="traced again before step 3"):
        step_of(num_traces=2, training=training)


def test_the_meter_means_over_examples_and_leaves_the_first_steps_out_of_the_speed():
    meter = callbacks.EpochMeter()
    meter.add(results_of([8.0]), 100.0, timed=False)
    meter.add(results_of([4.0, 4.0], wait_seconds=0.5), 2.0, timed=True)
    assert meter.means() == pytest.approx([16 / 12, 3 / 12])
    assert meter.speed() == {
        "images_per_second": pytest.approx(4.0),
        "step_ms": pytest.approx(1000.0),
        "input_wait_share": pytest.approx(0.25),
    }
    meter = callbacks.EpochMeter()
    assert set(meter.speed().values()) == {None}
    meter.add(results_of([1.0], wait_seconds=float("nan")), 1.0, timed=True)
    assert meter.speed()["input_wait_share"] is None
    assert meter.speed()["images_per_second"] == pytest.approx(4.0)


def test_a_meter_goes_on_from_its_totals_to_the_same_bits():
    losses = np.random.default_rng(0).random(50)
    whole, first = callbacks.EpochMeter(), callbacks.EpochMeter()
    whole.add(results_of(losses), 1.0, timed=True)
    first.add(results_of(losses[:20]), 1.0, timed=True)
    rest = callbacks.EpochMeter(**first.totals())
    rest.add(results_of(losses[20:]), 1.0, timed=True)
    assert rest.totals() == whole.totals()


def test_scalars_are_written_for_tensorboard(tmp_path):
    import tensorflow as tf

    with callbacks.tensorboard(tmp_path) as write:
        write({"loss": 1.5, "phase": "head", "step": 3, "images_per_second": None}, 3)
    (path,) = tmp_path.iterdir()
    values = {
        value.tag: (event.step, float(tf.make_ndarray(value.tensor)))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert values == {"loss": (3, 1.5)}
