"""Monitors of a run: stop signals, speed, memory. None changes what is learnt."""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import numpy as np

from train.machine.devices import Devices
from train.training.steps import StepResults

# Names in a checkpoint of what an `EpochMeter` has summed, see `StepResults.totals`.
_SUMS = ("loss_sum", "num_correct", "num_examples")


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yields a list to which the signals that end a process are added, so that a step can end."""
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if received:  # a second signal ends the process at once
            signal.signal(number, previous[number])
            signal.raise_signal(number)
        received.append(number)

    # SIGHUP comes from a closed terminal; nohup has it ignored.
    is_kept = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = [signal.SIGTERM, signal.SIGINT] + [signal.SIGHUP] * is_kept
    previous = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class EpochMeter:
    """Measures an epoch: loss, accuracy, speed and the time spent waiting for input.

    To continue an epoch from a checkpoint, pass what `totals` returned. `seconds` and the speed are
    measured from there on.
    """

    def __init__(self, **totals: float) -> None:
        self._sums = np.array([totals.get(name, 0.0) for name in _SUMS])
        self.seconds = 0.0
        # Of the steps that are timed: examples, steps, seconds, seconds of waiting for input.
        self._timed = np.zeros(4)

    def add(self, results: StepResults, seconds: float, *, timed: bool) -> None:
        """Adds the results of a step and its seconds, including the wait for input.

        A step that included tracing a graph is not `timed`: they do not count for the speed.
        """
        # Summing float64 in order gives a resumed epoch the same bits.
        self._sums += results.totals
        self.seconds += seconds
        if timed:
            self._timed += results.totals[2], 1, seconds, results.wait_seconds

    def totals(self) -> dict[str, float]:
        """Returns the sums that a checkpoint stores of an unfinished epoch."""
        return dict(zip(_SUMS, self._sums.tolist(), strict=True))

    def means(self) -> list[float]:
        """Returns [mean loss of an example in nats, share of right answers]."""
        return (self._sums[:2] / max(self._sums[2], 1.0)).tolist()

    def speed(self) -> dict[str, float | None]:
        """Returns the speed and the share of the time spent waiting; None if no step was timed."""
        num_examples, num_steps, seconds, waited = self._timed.tolist()
        names = ("images_per_second", "step_ms", "input_wait_share")
        if not seconds:
            return dict.fromkeys(names)
        values = num_examples / seconds, 1000 * seconds / num_steps, waited / seconds
        return dict(zip(names, values, strict=True))


def memory_megabytes(devices: Devices) -> dict[str, float]:
    """Returns `peak_rss_mb` of this process and, if it uses GPUs, `peak_gpu_mb` of the first."""
    # getrusage counts in kilobytes on Linux, in bytes on macOS.
    unit = 1e6 if sys.platform == "darwin" else 1e3
    memory = {"peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if devices.on_gpu and devices.backend == "tensorflow":
        import tensorflow as tf

        memory["peak_gpu_mb"] = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 1e6
    elif devices.on_gpu:
        import jax

        statistics = jax.devices()[0].memory_stats() or {}
        memory["peak_gpu_mb"] = statistics.get("peak_bytes_in_use", 0) / 1e6
    return memory
