import os
import signal

import pytest

from train.training import monitors


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
