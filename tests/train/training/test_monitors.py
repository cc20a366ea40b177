import os
import signal

import numpy as np
import pytest

from train.training import monitors
from train.training.steps import StepResults


def results_of(loss, *, wait_seconds=0.0):
    return StepResults(totals=np.array((loss, 1, 4), np.float32), wait_seconds=wait_seconds)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_remembered_and_the_old_handler_comes_back(number):
    # Under nohup a hangup is ignored, and stays so.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with monitors.stop_signals() as received:
            assert received == []
            os.kill(os.getpid(), number)
            assert received == [number]
            # Asked again: at once.
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_the_meter_means_over_examples_and_leaves_the_first_step_out_of_the_speed():
    meter = monitors.EpochMeter()
    assert set(meter.speed().values()) == {None}
    meter.add(results_of(8.0), 100.0, timed=False)
    for wait_seconds in (0.5, 0.0):
        meter.add(results_of(4.0, wait_seconds=wait_seconds), 1.0, timed=True)
    assert meter.means() == pytest.approx([16 / 12, 3 / 12])
    expected = {"images_per_second": 4.0, "step_ms": 1000.0, "input_wait_share": 0.25}
    assert meter.speed() == pytest.approx(expected)


def test_a_meter_goes_on_from_its_totals_to_the_same_bits():
    whole = resumed = monitors.EpochMeter()
    for number, loss in enumerate(np.random.default_rng(0).random(50)):
        whole.add(results_of(loss), 1.0, timed=True)
        if number == 20:
            resumed = monitors.EpochMeter(**whole.totals())
        elif number > 20:
            resumed.add(results_of(loss), 1.0, timed=True)
    assert resumed.totals() == whole.totals()
